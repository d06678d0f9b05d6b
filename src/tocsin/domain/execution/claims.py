"""Decisions on who has an attempt: one executor at a time."""

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
from .state import RUNNING, Execution, Phase, Status, identity_fields

MAX_CLAIMS: Final = 20
"""How often one attempt is claimed: a task that ends every process that takes it must not do so for ever."""
_OF_A_STEP: Final = (Dispatched, Started, Released, RetryScheduled, Advanced, Exhausted)


@dataclass(frozen=True, slots=True)
class ClaimDenied:
    """Why a claim is not granted.

    The execution is `over`, the step `done`, the attempt (or its task) `superseded` by a later one; or the attempt is `held` under this
    delivery's number or a later one, by somebody who may be at work, or dead. It is `worn_out` when too many have had it,
    and none has answered: it fails when the last one's time is up.
    """

    reason: Literal["over", "done", "superseded", "held", "worn_out"]


def claim(state: Execution, *, step: str, attempt: int, delivery: int, task: int, worker: str) -> Started | ClaimDenied:
    """Give one delivery of a task to one executor. A later delivery takes an attempt over, an earlier one never does.

    `task` is the sequence of the task that was delivered: one that was given up for lost, and then turns up, is refused.
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


def affects_step(fact: Message, step: str) -> bool:
    """Whether a fact may bear on who has a step. What another step goes through does not, until it ends the execution."""
    return not isinstance(fact, _OF_A_STEP) or fact.step == step


def release(state: Execution, timer: LeaseTimer, *, reason: ReleasedReason) -> list[Released]:
    """Give up a claim, if it is still the one that `timer` is about and nothing has become of it."""
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
    """Whether too many executors have had an attempt, and none has answered: it may be what ends them."""
    lapsed = sum((step, attempt) == (timer.step, timer.attempt) for step, attempt, _ in state.lapsed)
    return lapsed + 1 >= MAX_CLAIMS
