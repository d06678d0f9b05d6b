"""Runs the checks. A check that cannot be made for trouble with what it asks is a finding too."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from ..adapters.nats.admin.inspection import Inspection
from ..adapters.nats.server.monitor import server_variables
from ..bootstrap import Installation
from .checks import clocks, deadlines, durables, history, server, streams
from .context import CheckContext
from .finding import Finding, bad
from .status import UNKNOWN, status

Check = Callable[[CheckContext], Awaitable[list[Finding]]]

CHECKS: Final[tuple[Check, ...]] = (
    server.version,
    server.limits,
    server.flushing,
    server.disk,
    streams.unanswered,
    streams.streams,
    streams.replicas,
    streams.durables,
    streams.key,
    clocks.machine,
    clocks.leaders,
    durables.stages,
    durables.queues,
    deadlines.timers,
    deadlines.occurrences,
    deadlines.executions,
    deadlines.locks,
    history.place,
)
"""In the order in which one would look."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the installation itself does not tell."""

    monitors: Sequence[str] = ()
    """The servers' monitoring endpoints, e.g. `http://nats-1:8222`."""


async def examine(installation: Installation, options: Options = Options()) -> list[Finding]:
    """Make every check."""
    look = await look_at(installation, options)
    found = [await _made(check, look) for check in CHECKS]
    return [finding for findings in found for finding in findings]


async def look_at(installation: Installation, options: Options = Options()) -> CheckContext:
    """What the checks are made on."""
    seen = await status(installation)
    said = await asyncio.gather(*(asyncio.to_thread(server_variables, url) for url in options.monitors))
    try:
        now = await installation.log.now()
    except UNKNOWN:
        now = seen.at
    inspection = Inspection(installation.connection, installation.names)
    return CheckContext(installation, inspection, seen, now, dict(zip(options.monitors, said, strict=True)))


async def _made(check: Check, look: CheckContext) -> list[Finding]:
    try:
        return await check(look)
    except UNKNOWN as error:
        if not look.status.is_set_up:
            return []  # told already: what it asks does not exist
        name = f"{check.__module__.rpartition('.')[2]}.{check.__name__}"
        return [
            bad(
                "check-impossible",
                f"the check {name} could not be made: {error}",
                means="what it looks for is not known",
                do="look at the findings above, and check again",
            )
        ]
