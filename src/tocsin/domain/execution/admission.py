"""Decisions on whether an execution may run."""

from ..events import Admitted, Skipped
from .identity_fields import request_fields
from .state import Execution, Status


def admit(state: Execution, *, fence: int | None) -> list[Admitted]:
    """Let a planned execution run, under the fencing token of its lock."""
    if state.status is not Status.PLANNED or state.requested is None:
        return []
    return [Admitted(**request_fields(state.requested), fence=fence, recovered_at=state.recovered_at)]


def skip(state: Execution, *, active: str) -> list[Skipped]:
    """Do not run a planned execution, since `active` holds its lock (ojs-cron §6.1, `skip`)."""
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
