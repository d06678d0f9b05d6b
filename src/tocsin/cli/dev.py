"""`tocsin dev`: everything in one process, with a NATS server of its own, and a live view of what happens."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from .. import __version__
from ..registry import Registry
from ..settings import Settings, origins, shown
from . import following
from .apply import apply_files, as_json, summary
from .live import LiveView
from .loading import load_worker
from .running import serve
from .session import Session, session_of
from .stopping import until_done

if TYPE_CHECKING:
    from ..bootstrap import Installation
    from ..worker import Worker


def dev(
    context: typer.Context,
    jobs: Annotated[
        list[str] | None, typer.Option("--jobs", "-f", metavar="FILE|FOLDER", help="Definitions to apply first.")
    ] = None,
    worker: Annotated[
        str | None, typer.Option(metavar="MODULE:ATTRIBUTE", help="A worker to run as well, in a module or in FILE.py.")
    ] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65_535, help="For the server; by default 4222, or a free one.")
    ] = None,
    ephemeral: Annotated[bool, typer.Option("--ephemeral", help="Keep nothing when it ends.")] = False,
    data_dir: Annotated[Path | None, typer.Option(metavar="FOLDER", help="What is kept is kept here.")] = None,
) -> None:
    """Run everything here and show what happens, until Ctrl-C.

    Starts a NATS server of its own, unless --nats or TOCSIN_NATS_URL names one.
    """
    session = session_of(context)
    made = load_worker(worker) if worker else None
    serve(_dev(session, jobs or [], made, port=port, data_dir=data_dir, ephemeral=ephemeral))


async def _dev(
    session: Session,
    jobs: Sequence[str],
    worker: "Worker | None",
    *,
    port: int | None,
    data_dir: Path | None,
    ephemeral: bool,
) -> None:
    async with AsyncExitStack() as stack:
        if ephemeral:
            data_dir = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tocsin-")))
        settings = await stack.enter_async_context(_server(session, port, data_dir))
        installation = await stack.enter_async_context(session.backend.connect(settings))
        await session.backend.initialize(installation)
        kept = "nothing is kept" if ephemeral else f"data in {settings.data_dir}"
        server = shown(settings)["nats.url"]
        _say(session, "tocsin", f"{__version__} on {server}, {kept}", nats_url=server)
        after = await following.newest(installation.log)
        if jobs or settings.jobs_file:
            registry = Registry(installation.log, installation.projections)
            plan = await apply_files(registry, settings, jobs)
            _say(session, "jobs", summary(plan).plain, **as_json(plan))
        await _run(session, installation, worker, LiveView(session.output).run(installation.log, after=after))


async def _run(
    session: Session, installation: "Installation", worker: "Worker | None", view: Coroutine[Any, Any, None]
) -> None:
    """Run the parts, the view first and the worker last; end them the other way round, each when those behind it ended."""
    ready = asyncio.Event()
    parts = [asyncio.create_task(view)]
    try:
        stages = session.backend.run_stages(installation, session.backend.stages(), ready=ready)
        parts.append(asyncio.create_task(stages))
        await _first(parts, ready)
        if worker is not None:
            work = session.backend.run_worker(installation, worker)
            parts.append(asyncio.create_task(until_done(work, stop=worker.stop)))
        _say(session, "ready", "Ctrl-C ends it")
        await _first(parts)
    finally:
        _say(session, "ending", "what runs is finished first; Ctrl-C once more ends at once")
        for part in reversed(parts):
            part.cancel()
            await asyncio.wait([part])


async def _first(parts: Sequence["asyncio.Task[None]"], event: asyncio.Event | None = None) -> None:
    """Wait for an event, but not past the end of any part: none of them ends by itself unless it fails."""
    waiting = asyncio.create_task((event or asyncio.Event()).wait())
    try:
        await asyncio.wait([waiting, *parts], return_when=asyncio.FIRST_COMPLETED)
        for part in parts:
            if part.done():
                part.result()
    finally:
        waiting.cancel()


@asynccontextmanager
async def _server(session: Session, port: int | None, data_dir: Path | None) -> AsyncIterator[Settings]:
    """The settings, with the URL of a server: one that was named for this very call, else one of our own.

    A configuration file does not count: what it names may be in production.
    """
    settings = session.settings(data_dir=data_dir)
    origin = origins(settings)["nats.url"]
    if origin == "command line" or origin.startswith("TOCSIN_"):
        yield settings
        return
    async with session.backend.nats_server(settings.data_dir / "nats", port) as server:
        yield session.settings(data_dir=data_dir, nats__url=server.url)


def _say(session: Session, event: str, text: str, **particulars: object) -> None:
    """A line about the whole, between those about executions."""
    line = Text.assemble((f"{event:<8}", "bold"), (f"  {text}", "dim"))
    session.output.line({"event": event, "text": text, **particulars}, line)
