"""How well executions reach their executors, counted from the log: for the command line and the HTTP API alike.

One pass over the headings of a few facts, and a look into those executions alone that failed. Nothing is kept for it, so
that the answer is as true as the log is; what has left the log for the archive is not in it.
"""

import asyncio
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, cast, get_args

from .. import subjects
from ..domain.events import Failed
from ..domain.execution_stats import ExecutionStats, Happening, RecoveryStats, Tally
from ..ports import EventLog, Heading
from ..subjects import DecodeError, Stream

AT_ONCE: Final = 64
HAPPENINGS: Final[tuple[Happening, ...]] = get_args(Happening)


@dataclass(frozen=True, slots=True)
class Statistics:
    """What was counted: executions that began, and recoveries that were tried, from `since` to `until` (UTC)."""

    since: datetime
    until: datetime
    executions: ExecutionStats
    recoveries: RecoveryStats


async def statistics(log: EventLog, *, since: datetime) -> Statistics:
    """Count what the log stored since an instant (UTC), up to now.

    Raises:
        LogUnavailable: it does not answer.
    """
    until = await log.now()
    tally, failures = Tally(), list[Heading]()
    filters = (subjects.filter_for(f"execution.{what}") for what in HAPPENINGS)
    watching = cast("Any", log.watch(Stream.LOG, *filters, after=since))
    try:
        async for batch in watching:
            for heading in batch.headings:
                what = subjects.event_type(heading.subject)
                tally.record(subjects.entity_of(heading.subject), cast("Happening", what))
                if what == "failed":
                    failures.append(heading)
            if batch.caught_up:
                break
    finally:
        await watching.aclose()
    for i in range(0, len(failures), AT_ONCE):
        await asyncio.gather(*(_look_into(log, tally, heading) for heading in failures[i : i + AT_ONCE]))
    return Statistics(since, until, tally.executions(), tally.recoveries())


async def _look_into(log: EventLog, tally: Tally, heading: Heading) -> None:
    execution = subjects.entity_of(heading.subject)
    try:
        failed = await log.get(Stream.LOG, heading.sequence)
        if failed is None or not isinstance(failed.message, Failed):
            return
        scope = subjects.scope_of(failed.message)
        tally.failed(execution, failed.message, [] if tally.was_handed(execution) else await log.load(scope))
    except DecodeError:
        return  # of a newer version: that it failed is known, and why is not
