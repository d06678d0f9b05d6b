"""The executions of a job: records in the log, and outcomes."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from operator import attrgetter
from statistics import median
from typing import Final, Literal, NamedTuple, TypeAlias, cast

from .. import ledger, lock, start_jitter
from ..events import (
    Acquired,
    Cancelled,
    DefinitionFact,
    ExecutionFact,
    Failed,
    LockFact,
    Message,
    Planned,
    Queued,
    Recorded,
    Requested,
    Skipped,
    Started,
    Terminal,
    TriggerKind,
    unfold,
)
from ..ledger import Ledger
from ..lock import Lock
from ..replay import Decision, Past

NOT_PLANNED: Final = frozenset({"disabled", "dst_skip", "refused", "no_shard", "namespace_quota"})
"""Reasons of skips that never become executions: the planner stores them for instants or triggers."""
BY_LOCK: Final = frozenset({"overlap_skip", "queue_full"})
"""Reasons of skips that the replay decides itself; the others are replayed as recorded."""
SUPERSEDED: Final = "superseded"
"""The reason of a cancellation under `cancel_previous`."""
REQUESTED: Final = "requested"
"""The reason of any other cancellation."""
_ZERO: Final = timedelta()

Shard: TypeAlias = str | None
Status: TypeAlias = Literal["waiting", "running", "completed", "failed", "cancelled", "skipped"]


class Moment(NamedTuple):
    """The place of an event in its stream."""

    time: datetime
    sequence: int


@dataclass(slots=True)
class Run:
    """The record of one execution in the log."""

    execution_id: str
    shard: Shard = None
    request: Requested | None = None
    begun: Moment | None = None
    """Its first event; None: it began before the log was read."""
    queued: Moment | None = None
    acquired: Moment | None = None
    admitted: Moment | None = None
    started_at: datetime | None = None
    """The first claim of a step."""
    ended: Moment | None = None
    end: Terminal | Skipped | None = None
    superseded_by: str | None = None
    """The execution for which `cancel_previous` ended it."""
    cancellations: list[Moment] = field(default_factory=list)
    """When `cancel_previous` ended other executions for it: a holder, and then waiting executions that got its lock."""
    blocker: str | None = None
    """The holder of the lock when it began to wait, or when it was skipped."""
    predecessor: str | None = None
    """The holder of the lock before it."""

    @property
    def held_from(self) -> Moment | None:
        """The moment at which it acquired its lock, or without a lock was admitted."""
        return self.acquired or self.admitted

    @property
    def held(self) -> Moment | None:
        """The same, unless it had ended before."""
        held_from = self.held_from
        return None if held_from is None or (self.ended is not None and self.ended < held_from) else held_from

    @property
    def was_skipped_by_lock(self) -> bool:
        return isinstance(self.end, Skipped) and self.end.reason in BY_LOCK

    @property
    def status(self) -> tuple[Status, str | None]:
        """The status, and the reason if it has ended."""
        match self.end:
            case None:
                return "waiting" if self.held is None else "running", None
            case Skipped() as end:
                return "skipped", end.reason
            case Cancelled():
                return "cancelled", REQUESTED if self.superseded_by is None else SUPERSEDED
            case Failed() as end:
                return "failed", end.reason
            case _:
                return "completed", None


@dataclass(slots=True)
class Runs:
    """The executions of a job, from events in the order of the log."""

    since: datetime
    by_id: dict[str, Run] = field(default_factory=dict)
    locks: dict[Shard, Lock] = field(default_factory=dict)
    """The locks as they were at `since`."""
    sequence: int = 0
    """The last sequence of the events up to `since`."""
    finished: list[Run] = field(default_factory=list)
    """The executions that were over at `since`."""
    _holders: dict[Shard, str] = field(default_factory=dict)

    def learn(self, facts: Iterable[Recorded[Message]]) -> None:
        for recorded in unfold(facts):
            fact, moment = recorded.message, Moment(recorded.time, recorded.sequence)
            if isinstance(fact, LockFact):
                self._learn_lock(fact, moment, recorded)
            elif isinstance(fact, ExecutionFact):
                self._learn_execution(fact, moment)
            if recorded.time <= self.since:
                self.sequence = max(self.sequence, recorded.sequence)

    def finish(self) -> None:
        """Separate the executions that were over before the window from the others."""
        holders = {state.holder for state in self.locks.values()}
        known, self.by_id = self.by_id, {}
        for name, run in known.items():
            is_over = run.ended is not None and run.ended.time <= self.since
            if name in holders or (run.begun is not None and not is_over):
                self.by_id[name] = run
            elif run.begun is not None:
                self.finished.append(run)

    def _learn_lock(self, fact: LockFact, moment: Moment, recorded: Recorded[Message]) -> None:
        run = self._run(fact.execution_id, fact.shard)
        if isinstance(fact, Acquired):
            run.acquired = run.acquired or moment
            run.predecessor = run.predecessor or self._holders.get(fact.shard)
            self._holders[fact.shard] = fact.execution_id
        elif isinstance(fact, Queued):
            run.queued = run.queued or moment
            run.blocker = self._holders.get(fact.shard)
        if moment.time <= self.since:
            self.locks[fact.shard] = lock.evolve(self.locks.get(fact.shard, lock.initial), recorded)

    def _learn_execution(self, fact: ExecutionFact, moment: Moment) -> None:
        match fact:
            case Skipped() if fact.reason in NOT_PLANNED:
                return
            case Requested():
                run = self._run(fact.execution_id, fact.plan.shard)
                run.begun, run.request = run.begun or moment, fact
                if not isinstance(fact, Planned):
                    run.admitted = run.admitted or moment
            case Started():
                run = self._run(fact.execution_id, None)
                run.started_at = run.started_at or moment.time
            case Skipped() | Terminal():
                run = self._run(fact.execution_id, fact.shard)
                run.ended, run.end = run.ended or moment, run.end or fact
                self._learn_end(run, fact, moment)
            case _:
                pass

    def _learn_end(self, run: Run, end: Skipped | Terminal, moment: Moment) -> None:
        if isinstance(end, Skipped):
            run.blocker = end.active_execution_id
        elif isinstance(end, Cancelled) and (end.reason or "").startswith(lock.SUPERSEDED_BY) and end.by is None:
            run.superseded_by = (end.reason or "").removeprefix(lock.SUPERSEDED_BY)
            self._run(run.superseded_by, end.shard).cancellations.append(moment)

    def _run(self, execution_id: str, shard: Shard) -> Run:
        if (run := self.by_id.get(execution_id)) is None:
            run = self.by_id[execution_id] = Run(execution_id, shard)
        return run


@dataclass(frozen=True)
class RecordedJob:
    """The past of a job, and its executions since the window began."""

    past: Past
    runs: Runs

    @property
    def job(self) -> str:
        return self.past.job

    @cached_property
    def start(self) -> Ledger:
        """The ledger at the beginning of the window."""
        return ledger.fold(fact for fact in self.facts if fact.time <= self.runs.since)

    @cached_property
    def changes(self) -> Sequence[Recorded[DefinitionFact]]:
        """The events on its definition in the window."""
        return [fact for fact in self.past.definitions if fact.time > self.runs.since]

    @cached_property
    def decisions(self) -> Sequence[Recorded[Decision]]:
        """The decisions on its time in the window."""
        return [fact for fact in self.past.decisions if fact.time > self.runs.since]

    @cached_property
    def facts(self) -> Sequence[Recorded[Message]]:
        """All events of the ledger, oldest first."""
        facts = cast("list[Recorded[Message]]", [*self.past.definitions, *self.past.decisions])
        return sorted(facts, key=attrgetter("sequence"))


@dataclass(frozen=True, slots=True)
class Usual:
    """The medians of the recorded executions of a job, for executions that were not recorded."""

    runs: int = 0
    """The number of recorded executions with a duration."""
    planning: timedelta = _ZERO
    """From the decision on an instant until the request of the lock, or the admission without a lock."""
    handing_over: timedelta = _ZERO
    """From the end of a holder until the next acquisition of the lock."""
    starting: timedelta = _ZERO
    """From the admission until the start of the first attempt, without jitter."""
    duration: timedelta = _ZERO
    """From the start of the first attempt until the end."""


def usual_of(runs: Iterable[Run], planning: Sequence[timedelta], handing_over: Sequence[timedelta]) -> Usual:
    """Return the medians of executions that completed or failed."""
    starting: list[timedelta] = []
    durations: list[timedelta] = []
    for run in runs:
        if run.held_from is None or run.started_at is None:
            continue
        starting.append(run.started_at - begin_of(run.request, run.held_from.time))
        if run.ended is not None and not isinstance(run.end, Cancelled | Skipped):
            durations.append(run.ended.time - run.started_at)
    return Usual(len(durations), *map(median_of, (planning, handing_over, starting, durations)))


def begin_of(request: Requested | None, admitted_at: datetime) -> datetime:
    """Return when an execution begins: when admitted, or at its delayed start."""
    return admitted_at if request is None else start_jitter.begins_at(request.plan, admitted_at)


def median_of(values: Sequence[timedelta]) -> timedelta:
    return timedelta(seconds=median(value.total_seconds() for value in values)) if values else _ZERO


@dataclass(slots=True)
class Outcome:
    """One execution at the end of the window.

    Attributes:
        scheduled_time: the instant, or the time of its trigger (UTC).
        requested_at: when the ticker decided on the instant, or the trigger was planned.
        status: `waiting` until it is admitted, then `running`, then its end.
        found_lock_held: another execution held its lock when it needed the lock.
        admitted_at: when it got its lock, or did not need one.
        is_estimated: its duration was not recorded.
    """

    job: str
    execution_id: str
    trigger: TriggerKind
    scheduled_time: datetime
    shard: Shard
    requested_at: datetime
    status: Status = "waiting"
    reason: str | None = None
    found_lock_held: bool = False
    admitted_at: datetime | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    is_estimated: bool = False

    @property
    def is_over(self) -> bool:
        return self.status not in {"waiting", "running"}

    @property
    def lock_wait(self) -> float:
        """The seconds for which it waited for its lock; 0: the lock was free."""
        if not self.found_lock_held or self.admitted_at is None:
            return 0.0
        return (self.admitted_at - self.requested_at).total_seconds()

    @property
    def worker_wait(self) -> float:
        """The seconds from its admission until a worker started it."""
        if self.admitted_at is None or self.started_at is None:
            return 0.0
        return (self.started_at - self.admitted_at).total_seconds()


def overlapping(outcomes: Iterable[Outcome]) -> Iterator[Outcome]:
    """Yield the executions that found another execution of their job and shard active."""
    busy_until: dict[tuple[str, Shard], datetime | None] = {}
    for outcome in sorted(outcomes, key=attrgetter("requested_at")):
        key = outcome.job, outcome.shard
        if outcome.admitted_at is None:
            if outcome.found_lock_held:
                yield outcome
            continue
        if outcome.found_lock_held or _is_busy(busy_until, key, outcome.admitted_at):
            yield outcome
        last = busy_until.get(key, outcome.admitted_at)
        busy_until[key] = None if last is None or outcome.ended_at is None else max(last, outcome.ended_at)


def _is_busy(busy_until: Mapping[tuple[str, Shard], datetime | None], key: tuple[str, Shard], at: datetime) -> bool:
    until = busy_until.get(key, at)
    return until is None or until > at
