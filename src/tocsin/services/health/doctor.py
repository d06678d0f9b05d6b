"""Run the checks of `tocsin doctor`."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from ...ports import EventLog, LogUnavailable, UnsupportedLayout
from .checks import (
    archive,
    backlog,
    deadlines,
    definitions,
    processes,
    server,
    streams,
    trigger_sources,
)
from .findings import CheckContext, Finding, bad
from .status import UNAVAILABLE, HealthTarget, status

Check = Callable[[CheckContext], Awaitable[Finding | list[Finding] | None]]


async def is_reached(log: EventLog) -> bool:
    """Return whether the log answers."""
    try:
        await log.now()
    except LogUnavailable:
        return False
    return True


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
    streams.headers,
    streams.screeners,
    processes.machine,
    processes.renewals,
    processes.leaders,
    processes.appends,
    processes.readers,
    processes.absent,
    processes.followers,
    processes.formats,
    backlog.stages,
    backlog.queues,
    backlog.paused,
    backlog.limits,
    backlog.functions,
    definitions.shards,
    definitions.owners,
    definitions.circles,
    definitions.hidden,
    deadlines.occurrences,
    deadlines.executions,
    deadlines.locks,
    backlog.history,
    archive.failures,
    archive.store,
    archive.held,
    backlog.notified,
    trigger_sources.sources,
    trigger_sources.refusals,
    trigger_sources.keys,
    definitions.calendars,
)
"""From the cause to the effect: the servers first, then what depends on them."""


async def examine(target: HealthTarget, monitors: Sequence[str] = ()) -> list[Finding]:
    """Run every check. `monitors`: monitoring endpoints of the servers, e.g. `http://nats-1:8222`.

    If the streams have another layout, that is the only finding, because this version cannot read them.
    """
    try:
        context = await look_at(target, monitors)
    except UnsupportedLayout as refusal:
        means = "no command or stage of this version works with the installation"
        return [bad(refusal.code, refusal.reason, means=means, do=refusal.remedy, stream=refusal.stream)]
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
        found = await check(context)
    except UNAVAILABLE as error:
        if not context.status.is_set_up:
            return []  # another finding reports that the streams do not exist
        name = f"{check.__module__.rpartition('.')[2]}.{check.__name__}"
        found = bad(
            "check-impossible",
            f"the check {name} failed: {error}",
            means="it is unknown whether what it checks is well",
            do="resolve the findings above, and run `tocsin doctor` again",
        )
    return listed(found)


def listed(found: Finding | list[Finding] | None) -> list[Finding]:
    return found if isinstance(found, list) else [] if found is None else [found]
