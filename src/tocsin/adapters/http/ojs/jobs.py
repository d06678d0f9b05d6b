"""`/ojs/v1/jobs`: any client of the Open Job Spec enqueues here (ojs-http-binding §9).

A job is an execution: it is seen by `tocsin executions show`, cancelled here as there, and audited with all others.

Ids that a client may bring, and else is given: UUIDs of version 7, whose first part is the time.
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
from ....services.operations import cancellation, enqueue
from ....services.operations.lookup import ExecutionMatch, was_archived
from ..api.dependencies import Components, Here
from ..api.problems import FieldError, Problem
from ..auth.security import Reader, Triggerer, actor, forbidden
from . import envelope, job_view, protocol
from .protocol import Body, OjsResponse, documented

_VERSION: Final = 0x7000
_VARIANT: Final = 0x8000_0000_0000_0000


def uuid7(now: datetime) -> str:
    """A new id at `now` (UTC)."""
    milliseconds = int(now.timestamp() * 1000) & 0xFFFF_FFFF_FFFF
    high = milliseconds << 16 | _VERSION | randbits(12)
    return str(UUID(int=high << 64 | _VARIANT | randbits(62)))


MOST: Final = 1_000
"""Jobs of one batch."""

router = APIRouter(
    prefix="/ojs/v1/jobs",
    tags=["Open Job Spec"],
    default_response_class=OjsResponse,
    responses=documented(400, 401, 403, 404, 409, 413, 415, 422, 429, 500, 503),
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
async def push(here: Here, caller: Triggerer, body: Body, response: Response) -> dict[str, Any]:
    """Enqueue a job."""
    made = uuid7(here.clock.now())
    wish = envelope.read(body, made, _defaults(here), actor(caller))
    [shown] = await _pushed(here, [wish], {made})
    response.headers["Location"] = f"/ojs/v1/jobs/{shown['id']}"
    return {"job": shown}


@router.post(
    "/batch",
    status_code=201,
    operation_id="pushJobs",
    openapi_extra=protocol.body_schema("jobs", jobs={"type": "array", "items": {"type": "object"}}),
)
async def push_batch(here: Here, caller: Triggerer, body: Body) -> dict[str, Any]:
    """Enqueue several jobs: all of them, or none if one cannot be used."""
    given = body.get("jobs")
    if not isinstance(given, list) or not 1 <= len(given) <= MOST:
        right = f"must be an array of 1 to {MOST} jobs"
        raise Problem(400, "invalid-request", f"`jobs` {right}", (FieldError(field="jobs", right=right),))
    defaults, wishes = _defaults(here), []
    made = [uuid7(here.clock.now()) for _ in given]
    for index, one in enumerate(given):
        try:
            wishes.append(envelope.read(one, made[index], defaults, actor(caller)))
        except Problem as refusal:
            errors = tuple(
                wrong.model_copy(update={"field": f"jobs[{index}].{wrong.field}"}) for wrong in refusal.errors
            )
            raise Problem(refusal.status, refusal.kind, f"job {index} of the batch: {refusal.detail}", errors) from None
    jobs = await _pushed(here, wishes, set(made))
    return {"jobs": jobs, "count": len(jobs)}


@router.get("/{id}", operation_id="getJobOfOjs")
async def show(here: Here, caller: Reader, id: str) -> dict[str, Any]:  # noqa: A002 - the field is called so
    """Show a job."""
    found = await seen(here, caller, id)
    return {"job": job_view.job(found.facts, id=id)}


@router.delete("/{id}", operation_id="cancelJob")
async def cancel(here: Here, caller: Triggerer, id: str) -> dict[str, Any]:  # noqa: A002 - the field is called so
    """Cancel a job that has not ended."""
    found = await seen(here, caller, id)
    if not await here.visibility.permits(caller, Permission.CANCEL, found.job):
        raise forbidden(caller, Permission.CANCEL)
    before = job_view.job(found.facts, id=id)
    if not execution.fold(found.facts).is_over:
        await cancellation.cancel(here.log, found.execution_id, job=found.job, by=actor(caller), reason="by OJS client")
    found = await job_view.find(here.log, id, here.stored)
    shown = job_view.job(found.facts, id=id)
    if execution.fold(found.facts).status is not Status.CANCELLED or before["state"] == "cancelled":
        raise Problem(409, "conflict", f"job {id} cannot be cancelled: it is {before['state']}")
    return {"job": {**shown, "previous_state": before["state"]}}


async def seen(here: Components, caller: Principal, id: str) -> ExecutionMatch:  # noqa: A002 - the field is called so
    """The execution that stands for a job now, if the caller may know of it.

    Raises:
        Problem: there is none, or none that they may see.
    """
    found = await job_view.find(here.log, id, here.stored)
    if not await here.visibility.may_see(caller, found.job):
        raise Problem(404, "not-found", f"no job has the id {id!r}")
    return found


async def _pushed(here: Components, wishes: Sequence[Enqueued], made: Collection[str]) -> list[dict[str, Any]]:
    """Have them enqueued; `made`: the ids that are new because they were made here."""

    async def was_there(execution_id: str) -> bool:
        return execution_id not in made and await was_archived(execution_id, here.history, here.stored)

    try:
        pushed = await enqueue.enqueue(here.log, *wishes, arrivals=here.arrivals, was_there=was_there)
    except enqueue.Duplicate as error:
        raise Problem(409, "duplicate", str(error)) from None
    return [job_view.job(facts) if facts else _to_come(here, wish) for wish, facts in zip(wishes, pushed, strict=True)]


def _to_come(here: Components, wish: Enqueued) -> dict[str, Any]:
    # Stored, but the stages are away: it will be, as it says.
    kept = wish.definition
    about = job_view.about_of(kept.meta)
    return {
        "id": wish.execution_id,
        "type": kept.function,
        "state": "available" if wish.start_at is None else "scheduled",
        "queue": kept.queue,
        "args": list(kept.args),
        "attempt": 0,
        "priority": about.get("priority", 0),
        "created_at": job_view.instant(here.clock.now()),
        "enqueued_at": job_view.instant(here.clock.now()),
    }


def _defaults(here: Components) -> envelope.Defaults:
    return envelope.Defaults(now=here.clock.now(), timeout=here.settings.execution.default_timeout)
