"""Count from the log how well executions reach their workers.

One pass reads the headers of a few kinds of facts, and the bodies of failed executions only. Nothing is stored for it, so
the numbers always agree with the log. Archived executions are not counted.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, TypeAlias, cast, get_args

from .. import subjects
from ..domain.events import Failed
from ..domain.execution_stats import ExecutionStats, Happening, RecoveryStats, Tally
from ..ports import EventLog, Heading
from ..subjects import DecodeError, Stream

AT_ONCE: Final = 64
HAPPENINGS: Final[tuple[Happening, ...]] = get_args(Happening)
SeesExecution: TypeAlias = Callable[[str, datetime], Awaitable[bool]]
"""Returns whether a reader may see an execution of a job that began at a time (UTC)."""


@dataclass(frozen=True, slots=True)
class Statistics:
    """Executions that started and recoveries, from `since` to `until` (UTC)."""

    since: datetime
    until: datetime
    executions: ExecutionStats
    recoveries: RecoveryStats


async def statistics(
    log: EventLog, *, since: datetime, job: str | None = None, sees: SeesExecution | None = None
) -> Statistics:
    """Count executions and recoveries since an instant (UTC).

    Args:
        log: the event log.
        since: the first instant.
        job: the only job that counts; None: all jobs.
        sees: decides which executions count, by their first event since then; None: all count.

    Raises:
        LogUnavailable: the log does not answer.
    """
    until = await log.now()
    tally, failures, seen = Tally(), list[Heading](), dict[tuple[str, str], bool]()
    others = set(HAPPENINGS) - {"planned", "admitted", "completed"}
    of_others = (subjects.filter_for(f"execution.{event_type}") for event_type in others)
    filters = (*subjects.openings(), *subjects.COMPLETIONS, *of_others)
    watching = cast("Any", log.watch(Stream.LOG, *filters, after=since))
    try:
        async for batch in watching:
            for heading in batch.headings:
                name, execution = subjects.job_of(heading.subject), subjects.entity_of(heading.subject)
                if job not in {None, name}:
                    continue
                if sees is not None:
                    if (name, execution) not in seen:
                        seen[name, execution] = await sees(name, heading.time)
                    if not seen[name, execution]:
                        continue
                event_type = subjects.event_type(heading.subject)
                tally.record(execution, cast("Happening", event_type))
                if event_type == "failed":
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
        failed = await log.get(heading.subject, heading.sequence)
        if failed is None or not isinstance(failed.message, Failed):
            return
        scope = subjects.scope_of(failed.message)
        tally.failed(execution, failed.message, [] if tally.was_handed(execution) else await log.load(scope))
    except DecodeError:
        return  # from a newer version: the failure counts, its reason is unknown
