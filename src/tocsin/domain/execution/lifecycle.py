"""Decisions on an execution as a whole, and on the only step of an execution.

A task of an only step carries a second token. It proves that the execution has no other step, and every field that the
end of the execution repeats.
"""

from collections.abc import Collection, Sequence
from typing import Final, Literal, TypeAlias

from .. import quorum
from ..events import (
    Actor,
    Admitted,
    Cancelled,
    DependenciesSettled,
    DependencyRun,
    ExecutionFact,
    Failed,
    Failure,
    QueuePurged,
    Recorded,
    Skipped,
    SkipReason,
    WaitOutcome,
)
from .state import Execution, Status, identity_fields, request_fields, terminal_fields
from .steps import Phase

WholeReason: TypeAlias = Literal["timed_out", "abandoned", "expired", "poison"]
"""The reason why an execution as a whole failed."""
TIMED_OUT: Final = "timed_out"
ABANDONED: Final = "abandoned"
EXPIRED: Final = "expired"
OF_EXECUTION: Final = 0
"""The attempt that a report on an execution as a whole names; attempts count from 1, so no worker has a proof of it."""


def admit(state: Execution, *, fence: int | None) -> list[Admitted]:
    """Let a planned execution run, under the fencing token of its lock.

    It may have the lock before its waits are over: an earlier delivery of its trigger took it, under a definition without them.
    """
    if state.status is not Status.PLANNED or state.requested is None or state.is_held:
        return []
    return [Admitted(**request_fields(state.requested), fence=fence, recovered_at=state.recovered_at)]


def settle(
    state: Execution,
    outcome: WaitOutcome,
    runs: tuple[DependencyRun, ...],
) -> list[DependenciesSettled]:
    """End the wait of an execution for other jobs, if it waits."""
    if not state.is_dependent:
        return []
    return [DependenciesSettled(**identity_fields(state), outcome=outcome, runs=runs)]


def gather(
    state: Execution, heard: Collection[str], candidates: Sequence[str], *, is_late: bool, is_surplus: bool = False
) -> list[ExecutionFact]:
    """Propose an execution, store acknowledgements, or end its wait for them.

    Return nothing if it does not wait. `is_surplus`: as many executions of its job as may wait do so. See `quorum.gather`.
    """
    if not state.is_proposed or (rule := state.request.plan.quorum) is None:
        return []
    proposal = quorum.Proposal(state.request.job, state.request.execution_id, rule)
    if is_surplus:
        return [quorum.settle(proposal, "queue_full")]
    return quorum.gather(state.quorum, proposal, heard, candidates, is_late=is_late)


def skip_reason(state: Execution) -> SkipReason | None:
    """Return why an execution is skipped after its waits; None: it may take its lock."""
    if state.settled is not None and state.settled.outcome != "met":
        return state.settled.outcome
    if state.quorum.settled is not None and state.quorum.settled.outcome != "reached":
        return state.quorum.settled.outcome
    return None


def skip(state: Execution, *, active: str | None, reason: SkipReason = "overlap_skip") -> list[Skipped]:
    """Skip a planned execution because `active` holds its lock (ojs-cron §6.1).

    `reason` says whether the overlap policy decided so, a full queue, the jobs on which it depends, or missing
    acknowledgements; then no execution is active.
    """
    requested = state.requested
    if state.status is not Status.PLANNED or requested is None:
        return []
    return [
        Skipped.of(
            requested,
            reason,
            active_execution_id=active,
            traceparent=requested.traceparent,
            shard=requested.plan.shard,
        )
    ]


def cancel(state: Execution, *, reason: str | None = None, by: Actor | None = None) -> list[Cancelled]:
    """Cancel an execution; return nothing if it is over."""
    if state.status not in {Status.PLANNED, Status.ADMITTED}:
        return []
    return [Cancelled(**terminal_fields(state), reason=reason, by=by)]


def purge(state: Execution, purged: Recorded[QueuePurged], *, step: str, task: int) -> list[Cancelled]:
    """Cancel an execution whose task was purged.

    Return nothing if the task does not wait. `task` is the sequence of the task. A worker that claimed it is not interrupted.
    """
    current = state.steps.get(step)
    if state.status is not Status.ADMITTED or current is None:
        return []
    if current.phase is not Phase.DISPATCHED or current.task != task or task > purged.message.upto:
        return []
    fact = purged.message
    reason = f"queue {fact.queue} purged" + (f": {fact.reason}" if fact.reason else "")
    return [Cancelled(**terminal_fields(state), reason=reason, by=fact.by, purge=purged.sequence)]


def expiry(state: Execution) -> Failure | None:
    """Return the error of an execution whose expiry time has come (ojs-core, `expires_at`).

    None: it is over, or a worker has started an attempt, which may still finish and report.
    """
    if state.status not in {Status.PLANNED, Status.ADMITTED}:
        return None
    expires_at = state.request.plan.expires_at
    if expires_at is None or any(step.phase is Phase.STARTED for step in state.steps.values()):
        return None
    return Failure(type=EXPIRED, message=f"no worker started it before it expired at {expires_at}", retryable=False)


def give_up(state: Execution, reason: WholeReason, error: Failure) -> list[Failed]:
    """End an execution that took too long, expired, or was lost for good.

    Return nothing if it is over, or started before it expired.
    """
    if state.status not in {Status.PLANNED, Status.ADMITTED} or (reason == EXPIRED and expiry(state) is None):
        return []
    return [
        Failed(
            **terminal_fields(state),
            error=error,
            reason=reason,
            cancelled_steps=unstarted_steps(state),
            dead_letter=state.request.plan.dead_letter and reason != EXPIRED,
        )
    ]


def unstarted_steps(state: Execution) -> tuple[str, ...]:
    """Return the steps that were never dispatched."""
    return tuple(name for name, step in state.steps.items() if step.phase is Phase.WAITING)
