"""Waits for other jobs: their ends, judged by the runs that they name (I6).

Memory: each run of a job for which others wait (about 300 bytes), and each window of a wait that ended (about 200 bytes).
"""

from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from operator import itemgetter
from typing import Final

from ...domain.definition import JobDependency, upstream_jobs
from ...domain.events import (
    Admitted,
    Cancelled,
    Completed,
    Defined,
    DependenciesSettled,
    DependencyRun,
    Failed,
    Message,
    Planned,
    Recorded,
    Requested,
    Skipped,
    type_of,
)
from . import check
from .check import Check, Debt, Key, Taken, on
from .execution_parts import Wrong

_SKIPPED: Final = type_of(Skipped)
MAX_SEQUENCE: Final = 2**63
UNSEEN: Final = timedelta(minutes=1)
"""How long before the end of a wait a run may have begun without being seen: the decision is made before it is stored."""


def wrong_waits(fact: DependenciesSettled, depends_on: Sequence[JobDependency]) -> Iterator[Wrong]:
    """Yield the rules that the end of a wait breaks.

    `depends_on`: the dependencies of the plan.
    """
    if fact.outcome == "queue_full":
        if fact.runs:
            yield Wrong("I6", "it names runs although too many executions waited")
        return
    if [run.job for run in fact.runs] != [dependency.job for dependency in depends_on]:
        yield Wrong("I6", "it names other jobs than those on which the execution depends")
        return
    for dependency, run in zip(depends_on, fact.runs, strict=True):
        accepted = {"completed"} if dependency.on == "completed" else {"completed", "failed", "cancelled"}
        if fact.outcome == "met" and run.ended not in accepted:
            yield Wrong("I6", f"the last run of {run.job} had not {dependency.on}")
        if run.hidden and run.execution_id is not None:
            yield Wrong("I6", f"it names a run of {run.job}, which is hidden from its job")
    if fact.outcome == "dependency_failed" and not any(run.ended in {"failed", "cancelled"} for run in fact.runs):
        yield Wrong("I6", "no run of a job on which it depends had failed")


@dataclass(slots=True)
class _Run:
    """A run of a job for which others wait."""

    scheduled_time: datetime
    opened: Recorded[Message]
    ended: str | None = None
    ended_at: datetime | None = None

    @property
    def place(self) -> tuple[datetime, int]:
        return self.scheduled_time, self.opened.sequence


@dataclass(slots=True)
class _Runs:
    """The runs of a job for which others wait."""

    by_id: dict[str, _Run] = field(default_factory=dict)
    order: list[tuple[tuple[datetime, int], str]] = field(default_factory=list)
    """Their places and ids, sorted: most runs come in this order, and the last is looked for at each end of a wait."""

    def add(self, execution_id: str, run: _Run) -> None:
        """Add a run, unless it is known."""
        if execution_id not in self.by_id:
            self.by_id[execution_id] = run
            insort(self.order, (run.place, execution_id))

    def after(self, place: tuple[datetime, int]) -> Iterator[tuple[str, _Run]]:
        for index in range(bisect_right(self.order, place, key=itemgetter(0)), len(self.order)):
            _, execution_id = self.order[index]
            yield execution_id, self.by_id[execution_id]


class Dependencies(Check):
    """Compares the runs that the ends of waits name with the log."""

    def __init__(self, since: datetime | None = None) -> None:
        super().__init__(since)
        self._latest = since
        """The time of the newest event of an execution."""
        self._known_since: dict[str, datetime | None] = {}
        """The jobs for which others wait, and the time since which each of their runs is known; None: always."""
        self._runs: defaultdict[str, _Runs] = defaultdict(_Runs)
        self._waiting: dict[Key, datetime] = {}
        """The scheduled time of each execution that waits."""
        self._windows: defaultdict[str, list[tuple[datetime, datetime, int, str]]] = defaultdict(list)
        """The windows of waits that ended and rest on a run or on none, by the job on which they rest: the end of each, the last run in it or else its beginning, the
        number of the decision, and the execution that waited."""

        self._viewed: set[str] | None = set() if since is None else None
        """The jobs that named viewers at some time; None: older definitions are not known."""
        self._hidden: dict[str, tuple[Recorded[DependenciesSettled], str]] = {}
        """The first wait that ended because a job was hidden, and its execution, by this job."""

    def debts(self) -> Iterator[Debt]:
        for job, (recorded, entity) in self._hidden.items():
            if self._viewed is not None and job not in self._viewed:
                reason = f"it says that {job} is hidden, which never named viewers"
                yield Debt("I6", entity, reason, recorded.time, "clocks", (check.Proof.of(recorded),))

    @on(Defined)
    def _defined(self, recorded: Recorded[Defined]) -> None:
        if self._viewed is not None and recorded.message.definition.viewers:
            self._viewed.add(recorded.message.job)
        self._follow(recorded.message.definition.depends_on)

    def _follow(self, depends_on: Sequence[JobDependency]) -> None:
        for job in upstream_jobs(depends_on):
            # Streams may be read in any order, so the time of the definition proves nothing about the runs that were taken.
            self._known_since.setdefault(job, self._latest)

    @on(Planned, Admitted)
    def _requested(self, recorded: Recorded[Requested]) -> Taken:
        fact, self._latest = recorded.message, recorded.time
        if isinstance(fact, Planned) and fact.plan.depends_on:
            self._follow(fact.plan.depends_on)
            self._waiting[check.key_of(fact)] = fact.scheduled_time
        if fact.job not in self._known_since:
            return
        if fact.trigger == "cron" and fact.execution_id not in self._runs[fact.job].by_id:
            ended = self._windows[fact.job]
            for _, since, number, entity in ended[bisect_left(ended, fact.scheduled_time, key=itemgetter(0)) :]:
                # A definition that was stored after the decision may name an earlier instant.
                if since < fact.scheduled_time and fact.plan.definition < number:
                    run = f"run {fact.execution_id} of {fact.job}"
                    reason = f"its wait ended before {run}, an instant of its window, began"
                    yield check.violation("I6", entity, reason, recorded)
        self._runs[fact.job].add(fact.execution_id, _Run(fact.scheduled_time, recorded))

    @on(Completed, Failed, Cancelled, Skipped)
    def _ended(self, recorded: Recorded[Completed | Failed | Cancelled | Skipped]) -> None:
        fact, self._latest = recorded.message, recorded.time
        self._waiting.pop(check.key_of(fact), None)
        if fact.job in self._runs:
            run = self._runs[fact.job].by_id.get(fact.execution_id)
            if run is not None and run.ended is None:
                run.ended, run.ended_at = fact.type, recorded.time

    @on(DependenciesSettled)
    def _settled(self, recorded: Recorded[DependenciesSettled]) -> Taken:
        fact, self._latest = recorded.message, recorded.time
        at = self._waiting.pop(check.key_of(fact), None)
        if at is None:
            return
        entity = check.entity(fact)
        for named in fact.runs:
            if named.hidden:
                self._hidden.setdefault(named.job, (recorded, entity))
                continue
            seen_by = recorded.time - UNSEEN
            for reason in [*self._false(named, at, seen_by)] or self._later(named, at, seen_by):
                yield check.violation("I6", entity, reason, recorded)
            counted = self._runs[named.job].by_id.get(named.execution_id or "")
            since = named.since if counted is None else counted.scheduled_time
            insort(self._windows[named.job], (at, since, recorded.sequence, entity))

    def _false(self, named: DependencyRun, at: datetime, seen_by: datetime) -> Iterator[str]:
        """Yield what is false about a run that the end of a wait names.

        The decision knew what was stored by `seen_by`.
        """
        if named.since >= at:
            yield f"its window of runs of {named.job} is empty"
            return
        if named.execution_id is None:
            return
        run = self._runs[named.job].by_id.get(named.execution_id)
        if run is None:
            known_since = self._known_since.get(named.job)
            if known_since is None or known_since < named.since:
                yield f"it rests on run {named.execution_id} of {named.job}, which is not there"
            return
        if not named.since < run.scheduled_time <= at:
            yield f"it rests on run {named.execution_id} of {named.job}, whose time is outside of the window"
        if named.ended is not None and run.ended != named.ended:
            yield f"it says that run {named.execution_id} of {named.job} had {named.ended}, and it had not"
        if named.ended is None and run.ended_at is not None and run.ended_at < seen_by:
            yield f"it says that run {named.execution_id} of {named.job} had not ended, and it had {run.ended}"

    def _later(self, named: DependencyRun, at: datetime, until: datetime) -> Iterator[str]:
        """Yield a later run in the window that began before `until`.

        If none is named, any run is later.
        """
        runs = self._runs[named.job]
        counted = runs.by_id.get(named.execution_id or "")
        if counted is None and named.execution_id is not None:
            return
        for execution_id, run in runs.after((named.since, MAX_SEQUENCE) if counted is None else counted.place):
            if run.scheduled_time > at:
                return
            if run.opened.time < until and run.ended != _SKIPPED:
                rests = "no run" if counted is None else f"run {named.execution_id}"
                yield f"it rests on {rests} of {named.job}, and run {execution_id} came after that"
                return
