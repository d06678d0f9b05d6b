"""Run the checks of `tocsin doctor`."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from .checks import (
    archive,
    backlog,
    calendars,
    clocks,
    deadlines,
    dependencies,
    notifications,
    partitions,
    screeners,
    server,
    streams,
    trigger_sources,
    triggers,
)
from .findings import CheckContext, Finding, bad
from .status import UNAVAILABLE, HealthTarget, status

Check = Callable[[CheckContext], Awaitable[list[Finding]]]

CHECKS: Final[tuple[Check, ...]] = (
    server.version,
    server.limits,
    server.flushing,
    server.storage,
    server.disk,
    streams.unanswered,
    streams.streams,
    streams.room,
    streams.replicas,
    streams.durables,
    streams.key,
    streams.foreign,
    streams.unreadable,
    screeners.headers,
    screeners.screeners,
    clocks.machine,
    clocks.renewals,
    clocks.leaders,
    backlog.stages,
    backlog.queues,
    backlog.paused,
    backlog.limits,
    backlog.functions,
    partitions.shards,
    partitions.owners,
    dependencies.circles,
    dependencies.hidden,
    deadlines.timers,
    deadlines.occurrences,
    deadlines.executions,
    deadlines.locks,
    backlog.history,
    archive.failures,
    archive.store,
    notifications.delivery,
    trigger_sources.sources,
    trigger_sources.refusals,
    triggers.keys,
    calendars.ends,
)
"""From the cause to the effect: the servers first, then what depends on them."""


async def examine(target: HealthTarget, monitors: Sequence[str] = ()) -> list[Finding]:
    """Run every check. `monitors`: monitoring endpoints of the servers, e.g. `http://nats-1:8222`.

    If the streams have another layout, that is the only finding, because this version cannot read them.
    """
    if refusal := await streams.layout(target):
        return [refusal]
    context = await look_at(target, monitors)
    findings = [await _run(check, context) for check in CHECKS]
    return [finding for of_check in findings for finding in of_check]


async def look_at(target: HealthTarget, monitors: Sequence[str] = ()) -> CheckContext:
    """Collect what the checks need.

    The time is read first: nothing is late because the reads take long.
    """
    try:
        now = await target.log.now()
    except UNAVAILABLE:
        now = target.clock.now()
    snapshot = await status(target)
    reports = await asyncio.gather(*map(target.inspection.monitor, monitors))
    return CheckContext(target, snapshot, now, dict(zip(monitors, reports, strict=True)))


async def _run(check: Check, context: CheckContext) -> list[Finding]:
    """Run a check; a check that gets no answer is a finding too."""
    try:
        return await check(context)
    except UNAVAILABLE as error:
        if not context.status.is_set_up:
            return []  # another finding reports that the streams do not exist
        name = f"{check.__module__.rpartition('.')[2]}.{check.__name__}"
        return [
            bad(
                "check-impossible",
                f"the check {name} failed: {error}",
                means="it is unknown whether what it checks is well",
                do="resolve the findings above, and run `tocsin doctor` again",
            )
        ]
