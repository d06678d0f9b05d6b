"""Check the servers: version, limits, flushing, disk space."""

import asyncio
import shutil
from pathlib import Path
from typing import Final

from ....domain.text import counted
from ....ports import LogUnavailable, RequestRefused
from ..findings import CheckContext, Finding, bad, ok, warn

LIMIT_WARNING: Final = 0.8
"""Used part of a limit."""
LIMIT_BAD: Final = 0.95
DISK_WARNING: Final = 0.1
"""Free part of a disk."""
DISK_BAD: Final = 0.03


async def version(context: CheckContext) -> Finding:
    """Report a server that is too old (`server-version`)."""
    running, required = context.status.server.version, context.target.inspection.versions
    number = version_of(context)
    if number < required.works:
        oldest = _text(required.works)
        return bad(
            "server-version",
            f"nats-server {running} is older than {oldest}",
            means="leases need a newer version",
            do=f"upgrade every server to {oldest} or newer",
        )
    if number < required.archives:
        oldest = _text(required.archives)
        return warn(
            "server-version",
            f"nats-server {running} is older than {oldest}: nothing is archived",
            means="the streams keep every message; a million messages cost the server about 350 MB",
            do=f"upgrade every server to {oldest} or newer",
        )
    return ok("server-version", f"nats-server {running}")


def version_of(context: CheckContext) -> tuple[int, ...]:
    return tuple(int(part) for part in context.status.server.version.partition("-")[0].split(".") if part.isdigit())


async def limits(context: CheckContext) -> Finding:
    """Report limits that are nearly reached (`jetstream-limits`, `jetstream-off`)."""
    try:
        usages = await context.target.inspection.limits()
    except (LogUnavailable, RequestRefused) as error:
        return bad(
            "jetstream-off",
            f"JetStream cannot be used: {error.description if isinstance(error, RequestRefused) else error}",
            means="nothing can be stored",
            do="enable it in the server's configuration, and for this account",
        )
    near = [
        (
            usage.used / usage.allowed,
            f"{usage.used:,} of {usage.allowed:,} {usage.resource}{f' ({usage.tier})' if usage.tier else ''}",
        )
        for usage in usages
        if usage.used >= LIMIT_WARNING * usage.allowed
    ]
    if not near:
        return ok("jetstream-limits", "JetStream is far from its limits")
    make = bad if max(near)[0] >= LIMIT_BAD else warn
    return make(
        "jetstream-limits",
        f"JetStream is nearly full: {'; '.join(text for _, text in near)}",
        means="at the limit nothing more is stored: no decision, no trigger, no report",
        do="raise the account's limits (`jetstream` of the account in nats-server's configuration), or archive",
    )


async def flushing(context: CheckContext) -> Finding:
    """Report servers that acknowledge writes before they flush them (`sync-interval`)."""
    reports = {url: report for url, report in context.monitors.items() if report is not None}
    silent = [url for url in context.monitors if url not in reports]
    if not reports:
        reason = f": {', '.join(silent)} did not answer" if silent else ""
        return warn(
            "sync-interval",
            f"whether the servers flush every write cannot be known from here{reason}",
            means="by default a server flushes every 2 minutes: a power failure may lose acknowledged writes",
            do="set `sync_interval: always` in `jetstream` of every server, and name their monitoring "
            "endpoints with --monitor to have it checked",
        )
    lazy = [url for url, report in reports.items() if not report.flushes_every_write]
    if lazy:
        return warn(
            "sync-interval",
            f"{', '.join(lazy)}: writes are not flushed before they are acknowledged",
            means="a power failure may lose minutes of acknowledged writes",
            do="set `sync_interval: always` in `jetstream` of the server's configuration",
        )
    return ok("sync-interval", "every write is flushed before it is acknowledged")


async def storage(context: CheckContext) -> list[Finding]:
    """Report streams that store nothing since a write failed (`store-failed`)."""
    return [
        bad(
            "store-failed",
            f"the server at {url} stores nothing in {counted(len(report.failed_streams), 'stream')}: {report.failed_streams[0]}",
            means="no decision, trigger or report is stored there, also after there is room again; none that was acknowledged is lost",
            do="free disk space, then restart this nats-server; the processes of Tocsin go on by themselves",
            streams=list(report.failed_streams),
        )
        for url, report in context.monitors.items()
        if report is not None and report.failed_streams
    ]


async def disk(context: CheckContext) -> list[Finding]:
    """Report little disk space for stores on this machine (`disk-space`)."""
    stores = [report.store_dir for report in context.monitors.values() if report is not None]
    findings = await asyncio.gather(*(asyncio.to_thread(_space, Path(store)) for store in stores if store))
    return [finding for finding in findings if finding is not None]


def _space(folder: Path) -> Finding | None:
    if not folder.is_dir():
        return None
    usage = shutil.disk_usage(folder)
    text = f"{usage.free / 2**30:.1f} GiB are free on the disk of {folder}"
    if usage.free >= DISK_WARNING * usage.total:
        return ok("disk-space", text)
    return (warn if usage.free >= DISK_BAD * usage.total else bad)(
        "disk-space",
        text,
        means="a server whose disk is full stores nothing, and turns JetStream off",
        do="free disk space, or move the store (`store_dir`) to a larger disk",
    )


def _text(number: tuple[int, ...]) -> str:
    return ".".join(map(str, number))
