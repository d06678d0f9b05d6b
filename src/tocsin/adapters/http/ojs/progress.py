"""`/ojs/v1/jobs/{id}/progress`: progress and checkpoints of jobs (ojs-progress; PRG-001, 002 and 004 to 008)."""

from email.utils import format_datetime
from typing import Any, Final

from fastapi import Response

from ....domain import execution
from ....domain.definition import size_of
from ....domain.definition.fields import json_problem
from ....domain.events import StepProgress
from ....domain.execution import Status
from ....domain.progress import MAX_CHECKPOINT_BYTES, MAX_DATA_BYTES, fraction_of
from ....services.operations.worker_answers import ProgressReport, newest_progress, store_progress
from ..api.dependencies import Here
from ..auth.security import HistoryReader, TaskWorker
from . import job_view, jobs, protocol, workers
from .protocol import Body, Id, ojs_router, refused

router = ojs_router("/ojs/v1/jobs/{id}/progress", 404, 409, 413)
_LIMITS: Final = {"data": MAX_DATA_BYTES, "checkpoint": MAX_CHECKPOINT_BYTES}


@router.put(
    "",
    operation_id="reportProgress",
    openapi_extra=protocol.body_schema(
        progress={"type": "number"},
        message={"type": "string"},
        data={"type": "object"},
        checkpoint={"type": "object"},
        worker_id={"type": "string"},
    ),
)
async def report_progress(here: Here, caller: TaskWorker, job_id: Id, body: Body) -> dict[str, Any]:
    """Report the progress of a job that the caller holds. It is a heartbeat too.

    `checkpoint` is shown to the next attempt as `last_checkpoint`. A report on a job that is not active changes nothing.
    """
    report = _read(body)
    held = await workers.held_if_active(here, job_id, workers.holder_of(caller, body))
    if held is None:
        return {"job_id": job_id, "accepted": False}
    progress = await store_progress(here.log, here.clock, held, report, key=here.report_key)
    return {"job_id": job_id, "accepted": True, "progress": progress.fraction, **_details(progress)}


@router.get("", operation_id="getProgress")
async def get_progress(here: Here, caller: HistoryReader, job_id: Id, response: Response) -> dict[str, Any]:
    """Show the newest progress of a job; null if none was reported."""
    match = await jobs.visible_match(here, caller, job_id)
    step = job_id.partition(":")[2] or job_view.current_step(match.facts)
    shown = job_view.job(match.facts, job_id=job_id, step=step)
    progress = await newest_progress(here.log, match, step)
    state = execution.fold(match.facts)
    if progress is not None and not (state.is_over or progress.attempt >= state.steps[progress.step].attempt):
        progress = None  # of an earlier attempt (ojs-progress §5.3)
    fraction = None
    response.headers["Cache-Control"] = "no-cache"
    if progress is not None:
        fraction = 1.0 if state.status is Status.COMPLETED else fraction_of(progress.fraction) or 0.0
        response.headers["X-OJS-Progress"] = f"{fraction:g}"
        response.headers["Last-Modified"] = format_datetime(progress.time, usegmt=True)
    return {
        "job_id": job_id,
        "state": shown["state"],
        "progress": fraction,
        **_details(progress),
        "updated_at": None if progress is None else job_view.instant(progress.time),
    }


def _details(progress: StepProgress | None) -> dict[str, Any]:
    return {
        "message": None if progress is None else progress.message or None,
        "data": None if progress is None else progress.data or None,
    }


def _read(body: dict[str, Any]) -> ProgressReport:
    written = body.get("progress")
    fraction = None if written is None else fraction_of(written)
    if written is not None and fraction is None:
        raise refused("progress", "must be a number from 0 to 1")
    message = body.get("message")
    if message is not None and not isinstance(message, str):
        raise refused("message", "must be a text")
    for field, limit in _LIMITS.items():
        value = body.get(field)
        if value is not None and not isinstance(value, dict):
            raise refused(field, "must be an object")
        if value is not None and (problem := json_problem(value)):
            raise refused(field, f"cannot be stored: {problem}")
        if value is not None and size_of(value) > limit:
            raise refused(field, f"must be at most {limit:,} bytes of JSON")
    if written is None and message is None and body.get("data") is None:
        raise refused("progress", "or `message` or `data` must be present")
    return ProgressReport(fraction, message, body.get("data"), body.get("checkpoint"))
