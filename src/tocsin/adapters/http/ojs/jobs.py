"""`/ojs/v1/jobs`: enqueue, show and cancel jobs of the Open Job Spec (ojs-http-binding §9).

A job is an execution, so `tocsin executions show`, `tocsin executions cancel` and `tocsin audit` apply to it.
A client may bring a job's id, a UUID of version 7; otherwise the server creates one.
"""

from collections.abc import Collection
from datetime import datetime
from secrets import randbits
from typing import Any, Final
from uuid import UUID

from fastapi import Request, Response

from ....domain import execution, ids
from ....domain.access import Permission, Principal
from ....domain.execution import Status
from ....services.operations import execution_requests
from ....services.operations.lookup import ExecutionMatch
from ..api.dependencies import Components, Here, Traceparent
from ..api.problems import Problem
from ..auth.security import HistoryReader, Triggerer, actor, forbidden
from ..auth.visibility import Run
from ..middleware.idempotency import IdempotentRoute, request_name
from . import envelope, job_view, protocol
from .enqueued_jobs import Batch, enqueue_all
from .protocol import Body, Id, ojs_router

_VERSION: Final = 0x7000
_VARIANT: Final = 0x8000_0000_0000_0000


def uuid7(now: datetime) -> str:
    """Return a new id of the time `now` (UTC)."""
    milliseconds = int(now.timestamp() * 1000) & 0xFFFF_FFFF_FFFF
    high = milliseconds << 16 | _VERSION | randbits(12)
    return str(UUID(int=high << 64 | _VARIANT | randbits(62)))


router = ojs_router("/ojs/v1/jobs", 404, 409, 413, route_class=IdempotentRoute)
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
    here: Here, caller: Triggerer, request: Request, body: Body, response: Response, traceparent: Traceparent = None
) -> dict[str, Any]:
    """Enqueue a job."""
    execution_id, is_retried = made_id(here, request)
    left_out = await defaults(here, traceparent)
    job_input = envelope.within(
        caller, envelope.read(body, execution_id, left_out, actor(caller)), left_out, execution_id
    )
    [outcome] = await enqueue_all(here, caller, Batch([job_input], {execution_id}, is_retried=is_retried))
    response.headers["Location"] = f"/ojs/v1/jobs/{outcome.job['id']}"
    if outcome.is_duplicate:
        response.status_code = 200
        return {"job": outcome.job, "deduplicated": True}
    return {"job": outcome.job}


def made_id(here: Components, request: Request) -> tuple[str, bool]:
    """Return an id for a request, and whether an earlier try may have enqueued it.

    With an idempotency key, the id is made from the key, so that a repeated request finds what the first enqueued.
    """
    name = request_name(request)
    if name is None:
        return uuid7(here.clock.now()), False
    return ids.enqueued_id(name.name, 0, name.since or here.clock.now()), name.is_retried


@router.get("/{id}", operation_id="getJobOfOjs")
async def show(here: Here, caller: HistoryReader, job_id: Id) -> dict[str, Any]:
    """Show a job."""
    match = await visible_match(here, caller, job_id)
    return {"job": job_view.job(match.facts, job_id=job_id, step=job_id.partition(":")[2] or None)}


@router.delete("/{id}", operation_id="cancelJob")
async def cancel(here: Here, caller: Triggerer, job_id: Id) -> dict[str, Any]:
    """Cancel a job that has not ended."""
    return {"job": await cancel_job(here, caller, job_id)}


async def cancel_job(
    here: Components, caller: Principal, job_id: str, *, states: Collection[str] | None = None
) -> dict[str, Any]:
    """Cancel a job that has not ended, and return it.

    `states`: the states in which it is cancelled; None: all before its end.

    Raises:
        Problem: no job has this id, the caller may not cancel it, it is over, or it is in another state.
    """
    match = await visible_match(here, caller, job_id)
    if not await here.visibility.permits(caller, Permission.CANCEL, Run.of(match)):
        raise forbidden(caller, Permission.CANCEL)
    before = job_view.job(match.facts, job_id=job_id, step=job_id.partition(":")[2] or None)
    if job_view.is_workflow(execution.fold(match.facts)):
        workflow = match.execution_id
        detail = f"job {job_id} is part of a workflow: cancel workflow {workflow}"
        raise Problem(409, "conflict", detail, facts={"workflow_id": workflow})
    if states is not None and before["state"] not in states:
        raise Problem(409, "conflict", f"job {job_id} is not cancelled: it is {before['state']}")

    def is_chosen(state: execution.Execution) -> bool:
        return states is None or (not state.is_over and job_view.state_of(state) in states)

    if not execution.fold(match.facts).is_over:
        await execution_requests.cancel(
            *(here.log, match.execution_id),
            job=match.job,
            by=actor(caller),
            reason="by OJS client",
            only_if=is_chosen,
        )
    match = await job_view.find(here.log, job_id)
    shown = job_view.job(match.facts, job_id=job_id)
    if execution.fold(match.facts).status is not Status.CANCELLED or before["state"] == "cancelled":
        raise Problem(409, "conflict", f"job {job_id} cannot be cancelled: it is {shown['state']}")
    return {**shown, "previous_state": before["state"]}


async def visible_match(here: Components, caller: Principal, job_id: str) -> ExecutionMatch:
    """Return the current execution of a job, if the caller may see it.

    Raises:
        NotFound: no job has this id, or the caller may not see it.
    """

    async def sees(match: ExecutionMatch) -> bool:
        return await here.visibility.may_see_run(caller, Run.of(match))

    match = await job_view.find(here.log, job_id, sees=sees)
    if not await sees(match):  # a retry may have run under another definition
        raise job_view.unknown(job_id)
    return match


async def defaults(here: Components, traceparent: str | None) -> envelope.Defaults:
    """Return the values of fields that a pushed job leaves out."""
    ceiling = (await here.registry.policies.recent()).policy.job_timeout
    timeout = ceiling or here.settings.execution.default_timeout
    return envelope.Defaults(
        now=here.clock.now(),
        timeout=timeout,
        max_timeout=ceiling,
        traceparent=traceparent,
        remembered=here.settings.archive.hot_window,
        namespaces=await here.registry.namespaces.names(),
    )
