"""Answers to the reports of workers over HTTP (ojs-http-binding §7.4 and §7.5)."""

from typing import Any

from ....domain import execution
from ....domain.execution import Phase
from ....services.operations.lookup import ExecutionMatch
from ....services.operations.task_leases import Held
from ....services.operations.worker_answers import Answered
from ..api.problems import Problem
from . import job_view


def not_active(id: str, found: ExecutionMatch, step: str | None) -> Problem:  # noqa: A002 - the field has this name
    """Return the answer to a report on a job that no worker holds."""
    state = job_view.job(found.facts, id=id, step=step)["state"]
    return Problem(409, "conflict", f"job {id} is not active, but {state}")


def completed(id: str, held: Held, found: Answered) -> dict[str, Any]:  # noqa: A002 - as above
    """Return the progress of a job after it was reported as completed.

    Raises:
        Problem: another event decided on the job first, such as a request to cancel it.
    """
    _require_in_time(id, held, found)
    state, step = execution.fold(found.facts), held.claim.message.step
    shown = job_view.progress(found.facts, state, step)
    if state.steps[step].phase is Phase.COMPLETED and not job_view.is_workflow(state):
        shown["state"] = "completed"  # also if other steps continue
    return shown


def failed(id: str, held: Held, found: Answered) -> dict[str, Any]:  # noqa: A002 - as above
    """Return the progress of a job after it was reported as failed.

    Raises:
        Problem: as above.
    """
    _require_in_time(id, held, found)
    return returned(id, held, found)


def _require_in_time(id: str, held: Held, found: Answered) -> None:  # noqa: A002 - as above
    if found.is_overtaken:
        state = job_view.job(found.facts, id=id, step=held.claim.message.step)["state"]
        raise Problem(409, "conflict", f"the report on job {id} came too late; the job is now {state}")


def returned(id: str, held: Held, found: ExecutionMatch) -> dict[str, Any]:  # noqa: A002 - as above
    """Return the progress of a job after it was returned to its queue."""
    shown = job_view.job(found.facts, id=id, step=held.claim.message.step)
    reported = ("state", "attempt", "max_attempts", "next_attempt_at", "retry_delay_ms", "completed_at", "discarded_at")
    return {name: shown[name] for name in reported if name in shown}
