"""`tocsin support-bundle`."""

import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import httpx
import typer
from rich.text import Text

from ... import __version__, bootstrap
from ...bootstrap.operators import status_of
from ...domain.text import counted
from ...services.health import examine
from ...services.health.status import as_json
from ...services.support_bundle import BundleExists, Content, Part, collect, end_of, event_parts, write
from ...settings import Settings, described
from ..output.tables import table
from ..runtime.event_loop import run
from ..runtime.session import Session

if TYPE_CHECKING:
    from ...bootstrap import Installation

MAX_METRICS: Final = 16_777_216
"""Bytes of one page of metrics."""


def support_bundle(
    session: Session,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="FILE",
            help="The archive to write; by default `tocsin-support-<time>.tar.gz` here. For -o, with a dot or a slash.",
        ),
    ] = None,
    log: Annotated[
        list[Path] | None,
        typer.Option(
            "--log", metavar="FILE", help="Add the end of a file with log lines of a process; give it once per file."
        ),
    ] = None,
    metrics: Annotated[
        list[str] | None,
        typer.Option(
            "--metrics",
            metavar="URL",
            help="Add a page of metrics; give it once per process. By default the pages that the settings name on this machine.",
        ),
    ] = None,
) -> None:
    """Write settings, status, findings, events, metrics and log lines into one archive.

    It holds no secrets of the settings, and no input, result or error of a job: of the events it has names, numbers, times and reasons of
    fixed lists. Log lines are added as they are. A part that cannot be read is named in `bundle.json`; the others are written.

    Example: `tocsin support-bundle --log stages.log --metrics http://127.0.0.1:9090/metrics`
    """
    at = datetime.now(UTC)
    path = out or Path(f"tocsin-support-{at:%Y%m%dT%H%M%SZ}.tar.gz")
    if path.exists():
        raise BundleExists(path)
    contents = run(_contents(session, log or [], metrics))
    write(path, contents, at=at, tocsin=__version__)
    size = path.stat().st_size
    session.output.answer(
        {
            "file": str(path),
            "bytes": size,
            "parts": [
                {"name": part.name, "bytes": None if part.body is None else len(part.body), "error": part.error}
                for part in contents
            ],
        },
        lambda: [
            table(("PART", "BYTES", "MISSING BECAUSE"), [_row(part) for part in contents], empty=""),
            Text(f"{path}: {counted(size, 'byte')}. Read it before you send it.", style="bold"),
        ],
    )


def _row(part: Content) -> tuple[object, ...]:
    return part.name, "" if part.body is None else len(part.body), Text(part.error or "", style="yellow")


async def _contents(session: Session, logs: Sequence[Path], metrics: Sequence[str] | None) -> list[Content]:
    settings = session.settings()
    pages = _pages_here(settings) if metrics is None else metrics

    async def setting_values() -> bytes:
        return _json(described(settings))

    local: dict[str, Part] = {"settings.json": setting_values}
    local |= {f"metrics/{number}.txt": partial(_page, url) for number, url in enumerate(pages, 1)}
    local |= {f"logs/{number}-{path.name}": partial(end_of, path) for number, path in enumerate(logs, 1)}
    return [*await collect(local), *await _of_installation(session, settings)]


def _pages_here(settings: Settings) -> list[str]:
    """Return the URLs of the metrics that processes with these settings serve on this machine."""
    metrics = settings.metrics
    places = (
        (metrics.host or settings.server.host, metrics.port if metrics.enabled else 0),
        (metrics.process_host, metrics.process_port),
    )
    return [f"http://{_reachable(host)}:{port}/metrics" for host, port in places if port]


def _reachable(host: str) -> str:
    """Return the address at which a listener on `host` answers its own machine."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - it is not listened on
    return f"[{host}]" if ":" in host else host


async def _of_installation(session: Session, settings: Settings) -> list[Content]:
    """Return the parts that need NATS; without it, one part that says why."""
    try:
        async with session.backend.connect(settings, within=10.0) as installation:
            return await collect(_installation_parts(installation))
    except Exception as error:  # noqa: BLE001 - a bundle is made when things are broken
        return [Content("installation", None, f"{type(error).__name__}: {error}")]


def _installation_parts(installation: "Installation") -> dict[str, Part]:
    async def status() -> bytes:
        return _json(as_json(await status_of(installation)))

    async def findings() -> bytes:
        return _json([asdict(finding) for finding in await examine(bootstrap.health_target(installation), [])])

    return {"status.json": status, "doctor.json": findings, **event_parts(installation.stored)}


def _json(document: object) -> bytes:
    return json.dumps(document, indent=2, default=str).encode()


async def _page(url: str) -> bytes:
    """Return a page of metrics. No error names the URL, which may hold a password."""
    body = b""
    async with httpx.AsyncClient() as client, client.stream("GET", url) as answer:
        if answer.status_code != httpx.codes.OK:
            raise ValueError(f"the answer is {answer.status_code} in place of 200")
        async for piece in answer.aiter_bytes():
            body += piece
            if len(body) > MAX_METRICS:
                raise ValueError(f"the page has more than {MAX_METRICS} bytes")
    if not is_ours(body):
        raise ValueError(
            "no metric of the page begins with `tocsin_`: another program answers there, such as Prometheus, whose usual port is 9090 too. "
            "Name the pages of Tocsin with --metrics"
        )
    return body


def is_ours(page: bytes) -> bool:
    """Return whether a page has a sample of Tocsin, such as `tocsin_build_info`."""
    return re.search(rb"^tocsin_", page, re.MULTILINE) is not None
