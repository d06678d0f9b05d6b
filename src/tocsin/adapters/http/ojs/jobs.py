"""`/ojs/v1/jobs`: enqueue, show and cancel jobs of the Open Job Spec (ojs-http-binding §9).

A job is an execution, so `tocsin executions show`, `tocsin executions cancel` and `tocsin audit` apply to it.
A client may bring a job's id, a UUID of version 7; otherwise the server creates one.
"""

from collections.abc import Collection, Sequence
from datetime import datetime
from secrets import randbits
from typing import Any, Final
from uuid import UUID

from fastapi import APIRouter, Response

from ....domain import execution
from ....domain.access import Permission, Principal
from ....domain.events import Enqueued
from ....domain.execution import Status
from ....services.operations import execution_requests
from ....services.operations.lookup import ExecutionMatch, was_archived
from ..api.dependencies import Components, Here, Traceparent
from ..api.problems import FieldError, Problem
from ..auth.security import HistoryReader, Triggerer, actor, forbidden
from ..auth.visibility import Run
from . import envelope, job_view, protocol
from .protocol import Body, OjsResponse, documented

_VERSION: Final = 0x7000
_VARIANT: Final = 0x8000_0000_0000_0000


def uuid7(now: datetime) -> str:
    """Return a new id of the time `now` (UTC)."""
    milliseconds = int(now.timestamp() * 1000) & 0xFFFF_FFFF_FFFF
    high = milliseconds << 16 | _VERSION | randbits(12)
    return str(UUID(int=high << 64 | _VARIANT | randbits(62)))


MAX_BATCH: Final = 1_000

router = APIRouter(
    prefix="/ojs/v1/jobs",
    tags=["Open Job Spec"],
    default_response_class=OjsResponse,
    responses=documented(400, 401, 403, 404, 409, 413, 422, 429, 500, 503),
)
_ENVELOPE: Final[dict[str, Any]] = {
    "type": {"type": "string"},
    "args": {"type": "array"},
    "options": {"type": "object"},
}


@router.post(
    "",
    status_code=201,
    operation_id="pushJob",
    openapi_extra=protocol.body_schema("type", "args", **_ENVELOPE),
)
async def push(
    here: Here, caller: Triggerer, body: Body, response: Response, traceparent: Traceparent = None
) -> dict[str, Any]:
    """Enqueue a job."""
    execution_id = uuid7(here.clock.now())
    job_input = envelope.read(body, execution_id, await _defaults(here, traceparent), actor(caller))
    [shown] = await _pushed(here, [job_input], {execution_id})
    response.headers["Location"] = f"/ojs/v1/jobs/{shown['id']}"
    return {"job": shown}


@router.post(
    "/batch",
    status_code=201,
    operation_id="pushJobs",
    openapi_extra=protocol.body_schema("jobs", jobs={"type": "array", "items": {"type": "object"}}),
)
async def push_batch(here: Here, caller: Triggerer, body: Body, traceparent: Traceparent = None) -> dict[str, Any]:
    """Enqueue several jobs: all of them, or none if a job is invalid."""
    jobs = body.get("jobs")
    if not isinstance(jobs, list) or not 1 <= len(jobs) <= MAX_BATCH:
        right = f"must be an array of 1 to {MAX_BATCH} jobs"
        raise Problem(400, "invalid-request", f"`jobs` {right}", (FieldError(field="jobs", right=right),))
    defaults, inputs = await _defaults(here, traceparent), []
    execution_ids = [uuid7(here.clock.now()) for _ in jobs]
    for index, job in enumerate(jobs):
        try:
            inputs.append(envelope.read(job, execution_ids[index], defaults, actor(caller)))
        except Problem as problem:
            errors = tuple(
                wrong.model_copy(update={"field": f"jobs[{index}].{wrong.field}"}) for wrong in problem.errors
            )
            raise Problem(problem.status, problem.kind, f"job {index} of the batch: {problem.detail}", errors) from None
    shown = await _pushed(here, inputs, set(execution_ids))
    return {"jobs": shown, "count": len(shown)}


@router.get("/{id}", operation_id="getJobOfOjs")
async def show(here: Here, caller: HistoryReader, id: str) -> dict[str, Any]:  # noqa: A002 - the field has this name
    """Show a job."""
    match = await visible_match(here, caller, id)
    return {"job": job_view.job(match.facts, id=id)}


@router.delete("/{id}", operation_id="cancelJob")
async def cancel(here: Here, caller: Triggerer, id: str) -> dict[str, Any]:  # noqa: A002 - the field has this name
    """Cancel a job that has not ended."""
    match = await visible_match(here, caller, id)
    if not await here.visibility.permits(caller, Permission.CANCEL, Run.of(match)):
        raise forbidden(caller, Permission.CANCEL)
    before = job_view.job(match.facts, id=id)
    if not execution.fold(match.facts).is_over:
        await execution_requests.cancel(
            here.log, match.execution_id, job=match.job, by=actor(caller), reason="by OJS client"
        )
    match = await job_view.find(here.log, id, here.stored)
    shown = job_view.job(match.facts, id=id)
    if execution.fold(match.facts).status is not Status.CANCELLED or before["state"] == "cancelled":
        raise Problem(409, "conflict", f"job {id} cannot be cancelled: it is {before['state']}")
    return {"job": {**shown, "previous_state": before["state"]}}


async def visible_match(here: Components, caller: Principal, id: str) -> ExecutionMatch:  # noqa: A002 - the field has this name
    """Return the current execution of a job, if the caller may see it.

    Raises:
        Problem: no job has this id, or the caller may not see it.
    """
    match = await job_view.find(here.log, id, here.stored)
    if not await here.visibility.may_see_run(caller, Run.of(match)):
        raise Problem(404, "not-found", f"no job has the id {id!r}")
    return match


async def _pushed(here: Components, inputs: Sequence[Enqueued], made: Collection[str]) -> list[dict[str, Any]]:
    """Enqueue inputs and return the jobs. The ids in `made` are certainly new."""

    async def exists(execution_id: str) -> bool:
        return execution_id not in made and await was_archived(execution_id, here.history, here.stored)

    try:
        pushed = await execution_requests.enqueue(here.log, *inputs, arrivals=here.arrivals, was_there=exists)
    except execution_requests.Duplicate as error:
        raise Problem(409, "duplicate", str(error)) from None
    return [
        job_view.job(facts) if facts else _pending(here, job_input)
        for job_input, facts in zip(inputs, pushed, strict=True)
    ]


def _pending(here: Components, job_input: Enqueued) -> dict[str, Any]:
    # The input is stored, and no stage has processed it yet.
    definition = job_input.definition
    return {
        "id": job_input.execution_id,
        "type": definition.function,
        "state": "available" if job_input.start_at is None else "scheduled",
        "queue": definition.queue,
        "args": list(definition.args),
        "attempt": 0,
        "priority": definition.priority,
        "created_at": job_view.instant(here.clock.now()),
        "enqueued_at": job_view.instant(here.clock.now()),
    }


async def _defaults(here: Components, traceparent: str | None) -> envelope.Defaults:
    ceiling = (await here.registry.policies.recent()).policy.job_timeout
    timeout = ceiling or here.settings.execution.default_timeout
    return envelope.Defaults(now=here.clock.now(), timeout=timeout, max_timeout=ceiling, traceparent=traceparent)
