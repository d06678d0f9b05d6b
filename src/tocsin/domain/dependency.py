"""Dependencies across jobs: the last run in a window (scratchbird, Job Dependencies)."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Final, Literal, NamedTuple, TypeAlias

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
from .job_record import Registration
from .ledger import Ledger, Timetable, schedule_of
from .ledger.instants import undecided_occurrences
from .namespaces import referenced_jobs

Ended: TypeAlias = Literal["completed", "failed", "cancelled", "skipped"]

LONGEST_WINDOW: Final = timedelta(seconds=LONGEST_WINDOW_S)
"""The longest window, also of a job whose instants are farther apart."""
MOST_UNDECIDED: Final = 1_000
"""Undecided instants of a job that are looked at; with more, its ticker is behind."""
KEPT: Final = 64
"""The most runs that are kept, with the latest scheduled times."""
MAX_FOUND: Final = 256
"""Windows for which a run is noted, the newest."""
SLACK: Final = timedelta(minutes=1)
"""How much earlier than its scheduled time a run may have been stored, as the clocks of two machines differ."""
_EARLIEST: Final = datetime.min.replace(tzinfo=UTC)
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
    """Return the run that an event begins or ends, as this event alone shows it."""
    admission = admission_of(recorded)
    message = recorded.message if admission is None else admission.message
    if not isinstance(message, Requested | Terminal | Skipped):
        return None
    ended: Ended | None = "skipped" if isinstance(message, Skipped) else _ENDS.get(type(message))
    is_occurrence = message.trigger == "cron"
    return Run(message.execution_id, message.scheduled_time, recorded.sequence, recorded.time, ended, is_occurrence)


def learned(known: Run | None, run: Run) -> Run | None:
    """Return a run after its next event; None: nothing changed.

    An event may come twice, and an end without its beginning.
    """
    if known is None:
        return run
    is_new = run.ended is not None and known.ended is None
    return msgspec.structs.replace(known, ended=run.ended) if is_new else None


def order(run: Run) -> tuple[datetime, int]:
    """Return the key by which the runs of a job are ordered."""
    return run.scheduled_time, run.sequence


class Found(msgspec.Struct, frozen=True):
    """The last run in a window, as read; None: the window has no run."""

    window: Window
    run: Run | None


class JobRuns(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The runs of a job.

    Attributes:
        since: from when on (UTC) its runs are known.
        named_by: the jobs that name it in a definition, in the order of these definitions.
        runs: ordered by their scheduled times, and the numbers of their first known events.
        kept_from: before this scheduled time (UTC) some runs were dropped.
        planned: the scheduled time (UTC) of the latest of its occurrences that has a run, or was skipped.
        waiting: the scopes of the executions that wait for it, the oldest first.
        found: the runs that were read of the time before.
        changed: the number of the newest event that may end a wait.
    """

    since: datetime
    named_by: tuple[str, ...] = ()
    runs: tuple[Run, ...] = ()
    kept_from: datetime = _EARLIEST
    planned: datetime | None = None
    waiting: tuple[str, ...] = ()
    found: tuple[Found, ...] = ()
    changed: int = 0

    @property
    def is_needed(self) -> bool:
        return bool(self.named_by or self.waiting)

    def last(self, window: Window, /) -> Run | None:
        """Return the last run in a window; None: none is known."""
        noted = [found.run for found in self.found if found.window == window and found.run is not None]
        known = [*self._of(window), *noted]
        return max(known, key=order, default=None)

    def knows(self, window: Window) -> bool:
        """Return whether the last run in a window is known.

        No other run that began by now can be the last.
        """
        since = max(self.since + SLACK, self.kept_from)
        return (
            window.since >= since
            or any(run.scheduled_time >= since for run in self._of(window))
            or any(found.window == window for found in self.found)
        )

    def awaits_plan(self, window: Window, fired: datetime | None) -> bool:
        """Return whether an instant in a window may have fired without a run yet.

        The instants of a job are planned in order. `fired`: the latest that fired (UTC).
        """
        if fired is None or fired <= window.since:
            return False
        return self.planned is None or self.planned < min(fired, window.until)

    def _of(self, window: Window) -> Iterator[Run]:
        for run in reversed(self.runs):
            if run.scheduled_time <= window.since:
                break
            if run.scheduled_time <= window.until and run.ended != "skipped":
                yield run

    def learn(self, recorded: Recorded[Message]) -> "JobRuns":
        """Return the runs after an event that opens or ends an execution of the job."""
        run = run_of(recorded)
        if run is None:
            return self
        known = next((one for one in self.runs if one.execution_id == run.execution_id), None)
        if (changed := learned(known, run)) is None:
            return self
        if known is not None:
            runs = tuple(changed if one is known else one for one in self.runs)
        else:
            index = bisect_right(self.runs, order(run), key=order)
            runs = (*self.runs[:index], run, *self.runs[index:])
        found = tuple(_updated(one, run) for one in self.found)
        planned = max(self.planned or _EARLIEST, run.scheduled_time) if run.is_occurrence else self.planned
        kept_from = self.kept_from
        if len(runs) > KEPT:
            oldest, *_ = runs
            runs, found = runs[1:], tuple(_with(one, oldest) for one in found)
            kept_from = max(kept_from, runs[0].scheduled_time)
        return msgspec.structs.replace(
            self, runs=runs, kept_from=kept_from, found=found, planned=planned, changed=recorded.sequence
        )

    def note(self, found: Found, number: int) -> "JobRuns":
        """Return the runs after the read part of a window."""
        others = tuple(one for one in self.found if one.window != found.window)
        return msgspec.structs.replace(self, found=(*others, found)[-MAX_FOUND:], changed=number)


def _updated(found: Found, run: Run) -> Found:
    if found.run is None or found.run.execution_id != run.execution_id or run.ended is None:
        return found
    return Found(found.window, None if run.ended == "skipped" else msgspec.structs.replace(found.run, ended=run.ended))


def _with(found: Found, run: Run) -> Found:
    """Return the found run with a run that is not kept any longer."""
    is_in = found.window.since < run.scheduled_time <= found.window.until and run.ended != "skipped"
    is_later = found.run is None or order(run) > order(found.run)
    return Found(found.window, run) if is_in and is_later else found


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
    runs: JobRuns
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


Followed: TypeAlias = Ledger | Registration
"""A job that another may follow."""


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
