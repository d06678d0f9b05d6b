"""The effect of each event on the state of an execution."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from ..events import (
    Admitted,
    Advanced,
    Cancelled,
    Completed,
    Dispatched,
    Exhausted,
    Failed,
    Message,
    Plan,
    Planned,
    Recorded,
    Recovered,
    Released,
    RetryScheduled,
    Skipped,
    Started,
    admission_of,
)
from .state import Execution, Status, initial, with_step
from .steps import Phase, Step, Steps


def evolve(state: Execution, recorded: Recorded[Message]) -> Execution:  # noqa: C901, PLR0911, PLR0912 - one case a fact
    """Return the state after an event; an event that does not fit changes nothing."""
    fact = recorded.message
    match fact:
        case Admitted():
            return _admitted(state, Recorded(fact, recorded.subject, recorded.sequence, recorded.time))
        case Planned():
            return Execution(Status.PLANNED, fact, None, _steps_of(fact.plan))
        case Dispatched():
            if (admission := admission_of(recorded)) is not None:
                state = _admitted(state, admission)
            return with_step(state, fact.step, Step(Phase.DISPATCHED, fact.attempt, task=recorded.sequence))
        case Started():
            return with_step(state, fact.step, _started(state.steps.get(fact.step, Step()), fact, recorded.sequence))
        case Recovered():
            return _recovered(state, fact)
        case Released():
            return _released(state, fact)
        case RetryScheduled():
            return with_step(state, fact.step, Step(Phase.RETRYING, fact.attempt, next_attempt_at=fact.next_attempt_at))
        case Advanced():
            return with_step(state, fact.step, Step(Phase.COMPLETED, fact.attempt, result=fact.result))
        case Exhausted():
            return with_step(
                state, fact.step, Step(Phase.EXHAUSTED, fact.attempt, error=fact.error, reason=fact.reason)
            )
        case Completed():
            return replace(state, status=Status.COMPLETED)
        case Failed():
            return replace(state, status=Status.FAILED)
        case Cancelled():
            return replace(state, status=Status.CANCELLED)
        case Skipped():
            return replace(state, status=Status.SKIPPED, decided=recorded)
        case _:
            return state


def fold(facts: Iterable[Recorded[Message]], state: Execution = initial) -> Execution:
    """Return the state after events, oldest first."""
    for recorded in facts:
        state = evolve(state, recorded)
    return state


def _admitted(state: Execution, admission: Recorded[Admitted]) -> Execution:
    fact = admission.message
    steps = _steps_of(fact.plan)
    return Execution(
        Status.ADMITTED, fact, fact.fence, steps, state.recoveries, fact.recovered_at, state.lapsed, admission
    )


def _steps_of(plan: Plan) -> Mapping[str, Step]:
    first = Step()
    if plan.start_at is not None:
        first = Step(Phase.RETRYING, next_attempt_at=plan.start_at)  # the first attempt waits like a retry
    steps = {step.name: Step() if step.depends_on else first for step in plan.steps}
    return Steps(plan.steps, steps) if len(steps) > 1 else steps


def _started(step: Step, fact: Started, sequence: int) -> Step:
    claims = step.claims + 1 if step.attempt == fact.attempt else 1
    leased = fact.lease is not None
    return Step(
        Phase.STARTED, fact.attempt, fact.delivery, task=step.task, claims=claims, leased=leased, claim=sequence
    )


def _recovered(state: Execution, fact: Recovered) -> Execution:
    """Mark lost tasks that are still unclaimed; they are dispatched again."""
    state = replace(state, recoveries=max(state.recoveries, fact.recovery), recovered_at=fact.recovered_at)
    for lost in fact.lost:
        step = state.steps.get(lost.step or "")
        if lost.step and step and step.phase is Phase.DISPATCHED and step.attempt == lost.attempt:
            state = with_step(state, lost.step, replace(step, phase=Phase.LOST))
    return state


def _released(state: Execution, fact: Released) -> Execution:
    """Mark the released task as lost; it is dispatched again."""
    if fact.reason == "lease_over":  # counted even if the claim event is missing
        state = replace(state, lapsed=state.lapsed | {(fact.step, fact.attempt, fact.task)})
    step = state.steps.get(fact.step)
    if step is None or step.phase is not Phase.STARTED or (step.attempt, step.task) != (fact.attempt, fact.task):
        return state
    return with_step(state, fact.step, replace(step, phase=Phase.LOST))
