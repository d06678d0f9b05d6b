"""Answers to the reports of workers over HTTP (ojs-http-binding §7.4 and §7.5)."""

from typing import Any

from ....domain import execution
from ....domain.execution import Phase
from ....services.operations import worker_answers
from ....services.operations.lookup import ExecutionMatch
from ....services.operations.task_leases import Held
from ..api.problems import Problem
from . import job_view


def not_active(id: str, found: ExecutionMatch, step: str | None) -> Problem:  # noqa: A002 - the field has this name
    """Return the answer to a report on a job that no worker holds."""
    state = job_view.job(found.facts, id=id, step=step)["state"]
    return Problem(409, "conflict", f"job {id} is not active, but {state}")


def completed(id: str, held: Held, found: ExecutionMatch) -> dict[str, Any]:  # noqa: A002 - as above
    """Return the progress of a job after it was reported as completed.

    Raises:
        Problem: another event decided on the job first, such as a request to cancel it.
    """
    state, step = execution.fold(found.facts), held.claim.message.step
    if worker_answers.is_overtaken(held, state, is_success=True):
        raise not_active(id, found, step)
    shown = job_view.progress(found.facts, state, step)
    if state.steps[step].phase is Phase.COMPLETED and not job_view.is_workflow(state):
        shown["state"] = "completed"  # also if other steps continue
    return shown


def failed(id: str, held: Held, found: ExecutionMatch) -> dict[str, Any]:  # noqa: A002 - as above
    """Return the progress of a job after it was reported as failed.

    Raises:
        Problem: as above.
    """
    if worker_answers.is_overtaken(held, execution.fold(found.facts), is_success=False):
        raise not_active(id, found, held.claim.message.step)
    return returned(id, held, found)


def returned(id: str, held: Held, found: ExecutionMatch) -> dict[str, Any]:  # noqa: A002 - as above
    """Return the progress of a job after it was returned to its queue."""
    shown = job_view.job(found.facts, id=id, step=held.claim.message.step)
    reported = ("state", "attempt", "max_attempts", "next_attempt_at", "retry_delay_ms", "completed_at", "discarded_at")
    return {name: shown[name] for name in reported if name in shown}
