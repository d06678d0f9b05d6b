"""The server: its version, what it grants, whether what it acknowledges is on the disk."""

import asyncio
import shutil
from pathlib import Path
from typing import Final

from ...adapters.nats.client.connection import JetStreamError, Json
from ...adapters.nats.server.monitor import OLDEST_SERVER, PURGES_SAFELY
from ...ports import LogUnavailable
from ..context import CheckContext
from ..finding import Finding, bad, ok, warn

NEARLY: Final = 0.8
"""The part of a limit from which it is worth a word."""
FULL: Final = 0.95
LITTLE: Final = 0.1
"""The part of a disk that should be free."""
NOTHING: Final = 0.03
_LIMITS: Final = (
    ("max_storage", "storage", "bytes of disk"),
    ("max_memory", "memory", "bytes of memory"),
    ("max_streams", "streams", "streams"),
    ("max_consumers", "consumers", "consumers"),
)


async def version(look: CheckContext) -> list[Finding]:
    """`server-version`."""
    found = look.status.server.version
    number = tuple(int(part) for part in found.partition("-")[0].split(".") if part.isdigit())
    if number < OLDEST_SERVER:
        return [
            bad(
                "server-version",
                f"nats-server {found} is older than {OLDEST_SERVER}",
                means="timers and leases need what came later; streams may hang",
                do=f"upgrade every server to {OLDEST_SERVER} or newer",
            )
        ]
    if number < PURGES_SAFELY:
        return [
            warn(
                "server-version",
                f"nats-server {found} is older than {PURGES_SAFELY}: nothing is archived",
                means="the streams keep all that ever happened; a million messages cost the server about 350 MB",
                do=f"upgrade every server to {PURGES_SAFELY} or newer",
            )
        ]
    return [ok("server-version", f"nats-server {found}")]


async def limits(look: CheckContext) -> list[Finding]:
    """`jetstream-limits`, `jetstream-off`."""
    try:
        account = await look.inspection.account()
    except LogUnavailable as error:
        return [_off(str(error))]
    except JetStreamError as error:
        return [_off(error.description)]
    tiers: dict[str, Json] = account.get("tiers") or {"": account}
    near = [
        (used / allowed, f"{used:,} of {allowed:,} {what}{f' ({name})' if name else ''}")
        for name, tier in tiers.items()
        for limit, counted, what in _LIMITS
        if (allowed := tier.get("limits", {}).get(limit, -1)) > 0 and (used := tier.get(counted, 0)) >= NEARLY * allowed
    ]
    if not near:
        return [ok("jetstream-limits", "JetStream's limits are far")]
    make = bad if max(near)[0] >= FULL else warn
    return [
        make(
            "jetstream-limits",
            f"JetStream is nearly full: {'; '.join(text for _, text in near)}",
            means="at the limit nothing is stored any more: no decision, no trigger, no report",
            do="raise the account's limits (`jetstream` of the account in nats-server's configuration), or archive",
        )
    ]


async def flushing(look: CheckContext) -> list[Finding]:
    """`sync-interval`: "acknowledged" survives a power failure only where every write is flushed."""
    known = {url: said for url, said in look.monitors.items() if said is not None}
    silent = [url for url in look.monitors if url not in known]
    if not known:
        asked = f": {', '.join(silent)} did not answer" if silent else ""
        return [
            warn(
                "sync-interval",
                f"whether the servers flush every write cannot be known from here{asked}",
                means="by default a server flushes every 2 minutes: a power failure may lose what it acknowledged",
                do="set `sync_interval: always` in `jetstream` of every server, and name their monitoring "
                "endpoints with --monitor to have it checked",
            )
        ]
    lazy = [
        url for url, said in known.items() if not (said.get("jetstream", {}).get("config") or {}).get("sync_always")
    ]
    if lazy:
        return [
            warn(
                "sync-interval",
                f"{', '.join(lazy)}: writes are not flushed before they are acknowledged",
                means="a power failure may lose minutes of what was acknowledged",
                do="set `sync_interval: always` in `jetstream` of the server's configuration",
            )
        ]
    return [ok("sync-interval", "every write is flushed before it is acknowledged")]


async def disk(look: CheckContext) -> list[Finding]:
    """`disk-space`, of stores that lie on this machine."""
    stores = [
        ((said or {}).get("jetstream", {}).get("config") or {}).get("store_dir") for said in look.monitors.values()
    ]
    found = await asyncio.gather(*(asyncio.to_thread(_space, Path(store)) for store in stores if store))
    return [finding for finding in found if finding is not None]


def _space(folder: Path) -> Finding | None:
    if not folder.is_dir():
        return None
    usage = shutil.disk_usage(folder)
    text = f"{usage.free / 2**30:.1f} GiB are free on the disk of {folder}"
    if usage.free >= LITTLE * usage.total:
        return ok("disk-space", text)
    return (warn if usage.free >= NOTHING * usage.total else bad)(
        "disk-space",
        text,
        means="a server whose disk is full stores nothing, and turns JetStream off",
        do="make room, or move the store (`store_dir`) to a larger disk",
    )


def _off(reason: str) -> Finding:
    return bad(
        "jetstream-off",
        f"JetStream cannot be used: {reason}",
        means="nothing can be stored",
        do="enable it in the server's configuration, and for this account",
    )
