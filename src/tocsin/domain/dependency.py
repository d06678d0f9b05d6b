"""Dependencies across jobs: the last run of a job in a window (scratchbird, Job Dependencies).

An execution for the time T depends on the last run of each job with a scheduled time in (since, T]. Occurrences, triggered
runs, backfills and replays count; skipped executions did not run. A replay has the scheduled time of the run that it repeats,
and comes after it.
"""

from bisect import bisect_right, insort
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
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
from .ledger import Ledger, Timetable, schedule_of
from .ledger.instants import undecided_occurrences

Ended: TypeAlias = Literal["completed", "failed", "cancelled", "skipped"]

LONGEST_WINDOW: Final = timedelta(seconds=LONGEST_WINDOW_S)
"""The longest window, also of a job whose instants are farther apart."""
MOST_RUNS: Final = 100_000
"""Runs of a job that are kept, those with the latest scheduled times."""
_SPARE: Final = 1_000
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
    timetable = Timetable.of(dependent)
    if timetable.schedule is None:  # an older version accepted it
        return Window(at - LONGEST_WINDOW, at)
    schedule = schedule_of(timetable)
    if schedule.interval is not None:
        return Window(at - min(schedule.interval, LONGEST_WINDOW), at)
    before = schedule.latest_until(at - _INSTANT, after=at - LONGEST_WINDOW, anchor=at)
    return Window(at - LONGEST_WINDOW if before is None else before, at)


class Run(msgspec.Struct, frozen=True):
    """A run of a job.

    `ended` is None until it has ended; `sequence` is that of the first event known of it.
    """

    execution_id: str
    scheduled_time: datetime
    sequence: int
    ended: Ended | None = None


class Runs:
    """The runs of one job, by their scheduled times."""

    def __init__(self) -> None:
        self._runs: dict[str, Run] = {}
        self._order: list[tuple[datetime, int, str]] = []
        self.newest_occurrence: datetime | None = None
        """The latest instant of the schedule of which a run or a skip is known."""

    def __len__(self) -> int:
        """Return the number of known runs."""
        return len(self._runs)

    def learn(self, recorded: Recorded[Message]) -> Run | None:
        """Apply an event that opens or ends an execution.

        Return the run, or None if nothing changed. An event may come twice, and an end without its beginning.
        """
        admission = admission_of(recorded)
        message = recorded.message if admission is None else admission.message
        if not isinstance(message, Requested | Terminal | Skipped):
            return None
        if message.trigger == "cron" and (
            self.newest_occurrence is None or self.newest_occurrence < message.scheduled_time
        ):
            self.newest_occurrence = message.scheduled_time
        ended: Ended | None = "skipped" if isinstance(message, Skipped) else _ENDS.get(type(message))
        known = self._runs.get(message.execution_id)
        if known is not None and (ended is None or known.ended is not None):
            return None
        sequence = recorded.sequence if known is None else known.sequence
        run = Run(message.execution_id, message.scheduled_time, sequence, ended)
        self._runs[run.execution_id] = run
        if known is None:
            insort(self._order, (run.scheduled_time, sequence, run.execution_id))
            if len(self._order) > MOST_RUNS + _SPARE:
                for _, _, oldest in self._order[:_SPARE]:
                    del self._runs[oldest]
                del self._order[:_SPARE]
        return run

    def last(self, window: Window) -> Run | None:
        """Return the last run in a window; None: no run has a time in it."""
        for index in range(bisect_right(self._order, (window.until + _INSTANT, 0, "")) - 1, -1, -1):
            scheduled_time, _, execution_id = self._order[index]
            if scheduled_time <= window.since:
                break
            run = self._runs[execution_id]
            if run.ended != "skipped":
                return run
        return None


def knows_all(runs: Runs, ledger: Ledger, window: Window) -> bool:
    """Return whether the runs of all instants in a window are known.

    An instant that is not decided yet may still fire, and one that fired lately may have no execution yet.
    """
    undecided = undecided_occurrences(ledger, window.until)
    for number, (_, occurrence) in enumerate(islice(undecided, MOST_UNDECIDED)):
        if (occurrence.at > window.since and occurrence.fires) or number == MOST_UNDECIDED - 1:
            return False
    fired, newest = ledger.last_fired, runs.newest_occurrence
    if fired is None or fired <= window.since:
        return True
    # Executions are planned in the order of their instants, unless the planner hands one back after an error.
    return newest is not None and (newest >= fired or newest > window.until)


class Upstream(NamedTuple):
    """A job on which an execution depends."""

    dependency: JobDependency
    window: Window
    runs: Runs

    @property
    def state(self) -> Literal["met", "failed", "waits", "missing"]:
        """Return how the last run in the window stands to the dependency."""
        run = self.runs.last(self.window)
        if run is None:
            return "missing"
        if run.ended is None:
            return "waits"
        return "met" if self.dependency.on == "finished" or run.ended == "completed" else "failed"

    @property
    def fact(self) -> DependencyRun:
        """Return the record of the last run, as an execution's wait ends."""
        run = self.runs.last(self.window)
        if run is None or run.ended == "skipped":
            return DependencyRun(job=self.dependency.job, since=self.window.since)
        return DependencyRun(
            job=self.dependency.job, since=self.window.since, execution_id=run.execution_id, ended=run.ended
        )


def may_be_met(upstream: Iterable[Upstream]) -> bool:
    """Return whether the last known run of each job ended as wanted."""
    return all(each.state == "met" for each in upstream)


def decide(upstream: Sequence[Upstream], ledgers: Mapping[str, Ledger], *, is_late: bool) -> WaitOutcome | None:
    """Return how the wait of an execution ends; None: it goes on.

    `ledgers` are those of the jobs, none newer than the runs. `is_late`: the time for it is over.
    """
    if may_be_met(upstream) and all(
        knows_all(each.runs, ledgers[each.dependency.job], each.window) for each in upstream
    ):
        return "met"
    if not is_late:
        return None
    return "dependency_failed" if any(each.state == "failed" for each in upstream) else "dependency_missing"
