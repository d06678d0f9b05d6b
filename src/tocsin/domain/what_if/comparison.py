"""The difference between the recorded past and its replay, in figures and lists."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Final, TypeAlias

from ..events import Due, TriggerKind
from ..replay import Decision
from .runs import SUPERSEDED, Outcome, Status, Usual, overlapping

MAX_LISTED: Final = 100
"""ListedInstants and executions that each list of a job names; the others are counted."""
_SAME_START: Final = timedelta(seconds=1)
"""Starts that differ by less count as equal."""
_Key: TypeAlias = tuple[str, datetime, str | None] | tuple[str, str, None]


@dataclass(frozen=True, slots=True)
class Waits:
    """The waits of some executions, in seconds."""

    count: int = 0
    total: float = 0.0
    p50: float = 0.0
    p95: float = 0.0
    max: float = 0.0

    @classmethod
    def of(cls, waits: Iterable[float]) -> "Waits":
        """Return the figures of the waits that are longer than nothing."""
        ordered = sorted(round(wait, 6) for wait in waits if wait > 0)
        if not ordered:
            return cls()
        return cls(len(ordered), round(sum(ordered), 6), _quantile(ordered, 0.5), _quantile(ordered, 0.95), ordered[-1])


def _quantile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


@dataclass(frozen=True, slots=True)
class WhatIfFigures:
    """The events of a window in numbers."""

    fired: int = 0
    """ListedInstants that fired."""
    passed: dict[str, int] = field(default_factory=dict)
    """ListedInstants that did not fire, by reason."""
    executions: int = 0
    """Executions that were requested: of instants, and of triggers."""
    outcomes: dict[str, int] = field(default_factory=dict)
    """Executions by status at the end of the window."""
    skipped: dict[str, int] = field(default_factory=dict)
    """Executions that were skipped, by reason."""
    superseded: int = 0
    """Executions that `cancel_previous` cancelled."""
    overlaps: int = 0
    """Executions that found another execution of their job active."""
    lock_waits: Waits = Waits()
    """Waits for the lock of the job."""
    worker_waits: Waits = Waits()
    """Waits from the admission until a worker started the execution."""

    @classmethod
    def of(cls, decisions: Iterable[Decision], outcomes: Sequence[Outcome]) -> "WhatIfFigures":
        fired, passed = 0, Counter[str]()
        for fact in decisions:
            if isinstance(fact, Due):
                fired += 1
            else:
                passed[fact.reason] += fact.count
        return cls(
            fired,
            dict(sorted(passed.items())),
            len(outcomes),
            _counted(outcome.status for outcome in outcomes),
            _counted(outcome.reason or "" for outcome in outcomes if outcome.status == "skipped"),
            sum(outcome.reason == SUPERSEDED for outcome in outcomes),
            sum(1 for _ in overlapping(outcomes)),
            Waits.of(outcome.lock_wait for outcome in outcomes),
            Waits.of(outcome.worker_wait for outcome in outcomes),
        )


@dataclass(frozen=True, slots=True)
class ListedInstants:
    """A number of instants, and the first of them."""

    count: int
    first: tuple[datetime, ...]


@dataclass(frozen=True, slots=True)
class Course:
    """The course of an execution."""

    status: Status
    reason: str | None
    requested_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    lock_wait: float
    """Seconds for which it waited for its lock."""
    worker_wait: float
    """Seconds for which it then waited for a worker."""
    is_estimated: bool = False
    """Its duration was not recorded: it is the median of its job."""

    @classmethod
    def of(cls, outcome: Outcome) -> "Course":
        return cls(
            outcome.status,
            outcome.reason,
            outcome.requested_at,
            outcome.started_at,
            outcome.ended_at,
            round(outcome.lock_wait, 6),
            round(outcome.worker_wait, 6),
            outcome.is_estimated,
        )

    def differs_from(self, other: "Course") -> bool:
        """Return whether another end or another start was reached."""
        if (self.status, self.reason) != (other.status, other.reason):
            return True
        if self.started_at is None or other.started_at is None:
            return self.started_at != other.started_at
        return abs(self.started_at - other.started_at) >= _SAME_START


@dataclass(frozen=True, slots=True)
class CourseDifference:
    """An execution that would have taken another course."""

    execution_id: str
    trigger: TriggerKind
    scheduled_time: datetime
    shard: str | None
    before: Course
    after: Course


@dataclass(frozen=True, slots=True)
class ListedDifferences:
    """A number of executions with another course, and the first of them."""

    count: int
    first: tuple[CourseDifference, ...]


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a comparison: decisions on time, and executions."""

    decisions: Sequence[Decision]
    outcomes: Sequence[Outcome]

    @property
    def fired(self) -> list[datetime]:
        return [fact.scheduled_time for fact in self.decisions if isinstance(fact, Due)]

    @property
    def figures(self) -> WhatIfFigures:
        return WhatIfFigures.of(self.decisions, self.outcomes)


@dataclass(frozen=True, slots=True)
class WhatIfJob:
    """The difference for one job.

    Attributes:
        job: its name.
        tried: a definition was given for it; otherwise the recorded definitions were replayed.
        before: the figures of the log; for a forecast, the forecast with the registered definition.
        after: the replay.
        came: instants that fire in the replay alone.
        went: instants that fire in the log alone.
        differences: executions with another end, or another start.
        recorded_runs: the number of recorded durations of the job.
        usual_duration: the median of these, in seconds; executions that were not recorded take as long.
        notes: the limits of the answer, in sentences.
    """

    job: str
    tried: bool
    before: WhatIfFigures
    after: WhatIfFigures
    came: ListedInstants
    went: ListedInstants
    differences: ListedDifferences
    recorded_runs: int
    usual_duration: float
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WhatIfReport:
    """The answer to a what-if question, for all of its jobs.

    Attributes:
        since: the beginning of the window (UTC), exclusive.
        until: the end of the window (UTC), inclusive.
        is_forecast: the window is in the future.
        before: the jobs together, before.
        after: the jobs together, after.
        jobs: each job, by name.
    """

    since: datetime
    until: datetime
    is_forecast: bool
    before: WhatIfFigures
    after: WhatIfFigures
    jobs: tuple[WhatIfJob, ...]


def compare(job: str, before: Side, after: Side, usual: Usual, *, tried: bool, notes: Sequence[str] = ()) -> WhatIfJob:
    had, has = before.fired, after.fired
    return WhatIfJob(
        job,
        tried,
        before.figures,
        after.figures,
        _only(has, had),
        _only(had, has),
        _differences(before.outcomes, after.outcomes),
        usual.runs,
        usual.duration.total_seconds(),
        tuple(notes),
    )


def _only(these: Iterable[datetime], others: Iterable[datetime]) -> ListedInstants:
    known = set(others)
    instants = sorted(at for at in these if at not in known)
    return ListedInstants(len(instants), tuple(instants[:MAX_LISTED]))


def _differences(before: Iterable[Outcome], after: Iterable[Outcome]) -> ListedDifferences:
    known = {_key(outcome): outcome for outcome in before}
    count, first = 0, list[CourseDifference]()
    for outcome in sorted(after, key=attrgetter("scheduled_time", "execution_id")):
        if (other := known.get(_key(outcome))) is None:
            continue
        course, replayed = Course.of(other), Course.of(outcome)
        if not replayed.differs_from(course):
            continue
        count += 1
        if len(first) < MAX_LISTED:
            named = other.execution_id, outcome.trigger, outcome.scheduled_time, outcome.shard
            first.append(CourseDifference(*named, course, replayed))
    return ListedDifferences(count, tuple(first))


def _key(outcome: Outcome) -> _Key:
    if outcome.trigger == "cron":
        return outcome.job, outcome.scheduled_time, outcome.shard
    return outcome.job, outcome.execution_id, None


def _counted(values: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(values).items()))


def together(sides: Mapping[str, Side]) -> WhatIfFigures:
    decisions = [fact for side in sides.values() for fact in side.decisions]
    return WhatIfFigures.of(decisions, [outcome for side in sides.values() for outcome in side.outcomes])
