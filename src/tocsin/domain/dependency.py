"""Dependencies across jobs: the last run of a job in a window (scratchbird, Job Dependencies)."""

from bisect import bisect_right, insort
from collections.abc import Iterable
from datetime import datetime, timedelta
from itertools import islice
from typing import Final, Literal, NamedTuple, Protocol, TypeAlias

import msgspec

from .definition import LONGEST_WINDOW_S, JobDefinition, JobDependency
from .events import (
    Cancelled,
    Completed,
    DependencyRun,
    Failed,
    Message,
    Recorded,
    Requested,
    Skipped,
    Terminal,
    WaitOutcome,
    admission_of,
)
from .identity import includes, typed
from .ledger import Ledger, Timetable, schedule_of
from .ledger.instants import undecided_occurrences
from .namespaces import referenced_jobs

Ended: TypeAlias = Literal["completed", "failed", "cancelled", "skipped"]

LONGEST_WINDOW: Final = timedelta(seconds=LONGEST_WINDOW_S)
"""The longest window, also of a job whose instants are farther apart."""
MOST_UNDECIDED: Final = 1_000
"""Undecided instants of a job that are looked at; with more, its ticker is behind."""
_INSTANT: Final = timedelta(microseconds=1)
_ENDS: Final[dict[type, Ended]] = {Completed: "completed", Failed: "failed", Cancelled: "cancelled"}


class Window(msgspec.Struct, frozen=True):
    """The scheduled times (UTC) in (since, until] that count for a dependency."""

    since: datetime
    until: datetime


def window(dependency: JobDependency, dependent: JobDefinition, at: datetime) -> Window:
    """Return the window of a dependency for an execution at `at` (UTC).

    With `@every` it is as long as the interval.
    """
    if dependency.within is not None:
        return Window(at - min(timedelta(seconds=dependency.within), LONGEST_WINDOW), at)
    schedule = schedule_of(Timetable.of(dependent))
    if schedule.interval is not None:
        return Window(at - min(schedule.interval, LONGEST_WINDOW), at)
    before = schedule.latest_until(at - _INSTANT, after=at - LONGEST_WINDOW, anchor=at)
    return Window(at - LONGEST_WINDOW if before is None else before, at)


class Run(msgspec.Struct, frozen=True):
    """A run of a job.

    `ended` is None until it has ended; `sequence` and `since` (UTC) come from its first known event. `is_occurrence`: the schedule
    began it, and no operator or program.
    """

    execution_id: str
    scheduled_time: datetime
    sequence: int
    since: datetime
    ended: Ended | None = None
    is_occurrence: bool = False


def run_of(recorded: Recorded[Message]) -> Run | None:
    """Return the run that an event begins or ends, as this event alone shows it.

    None: it does neither.
    """
    admission = admission_of(recorded)
    message = recorded.message if admission is None else admission.message
    if not isinstance(message, Requested | Terminal | Skipped):
        return None
    ended: Ended | None = "skipped" if isinstance(message, Skipped) else _ENDS.get(type(message))
    is_occurrence = message.trigger == "cron"
    return Run(message.execution_id, message.scheduled_time, recorded.sequence, recorded.time, ended, is_occurrence)


class LastRuns(Protocol):
    """The runs of a job, with the last run known in a window."""

    def last(self, window: Window, /) -> Run | None:
        """Return the last run in a window; None: no run has a time in it."""
        ...


class Runs:
    """The runs of one job, by their scheduled times."""

    def __init__(self) -> None:
        self._runs: dict[str, Run] = {}
        self._order: list[tuple[datetime, int, str]] = []

    def learn(self, recorded: Recorded[Message]) -> Run | None:
        """Apply an event that opens or ends an execution.

        Return the run, or None if nothing changed. An event may come twice, and an end without its beginning.
        """
        if (run := run_of(recorded)) is None:
            return None
        known = self._runs.get(run.execution_id)
        if known is not None and (run.ended is None or known.ended is not None):
            return None
        if known is not None:
            run = msgspec.structs.replace(known, ended=run.ended)
        self._runs[run.execution_id] = run
        if known is None:
            insort(self._order, (run.scheduled_time, run.sequence, run.execution_id))
        return run

    def last(self, window: Window, /) -> Run | None:
        """Return the last run in a window; None: no run has a time in it."""
        for index in range(bisect_right(self._order, (window.until + _INSTANT, 0, "")) - 1, -1, -1):
            scheduled_time, _, execution_id = self._order[index]
            if scheduled_time <= window.since:
                break
            run = self._runs[execution_id]
            if run.ended != "skipped":
                return run
        return None


def is_decided(ledger: Ledger, window: Window) -> bool:
    """Return whether no instant in a window can fire that has not fired yet."""
    if not ledger.regimes:
        return True  # no such job
    for number, (_, occurrence) in enumerate(islice(undecided_occurrences(ledger, window.until), MOST_UNDECIDED)):
        if (occurrence.at > window.since and occurrence.fires) or number == MOST_UNDECIDED - 1:
            return False
    return True


class Upstream(NamedTuple):
    """A job on which an execution depends."""

    dependency: JobDependency
    window: Window
    runs: LastRuns
    is_hidden: bool = False
    """Whether the execution may learn of no run."""

    @property
    def last(self) -> Run | None:
        """Return the last run in the window that the execution may learn of."""
        return None if self.is_hidden else self.runs.last(self.window)

    @property
    def state(self) -> Literal["met", "failed", "waits", "missing"]:
        """Return how the last run in the window stands to the dependency."""
        run = self.last
        if run is None:
            return "missing"
        if run.ended is None:
            return "waits"
        return "met" if self.dependency.on == "finished" or run.ended == "completed" else "failed"

    @property
    def fact(self) -> DependencyRun:
        """Return the record of the last run, as an execution's wait ends."""
        run = self.last
        if run is None or run.ended == "skipped":
            return DependencyRun(job=self.dependency.job, since=self.window.since, hidden=self.is_hidden)
        return DependencyRun(
            job=self.dependency.job, since=self.window.since, execution_id=run.execution_id, ended=run.ended
        )


def decide(upstream: Iterable[Upstream], *, is_late: bool) -> WaitOutcome | None:
    """Return how the wait of an execution ends; None: it goes on.

    All runs in the windows are known. `is_late`: the time for it is over.
    """
    states = {each.state for each in upstream}
    if states <= {"met"}:
        return "met"
    if not is_late:
        return None
    return "dependency_failed" if "failed" in states else "dependency_missing"


class Followed(Protocol):
    """A job that another may follow; `Ledger` and `Registration` are examples."""

    @property
    def definition(self) -> JobDefinition | None:
        """The definition in force; None: the job does not exist."""

    @property
    def defined_at(self) -> datetime:
        """The time (UTC) of that definition."""

    @property
    def created_by(self) -> str | None:
        """The identity that registered the job."""


def may_follow(follower: Followed, followed: Followed) -> bool:
    """Return whether a job may learn of the executions of another.

    A registration of the follower that names the other job, and is newer than the definition of that job, was checked with the rights
    of its caller. A job that does not exist any more may learn nothing of a hidden job.
    Otherwise each identity to which the follower belongs must see the other job. Identities with access to NATS itself see all.
    """
    definition, own = followed.definition, follower.definition
    if definition is None or not definition.viewers:
        return True
    if own is None:
        return False
    if follower.defined_at > followed.defined_at and any(name == definition.name for _, name in referenced_jobs(own)):
        return True
    seeing = (*definition.viewers, definition.owner, followed.created_by)
    owners = {typed(name) for name in (follower.created_by, own.owner) if name is not None}
    return all(owner.partition(":")[0] not in _JUDGED or includes(seeing, owner) for owner in owners)


_JUDGED: Final = frozenset({"user", "token"})
"""The kinds of identities whose roles decide what they see."""
