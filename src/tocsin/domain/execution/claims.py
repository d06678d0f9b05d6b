"""Decisions on claims: at most one worker holds an attempt."""

from dataclasses import dataclass
from typing import Final, Literal

from ..events import (
    Advanced,
    Dispatched,
    Exhausted,
    LeaseTimer,
    Message,
    Released,
    ReleasedReason,
    RetryScheduled,
    Started,
)
from .state import Execution, Status, identity_fields
from .steps import RUNNING, Phase

MAX_CLAIMS: Final = 20
"""Claims of one attempt; the limit stops a task that kills every process that takes it."""
_OF_A_STEP: Final = (Dispatched, Started, Released, RetryScheduled, Advanced, Exhausted)


@dataclass(frozen=True, slots=True)
class ClaimDenied:
    """The reason why a claim is denied.

    `over`: the execution is over. `done`: the step is done. `superseded`: a later attempt or task exists. `held`: this
    delivery or a later one holds the attempt; that worker may be busy or dead. `worn_out`: too many workers have
    claimed the attempt and none has reported; it fails when the time of the last claim is up.
    """

    reason: Literal["over", "done", "superseded", "held", "worn_out"]


def claim(state: Execution, *, step: str, attempt: int, delivery: int, task: int, worker: str) -> Started | ClaimDenied:
    """Give a delivery of a task to a worker.

    A later delivery takes over an attempt; an earlier one never does. `task` is the sequence of the delivered task; a
    task that was lost and turns up later is denied.
    """
    current = state.steps.get(step)
    if state.status is not Status.ADMITTED or state.requested is None or current is None:
        return ClaimDenied("over")
    if current.phase in {Phase.COMPLETED, Phase.EXHAUSTED}:
        return ClaimDenied("done")
    if current.phase not in RUNNING or attempt != current.attempt or task < current.task:
        return ClaimDenied("superseded")
    if delivery <= current.delivery or current.leased:
        return ClaimDenied("held")
    if current.claims >= MAX_CLAIMS:
        return ClaimDenied("worn_out")
    return Started(
        job=state.requested.job,
        execution_id=state.requested.execution_id,
        step=step,
        attempt=attempt,
        delivery=delivery,
        worker=worker,
    )


def affected_step(fact: Message) -> str | None:
    """Return the step whose claim an event may affect; None: every step.

    Events of another step do not affect a claim, until they end the execution.
    """
    return fact.step if isinstance(fact, _OF_A_STEP) else None


def release(state: Execution, timer: LeaseTimer, *, reason: ReleasedReason) -> list[Released]:
    """Release a claim if it is still the claim of `timer` and has no outcome."""
    step = state.steps.get(timer.step)
    if state.status is not Status.ADMITTED or step is None or step.phase is not Phase.STARTED:
        return []
    if (step.attempt, step.delivery, step.task) != (timer.attempt, timer.delivery, timer.task):
        return []
    return [
        Released(
            **identity_fields(state),
            step=timer.step,
            attempt=timer.attempt,
            delivery=timer.delivery,
            task=timer.task,
            reason=reason,
        )
    ]


def has_reached_claim_limit(state: Execution, timer: LeaseTimer) -> bool:
    """Return whether an attempt has had too many claims without a report.

    The attempt itself may be what kills its workers.
    """
    lapsed = sum((step, attempt) == (timer.step, timer.attempt) for step, attempt, _ in state.lapsed)
    return lapsed + 1 >= MAX_CLAIMS
