"""The dead letter of an execution: every attempt of every step, from the facts (hip-62, Dead Letter Handling)."""

from collections.abc import Iterable
from typing import Final

from .events import (
    Advanced,
    Attempt,
    DeadLettered,
    Dispatched,
    Exhausted,
    Failed,
    Input,
    Message,
    Recorded,
    Requested,
    RetryScheduled,
    Started,
)

TRACEBACKS: Final = 10
"""The last attempts, whose tracebacks a dead letter keeps."""


def of(failed: Failed, facts: Iterable[Recorded[Message]]) -> DeadLettered:
    """The dead letter of an execution that ended with `failed`, from all of its facts, oldest first."""
    history = list(facts)
    attempts = attempts_of(history)
    times = [a.dispatched_at for a in attempts if a.dispatched_at] + [a.ended_at for a in attempts if a.ended_at]
    ends = times or [recorded.time for recorded in history] or [failed.scheduled_time]
    return DeadLettered(
        job=failed.job,
        id=failed.execution_id,
        execution_id=failed.execution_id,
        scheduled_time=failed.scheduled_time,
        trigger=failed.trigger,
        input=_input_of(history),
        attempts=_with_tracebacks_of_the_last(attempts),
        last_error=failed.error,
        first_attempt=min(ends),
        last_attempt=max(ends),
    )


def _with_tracebacks_of_the_last(attempts: tuple[Attempt, ...]) -> tuple[Attempt, ...]:
    """Hundreds of tracebacks would make a letter that no message can hold; each is in the log with its own fact."""
    earlier = [
        attempt.model_copy(update={"error": attempt.error.model_copy(update={"traceback": None})})
        if attempt.error
        else attempt
        for attempt in attempts[:-TRACEBACKS]
    ]
    return (*earlier, *attempts[-TRACEBACKS:])


def attempts_of(facts: Iterable[Recorded[Message]]) -> tuple[Attempt, ...]:
    """What an execution's facts say of its attempts, in the order in which these were dispatched."""
    attempts: dict[tuple[str, int], Attempt] = {}

    def update(step: str, attempt: int, **known: object) -> None:
        old = attempts.get((step, attempt), Attempt(step=step, attempt=attempt))
        attempts[step, attempt] = old.model_copy(update=known)

    for recorded in facts:
        match recorded.message:
            case Dispatched() as fact:
                update(fact.step, fact.attempt, dispatched_at=recorded.time)
            case Started() as fact:
                update(fact.step, fact.attempt, started_at=recorded.time, worker=fact.worker)
            case RetryScheduled() | Exhausted() as fact:
                update(fact.step, fact.attempt, ended_at=recorded.time, error=fact.error)
            case Advanced() as fact:
                update(fact.step, fact.attempt, ended_at=recorded.time)
            case Failed(step=str(step), attempt=int(attempt)) as fact:
                update(step, attempt, ended_at=recorded.time, error=None if fact.step_completed else fact.error)
            case _:
                pass
    return tuple(attempts.values())


def _input_of(facts: Iterable[Recorded[Message]]) -> Input:
    for recorded in facts:
        if isinstance(recorded.message, Requested):
            plan = recorded.message.plan
            own = {step.name: step.input for step in plan.steps if step.input is not None}
            return {**plan.input, **own}
    return {}
