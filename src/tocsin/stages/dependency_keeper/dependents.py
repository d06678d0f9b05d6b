"""The executions that wait for runs of other jobs."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from ... import subjects
from ...domain.definition import JobDependency
from ...domain.dependency import Run, Window
from ...domain.duration import MAX_DURATION_S
from ...domain.events import ExecutionFact, Message, Planned, Recorded
from ...engine.held_executions import DUE_NOW, HeldExecutions, Kind


class Dependent(NamedTuple):
    """An execution that waits for runs of other jobs."""

    scope: str
    job: str
    definition: int
    scheduled_time: datetime
    depends_on: tuple[JobDependency, ...]
    sequence: int
    since: datetime
    """The time (UTC) at which it was planned."""
    deadline: datetime
    """The time (UTC) at which it is skipped."""
    kind: Kind
    is_surplus: bool
    """Whether as many of its job and kind as may wait did so before it."""

    @classmethod
    def of(
        cls, scope: str, fact: Planned, sequence: int, time: datetime, *, kind: Kind, is_surplus: bool
    ) -> "Dependent":
        """Return an execution without its input, which is not needed here."""
        plan = fact.plan
        timeout = MAX_DURATION_S if plan.dependency_timeout is None else min(plan.dependency_timeout, MAX_DURATION_S)
        begun = plan.definition, fact.scheduled_time, plan.depends_on, sequence, time
        return cls(scope, fact.job, *begun, time + timedelta(seconds=timeout), kind, is_surplus)

    def deadline_after(self, run: Run | None) -> datetime:
        """Return the time (UTC) at which it is skipped because of a run.

        A run that began after the deadline gets the same time to end.
        """
        if run is None or run.since <= self.deadline:
            return self.deadline
        return run.since + (self.deadline - self.since)


class Dependents(HeldExecutions[Dependent]):
    """All executions that wait for runs of other jobs."""

    def __init__(self) -> None:
        super().__init__()
        self._windows: dict[str, dict[str, Window | None]] = {}
        """The windows of the executions that wait for a job; None: not known yet."""

    @property
    def upstream(self) -> dict[str, dict[str, Window | None]]:
        """The jobs for which executions wait."""
        return self._windows

    def learn(self, recorded: Recorded[Message]) -> None:
        """Apply an event that begins or ends the wait of an execution."""
        fact = recorded.message
        if not isinstance(fact, ExecutionFact):
            return
        scope = subjects.execution(fact.job, fact.execution_id)
        if isinstance(fact, Planned) and fact.plan.depends_on and scope not in self._waiting:
            kind, is_surplus = self._count(fact)
            self._waiting[scope] = Dependent.of(
                scope, fact, recorded.sequence, recorded.time, kind=kind, is_surplus=is_surplus
            )
            if not is_surplus:
                for dependency in fact.plan.depends_on:
                    self._windows.setdefault(dependency.job, {})[scope] = None
            self._agenda.put(scope, DUE_NOW)
        elif not isinstance(fact, Planned):
            self.forget(scope)

    def forget(self, scope: str) -> None:
        """Remove an execution that does not wait any more."""
        if (dependent := self._remove(scope)) is None or dependent.is_surplus:
            return
        for dependency in dependent.depends_on:
            waiting = self._windows.get(dependency.job, {})
            waiting.pop(scope, None)
            if not waiting:
                self._windows.pop(dependency.job, None)

    def windows_of(self, dependent: Dependent) -> list[Window] | None:
        """Return the noted window of each dependency; None: they are not noted yet."""
        noted = [self._windows.get(each.job, {}).get(dependent.scope) for each in dependent.depends_on]
        windows = [window for window in noted if window is not None]
        return windows if len(windows) == len(noted) else None

    def note_windows(self, dependent: Dependent, windows: Sequence[Window]) -> None:
        """Note the scheduled times of the runs for which an execution waits."""
        if dependent.scope in self._waiting:
            for dependency, window in zip(dependent.depends_on, windows, strict=True):
                self._windows[dependency.job][dependent.scope] = window

    def on_run(self, job: str, run: Run | None) -> None:
        """Examine the executions that may wait for a run; None: many runs became known."""
        for scope, window in self._windows.get(job, {}).items():
            if run is None or window is None or window.since < run.scheduled_time <= window.until:
                self._agenda.put(scope, DUE_NOW)
