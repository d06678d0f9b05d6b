"""Decisions on an execution as a whole: admit, skip, cancel, expire, give up."""

from typing import Literal

from ..events import Actor, Admitted, Cancelled, Failed, Failure, Skipped
from .state import Execution, Status, request_fields, terminal_fields
from .steps import Phase


def admit(state: Execution, *, fence: int | None) -> list[Admitted]:
    """Let a planned execution run, under the fencing token of its lock."""
    if state.status is not Status.PLANNED or state.requested is None:
        return []
    return [Admitted(**request_fields(state.requested), fence=fence, recovered_at=state.recovered_at)]


def skip(state: Execution, *, active: str) -> list[Skipped]:
    """Skip a planned execution because `active` holds its lock (ojs-cron §6.1, `skip`)."""
    requested = state.requested
    if state.status is not Status.PLANNED or requested is None:
        return []
    return [
        Skipped(
            job=requested.job,
            execution_id=requested.execution_id,
            reason="overlap_skip",
            scheduled_time=requested.scheduled_time,
            trigger=requested.trigger,
            definition=requested.plan.definition,
            cron_expression=requested.plan.cron_expression,
            timezone=requested.plan.timezone,
            active_execution_id=active,
        )
    ]


def cancel(state: Execution, *, reason: str | None = None, by: Actor | None = None) -> list[Cancelled]:
    """Cancel an execution; return nothing if it is over."""
    if state.status not in {Status.PLANNED, Status.ADMITTED}:
        return []
    return [Cancelled(**terminal_fields(state), reason=reason, by=by)]


def expire(state: Execution) -> list[Failed]:
    """End an execution whose expiry time has come (ojs-core, `expires_at`).

    An attempt that a worker has started may still finish and report.
    """
    if state.status not in {Status.PLANNED, Status.ADMITTED}:
        return []
    expires_at = state.request.plan.expires_at
    if expires_at is None or any(step.phase is Phase.STARTED for step in state.steps.values()):
        return []
    error = Failure(type="expired", message=f"no worker started it before it expired at {expires_at}", retryable=False)
    return [Failed(**terminal_fields(state), error=error, reason="expired", cancelled_steps=unstarted_steps(state))]


def give_up(state: Execution, *, reason: Literal["timed_out", "abandoned"], error: Failure) -> list[Failed]:
    """End an execution that took too long or was lost for good.

    Return nothing if it is over.
    """
    if state.status not in {Status.PLANNED, Status.ADMITTED}:
        return []
    return [
        Failed(
            **terminal_fields(state),
            error=error,
            reason=reason,
            cancelled_steps=unstarted_steps(state),
            dead_letter=state.request.plan.dead_letter,
        )
    ]


def unstarted_steps(state: Execution) -> tuple[str, ...]:
    """Return the steps that were never dispatched."""
    return tuple(name for name, step in state.steps.items() if step.phase is Phase.WAITING)
