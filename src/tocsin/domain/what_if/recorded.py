"""The recorded past of a job: the decisions on its time, and its executions."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from statistics import median
from typing import Final, NamedTuple, TypeAlias

from .. import lock, start_jitter
from ..events import (
    Acquired,
    Cancelled,
    DefinitionFact,
    Due,
    ExecutionFact,
    LockFact,
    Message,
    Passed,
    Planned,
    Queued,
    Recorded,
    Requested,
    Skipped,
    Started,
    Terminal,
    unfold,
)
from ..ledger import Ledger
from ..lock import Lock

NOT_PLANNED: Final = frozenset({"disabled", "dst_skip", "refused", "no_shard", "namespace_quota"})
"""Reasons of skips that never become executions: the planner stores them for instants or triggers."""
BY_LOCK: Final = frozenset({"overlap_skip", "queue_full"})
"""Reasons of skips that the replay decides itself; the others are replayed as recorded."""
_ZERO: Final = timedelta()

Shard: TypeAlias = str | None
Decision: TypeAlias = Due | Passed


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
        kept: dict[str, Run] = {}
        for name, run in self.by_id.items():
            is_over = run.ended is not None and run.ended.time <= self.since
            if name in holders or (run.begun is not None and not is_over):
                kept[name] = run
            elif run.begun is not None:
                self.finished.append(run)
        self.by_id = kept

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


@dataclass(frozen=True, slots=True)
class Absence:
    """A time in which no ticker led: after `start`, up to `end` (None: it lasts)."""

    start: datetime | None
    end: datetime | None


@dataclass(frozen=True, slots=True)
class RecordedJob:
    """The record of a job in the ledger and the log.

    Attributes:
        job: its name.
        known_until: the time up to which all of this is known (UTC).
        start: its ledger at the beginning of the window.
        runs: its executions.
        changes: the events on its definition in the window.
        decisions: the decisions on its time in the window.
    """

    job: str
    known_until: datetime
    start: Ledger
    runs: Runs
    changes: Sequence[Recorded[DefinitionFact]] = ()
    decisions: Sequence[Recorded[Decision]] = ()


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
    return Usual(
        len(durations),
        *(_median(values) for values in (planning, handing_over, starting, durations)),
    )


def begin_of(request: Requested | None, admitted_at: datetime) -> datetime:
    """Return when an execution begins: when admitted, or at its delayed start."""
    return admitted_at if request is None else start_jitter.begins_at(request.plan, admitted_at)


def _median(values: Sequence[timedelta]) -> timedelta:
    return timedelta(seconds=median(value.total_seconds() for value in values)) if values else _ZERO
