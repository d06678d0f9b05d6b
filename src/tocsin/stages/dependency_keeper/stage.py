"""Dependency keeper: lets an execution wait for the runs of other jobs.

It decides on the fold alone. An execution is examined when it is planned, when a run of a job for which it waits may have changed the answer, and when its time is over. While a
run in a window may be missing, the execution waits, also beyond its time: `tocsin doctor` names it.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Final

from ... import subjects
from ...domain import execution
from ...domain.definition import JobDefinition, JobDependency
from ...domain.dependency import JobRuns, Run, Upstream, Window, decide, is_decided, may_follow, window
from ...domain.duration import MAX_DURATION_S
from ...domain.events import DependenciesSettled, DependencyRun, Message, Planned, Recorded, WaitOutcome
from ...domain.execution import Execution
from ...domain.lock import most_waiting
from ...engine.broken_keys import BrokenKey
from ...engine.fold import LEDGER
from ...engine.kinds import DEFINITION, EXECUTION, execution_state
from ...engine.stage import Access, Deadline, DeadlineRule, Stage, Subscription
from ...engine.step import DONE, Events, Ref, States, Step, decided, done
from ...engine.upstream import HELD, RUNS, kind_of, runs_scope
from ...subjects import Stream

AT_ONCE: Final = 64
"""Waits that end in one decision."""
NOW: Final = datetime.min.replace(tzinfo=UTC)
NO_RUNS: Final = JobRuns(since=NOW)


class DependencyKeeper:
    """Decides when an execution has waited long enough for other jobs."""

    def on_planned(self, recorded: Recorded[Message], states: States, now: datetime) -> Step:
        """Examine an execution that begins to wait."""
        fact = recorded.message
        if not isinstance(fact, Planned):
            return DONE
        ref = execution_state(fact.job, fact.execution_id)
        return decided(ref, _settle(ref, states, now))

    def deadlines_of(self, state: Execution) -> Sequence[Deadline]:
        """Return when the time of an execution is over that waits for other jobs."""
        waits_since = state.planned_at if state.is_dependent else None
        return () if waits_since is None else (Deadline(waits_since + _patience(state)),)

    def on_deadline(self, scope: str, deadline: Deadline, states: States, now: datetime) -> Step:  # noqa: ARG002 - the state decides
        """Examine an execution after its time is over."""
        ref = EXECUTION(scope)
        return decided(ref, _settle(ref, states, now))

    def changes_of(self, runs: JobRuns | None) -> Iterator[Deadline]:
        """Return that the executions which wait for a job are to be examined."""
        if runs is not None and runs.waiting:
            yield Deadline(NOW, str(runs.changed))

    def on_change(self, scope: str, deadline: Deadline, states: States, now: datetime) -> Step:  # noqa: ARG002 - all that wait
        """Examine the executions that wait for a job.

        If more waits end than one decision may end, the decision is made again.
        """
        runs = states(RUNS(scope))
        ends = (_ended(EXECUTION(waiting), states, now) for waiting in (() if runs is None else runs.waiting))
        return done(*islice((end for end in ends if end is not None), AT_ONCE))


def _ended(ref: Ref[Execution], states: States, now: datetime) -> Events | None:
    """Return the end of a wait.

    None: it goes on, or nothing can be said of the execution.
    """
    try:
        events = _settle(ref, states, now)
    except BrokenKey:
        return None
    return Events(ref, tuple(events)) if events else None


def _settle(ref: Ref[Execution], states: States, now: datetime) -> Sequence[DependenciesSettled]:
    state = states(ref)
    if not state.is_dependent:
        return ()
    before = states(HELD(kind_of(state.request)))
    if before.index(ref.key) >= most_waiting(state.request):
        return execution.settle(state, "queue_full", ())
    answer = _answer(state, states, now)
    return () if answer is None else execution.settle(state, *answer)


def _answer(state: Execution, states: States, now: datetime) -> tuple[WaitOutcome, tuple[DependencyRun, ...]] | None:
    """Return how the wait of an execution ends; None: it goes on."""
    definition = states(DEFINITION((state.request.job, state.request.plan.definition)))
    own = states(LEDGER(subjects.ledger(state.request.job)))
    upstream = list[Upstream]()
    for dependency, span in windows_of(state, definition):
        ledger = states(LEDGER(subjects.ledger(dependency.job)))
        runs = states(RUNS(runs_scope(dependency.job))) or NO_RUNS
        is_hidden = not may_follow(own, ledger)
        is_known = runs.knows(span) and is_decided(ledger, span) and not runs.awaits_plan(span, ledger.last_fired)
        if not is_hidden and not is_known:
            return None
        upstream.append(Upstream(dependency, span, runs, is_hidden))
    deadline = max(_deadline_after(each.last, state) for each in upstream)
    outcome = decide(upstream, is_late=deadline <= now)
    return None if outcome is None else (outcome, tuple(each.fact for each in upstream))


def windows_of(state: Execution, definition: JobDefinition) -> list[tuple[JobDependency, Window]]:
    """Return the window of each dependency. `definition`: the definition of the plan."""
    request = state.request
    return [(each, window(each, definition, request.scheduled_time)) for each in request.plan.depends_on]


def _patience(state: Execution) -> timedelta:
    timeout = state.request.plan.dependency_timeout
    return timedelta(seconds=MAX_DURATION_S if timeout is None else min(timeout, MAX_DURATION_S))


def _deadline_after(run: Run | None, state: Execution) -> datetime:
    """Return when a wait is over because of a run.

    A run that began after the time of the wait gets the same time to end.
    """
    since = state.planned_at or NOW
    deadline = since + _patience(state)
    return (run.since if run is not None and run.since > deadline else since) + _patience(state)


DEPENDENCY_KEEPER: Final = Stage(
    name="dependency_keeper",
    purpose="holds executions until the jobs on which they depend have run",
    consumes="executions that depend on other jobs, and runs of these jobs",
    decides="`dependencies-settled`",
    access=Access(appends=(DependenciesSettled,), reads_archive=True),
    start=lambda _: DependencyKeeper(),
    subscriptions=(
        Subscription(
            subjects.DEPENDENCY_KEEPER, Stream.LOG, (subjects.DEPENDENTS,), decide=DependencyKeeper.on_planned
        ),
    ),
    deadlines=(
        DeadlineRule(EXECUTION, DependencyKeeper.deadlines_of, DependencyKeeper.on_deadline),
        DeadlineRule(RUNS, DependencyKeeper.changes_of, DependencyKeeper.on_change),
    ),
)
