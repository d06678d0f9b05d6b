"""The state of an installation, as far as a caller sees its jobs."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from heapq import nsmallest
from operator import add
from typing import Final, Protocol, TypeAlias

from pydantic import ConfigDict

from .. import subjects
from ..domain import execution
from ..domain.access import Owned
from ..domain.execution import WaitsFor
from ..domain.execution_record import Recoveries, Status
from ..ports import EventLog
from ..ports.summaries import End, EndCounts, ExecutionHead, HistorySummaries
from .calculations import Effort
from .hold_ups import HoldUp, HoldUpReader
from .jobs import Job, JobStatus
from .jobs.job_follower import JobInstant, NextInstants

MAX_EXAMPLES: Final = 5
MAX_LISTED: Final = 50
MAX_OPEN: Final = 2_000
"""Executions of a status that are read; more are not counted."""
MAX_EXAMINED: Final = 100
"""Open executions of a status whose events are read."""
MAX_ENDS: Final = 50_000
"""The newest ends of a status that are counted."""
MAX_FAILED_JOBS: Final = 200
"""The jobs that failed last, whose newest executions are read."""
JOBS_AT_ONCE: Final = 100
YIELD_EVERY: Final = 1_000
"""Counts after which other tasks run."""
LATE: Final = timedelta(seconds=10)
"""An instant that is not decided after this time is late."""
AHEAD: Final = timedelta(hours=1)
MINUTE: Final = timedelta(minutes=1)
MINUTES: Final = 60

Sees: TypeAlias = Callable[[Owned], bool]


class SeesRun(Protocol):
    """Whether a caller may see an execution."""

    async def __call__(self, job: str, definition: int | None, status: str, at: datetime) -> bool:
        """Check an execution under a definition (see `ExecutionRow`); `at`: its end, or its scheduled time."""


@dataclass(frozen=True, slots=True)
class Instant:
    """An instant of a job."""

    at: datetime
    job: str


@dataclass(slots=True)
class JobsNow:
    """The jobs by state, and their instants around now."""

    states: Counter[JobStatus] = field(default_factory=Counter)
    late: list[Instant] = field(default_factory=list)
    """The oldest instants that are due and not decided."""
    late_count: int = 0
    upcoming: list[Instant] = field(default_factory=list)
    """The next instant of each job in the next hour, the earliest first."""
    upcoming_count: int = 0
    is_complete: bool = True
    """False: the calculation took too long for all jobs."""


def jobs_now(jobs: Sequence[Job], sees: Sees, instants: NextInstants, now: datetime, effort: Effort) -> JobsNow:
    """Count the jobs that a caller sees, and find their late and next instants."""
    result, late, upcoming = JobsNow(), list[JobInstant](), list[JobInstant]()
    with instants.following(jobs, effort) as result.is_complete:
        for audience in instants.seen(sees):
            result.states.update(audience.states)
            is_late = audience.instants.before(now - LATE)
            is_next = audience.instants.between(now, now + AHEAD)
            late += is_late[:MAX_LISTED]
            upcoming += is_next[:MAX_LISTED]
            result.late_count += len(is_late)
            result.upcoming_count += len(is_next)
    result.late, result.upcoming = _first(late), _first(upcoming)
    return result


def _first(instants: Iterable[JobInstant]) -> list[Instant]:
    return [Instant(*instant) for instant in nsmallest(MAX_LISTED, instants)]


@dataclass(frozen=True, slots=True)
class WaitingExecution:
    """An execution that waits."""

    execution_id: str
    job: str
    scheduled_time: datetime
    held_up_by: tuple[HoldUp, ...] = ()
    """What holds back its tasks that wait for a worker."""


@dataclass(slots=True)
class Waiting:
    """The executions that wait for one thing."""

    count: int = 0
    examples: list[WaitingExecution] = field(default_factory=list)
    """Those that were scheduled first."""


@dataclass(slots=True)
class OpenExecutions:
    """The executions that are not over, as the history knows them a moment ago."""

    running: Sequence[ExecutionHead]
    """Those of which a worker has started a step, oldest first."""
    pending: Sequence[ExecutionHead]
    """Those of which no worker has started a step, oldest first."""
    is_complete: bool
    """False: there are more, which were not read."""
    examined: int = 0
    """The number of executions whose events were read."""
    waiting: Mapping[WaitsFor, Waiting] = field(default_factory=dict)
    """What the examined executions wait for."""


async def open_executions(
    log: EventLog,
    summaries: HistorySummaries,
    hold_ups: HoldUpReader,
    sees: SeesRun,
    namespaces: Collection[str] | None = None,
) -> OpenExecutions:
    """Return the open executions that a caller sees.

    `namespaces` of the caller; None: all.
    """
    running, is_all_running = await _oldest(summaries, "running", sees, namespaces)
    pending, is_all_pending = await _oldest(summaries, "pending", sees, namespaces)
    result = OpenExecutions(running, pending, is_all_running and is_all_pending)
    examined = [*pending[:MAX_EXAMINED], *running[:MAX_EXAMINED]]
    result.examined = len(examined)
    result.waiting = await _waiting(log, hold_ups, examined)
    return result


async def _oldest(
    summaries: HistorySummaries, status: Status, sees: SeesRun, namespaces: Collection[str] | None
) -> tuple[Sequence[ExecutionHead], bool]:
    heads = await summaries.oldest(status, limit=MAX_OPEN, namespaces=namespaces)
    return [head for head in heads if await _sees_head(sees, head)], len(heads) < MAX_OPEN


async def _sees_head(sees: SeesRun, head: ExecutionHead) -> bool:
    return await sees(head.job_name, head.definition, head.status, head.completed_at or head.scheduled_time)


async def _waiting(log: EventLog, hold_ups: HoldUpReader, heads: Sequence[ExecutionHead]) -> Mapping[WaitsFor, Waiting]:
    waiting: dict[WaitsFor, Waiting] = defaultdict(Waiting)
    if not heads:
        return waiting
    loaded = await log.load_each(*(subjects.execution(head.job_name, head.execution_id) for head in heads))
    for head, facts in zip(heads, loaded.facts, strict=True):
        reason = execution.waits_for(execution.fold(facts))
        if reason is None:
            continue
        of_reason = waiting[reason]
        of_reason.count += 1
        if len(of_reason.examples) < MAX_EXAMPLES:
            held_up_by = await hold_ups.of(facts) if reason == "worker" else ()
            of_reason.examples.append(
                WaitingExecution(head.execution_id, head.job_name, head.scheduled_time, held_up_by)
            )
    return waiting


@dataclass(frozen=True, slots=True)
class FailingJob:
    """A job whose last execution with a result failed."""

    job: str
    since: datetime
    """The scheduled time of the first failure since the last success, as far as the history goes back."""
    failures: int
    """The number of failures since then, at most 10,000."""
    execution_id: str
    """The last of them."""
    error: str | None


async def failing_jobs(
    summaries: HistorySummaries,
    is_seen: Callable[[str], bool],
    sees: SeesRun,
    namespaces: Collection[str] | None = None,
) -> Sequence[FailingJob]:
    """Return the jobs that fail, and that a caller sees, the last to fail first.

    `is_seen` is false for a job that is not registered. `namespaces`: as for `open_executions`.
    """
    failed = await summaries.failed_jobs(failures=MAX_ENDS, limit=MAX_FAILED_JOBS, namespaces=namespaces)
    names = [name for name in failed if is_seen(name)]
    failing = list[FailingJob]()
    for begin in range(0, len(names), JOBS_AT_ONCE):
        streaks = await summaries.streaks(names[begin : begin + JOBS_AT_ONCE])
        for job, streak in streaks.items():
            last = streak.last
            if await _sees_head(sees, last):
                since, count = streak.first.scheduled_time, streak.count
                if not await _sees_head(sees, streak.first):  # it ran under a registration before, of other viewers
                    since, count = last.scheduled_time, 1
                failing.append(FailingJob(job, since, count, last.execution_id, last.error))
    return failing


@dataclass(slots=True)
class Rate:
    """The executions that ended in a minute."""

    start: datetime
    completed: int = 0
    failed: int = 0
    skipped: int = 0
    cancelled: int = 0


async def rates(counts: EndCounts, now: datetime, sees: SeesRun | None) -> Sequence[Rate]:
    """Return the ends that a caller sees, of each minute from `counts.since` to now.

    `sees`: None for a caller that sees all.
    """
    starts = (counts.since + number * MINUTE for number in range((now - counts.since) // MINUTE + 1))
    by_minute = {start: Rate(start) for start in starts}
    for status, ends in counts.counts.items():
        totals = await _seen_ends(status, ends, sees)
        for minute, total in totals.items():
            if (rate := by_minute.get(minute)) is not None:
                setattr(rate, status, total)
    return list(by_minute.values())


async def _seen_ends(status: Status, ends: Mapping[End, int], sees: SeesRun | None) -> Mapping[datetime, int]:
    totals, decided = Counter[datetime](), dict[tuple[str, int], bool]()
    for number, ((minute, job, definition), count) in enumerate(ends.items(), 1):
        if number % YIELD_EVERY == 0:
            await asyncio.sleep(0)  # other tasks run
        is_seen: bool | None = True
        if sees is not None and job is not None:
            run = None if definition is None else (job, definition)  # else the time decides too
            is_seen = None if run is None else decided.get(run)
            if is_seen is None:
                is_seen = await sees(job, definition, status, minute)
            if run is not None:
                decided[run] = is_seen
        if is_seen:
            totals[minute] += count
    return totals


def first_minute(now: datetime) -> datetime:
    """Return the beginning of the last hour in whole minutes."""
    return now.replace(second=0, microsecond=0) - (MINUTES - 1) * MINUTE


@dataclass(frozen=True, slots=True)
class ExecutionStats:
    """The hand-off of executions to workers.

    `success_rate` is a percentage of the executions that reached a worker or were lost.
    """

    total_executions: int
    """Executions that reached a worker, were lost, or are pending."""
    successful_executions: int
    """Executions that a worker claimed or reported on."""
    lost_executions: int
    """Executions that failed without a worker, or were lost and have not reached one since."""
    pending_executions: int
    success_rate: float | None
    """None: there is no execution to compute it from."""


@dataclass(frozen=True, slots=True)
class RecoveryStats:
    """The outcomes of recoveries; an unfinished recovery counts as an attempt only."""

    total_recovery_attempts: int
    successful_recoveries: int
    """Recoveries after which a worker had the execution."""
    failed_recoveries: int
    """Recoveries after which the execution was lost again or failed."""
    abandoned_recoveries: int
    """Executions that were lost for good."""
    recovery_success_rate: float | None


def _percentage(good: int, bad: int) -> float | None:
    return 100.0 * good / (good + bad) if good + bad else None


MAX_COUNTED: Final = 200_000
"""The executions that are counted: the last that were scheduled."""


@dataclass(frozen=True, slots=True)
class Statistics:
    """Counts of executions that were scheduled from `since` to `until` (UTC), and recoveries."""

    __pydantic_config__ = ConfigDict(use_attribute_docstrings=True)

    since: datetime
    """Later than requested if there are too many executions."""
    until: datetime
    executions: ExecutionStats
    recoveries: RecoveryStats


async def statistics(
    summaries: HistorySummaries,
    *,
    since: datetime,
    now: datetime,
    job: str | None = None,
    sees: SeesRun | None = None,
    namespaces: Collection[str] | None = None,
) -> Statistics:
    """Count the executions that were scheduled since an instant (UTC), and their recoveries.

    `sees` decides which executions count, and `namespaces` are the namespaces of the caller; None: all.
    """
    found = await summaries.hand_overs(since, limit=MAX_COUNTED, job=job, namespaces=namespaces)
    successful = lost = pending = 0
    recoveries = Recoveries()
    for group, (count, of_group) in found.groups.items():
        if sees is not None and not await sees(group.job_name, group.definition, group.status, since):
            continue
        recoveries = Recoveries(*map(add, recoveries, of_group))
        if group.was_handed_over:
            successful += count
        elif group.is_recovering or group.status == "failed":
            lost += count
        elif group.status in {"pending", "running"}:
            pending += count
    total, rate = successful + lost + pending, _percentage(successful, lost)
    counts = ExecutionStats(total, successful, lost, pending, rate)
    of_recoveries = RecoveryStats(*recoveries, _percentage(recoveries.successful, recoveries.failed))
    return Statistics(found.since, now, counts, of_recoveries)
