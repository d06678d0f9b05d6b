"""`/ojs/v1/dead-letter`: jobs that failed for good (ojs-dead-letter, ojs-http-binding §12)."""

import asyncio
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query

from .... import subjects
from ....archive.stream_reader import wherever
from ....domain.access import Permission, Principal
from ....ports.queries import DeadLetterQuery
from ....services.operations import dead_letters, enqueue, event_waiter
from ....services.operations.errors import NotFound
from ....services.operations.lookup import ExecutionMatch
from ....subjects import Stream
from ..api.dependencies import Components, Here
from ..api.problems import Problem
from ..auth.security import Reader, Replayer, actor, forbidden
from . import job_view, protocol
from .protocol import OjsResponse, OptionalBody, documented

MOST: Final = 100
CAUGHT_UP: Final = (0.02, 0.05, 0.1, 0.1, 0.1, 0.2, 0.2, 0.3, 0.5)
"""Seconds before each look whether the history has recorded what was in the log when it was asked."""

router = APIRouter(
    prefix="/ojs/v1/dead-letter",
    tags=["Open Job Spec"],
    default_response_class=OjsResponse,
    responses=documented(400, 401, 403, 404, 409, 429, 500, 503),
)


@router.get("", operation_id="listDeadJobs")
async def list_dead(
    here: Here,
    caller: Reader,
    queue: Annotated[str | None, Query(description="Only those of a queue.")] = None,
    limit: Annotated[int, Query(ge=1, le=MOST)] = 50,
    offset: Annotated[int, Query(ge=0, le=10_000)] = 0,
) -> dict[str, Any]:
    """Jobs that failed for good and that nobody has dealt with, the newest first."""
    await _caught_up(here)
    page = await here.history.dead_letters(DeadLetterQuery(unresolved=True, limit=offset + limit + 1))
    shown = await asyncio.gather(*(_shown(here, caller, row.job_name, row.execution_id) for row in page.rows))
    jobs = [job for job in shown if job is not None and queue in {None, job["queue"]}]
    some = jobs[offset : offset + limit]
    has_more = len(jobs) > offset + limit
    pages = {"total": len(jobs), "limit": limit, "offset": offset, "has_more": has_more}
    return {"jobs": some, "pagination": pages}


@router.post("/{id}/retry", operation_id="retryDeadJob", openapi_extra=protocol.body_schema(optional=True))
async def retry(here: Here, caller: Replayer, _: OptionalBody, id: str) -> dict[str, Any]:  # noqa: A002 - the field is called so
    """Run a job again that failed for good: its attempts are counted anew."""
    found = await _letter(here, caller, id)
    why = "retried by OJS client"
    replay = await dead_letters.replay(here.log, found.execution_id, by=actor(caller), reason=why, stored=here.stored)
    scope = subjects.execution(found.job, replay.execution_id or found.execution_id)
    facts = await event_waiter.until(here.log, scope, enqueue.has_begun)
    if not facts:
        raise Problem(503, "unavailable", f"job {id} will be run again, but the stages are away")
    return {"job": job_view.job(facts, id=id)}


@router.delete("/{id}", operation_id="discardDeadJob")
async def discard(here: Here, caller: Replayer, id: str) -> dict[str, Any]:  # noqa: A002 - the field is called so
    """Settle it: it is listed no more. Its facts stay, as all do."""
    found = await _letter(here, caller, id)
    await dead_letters.resolve(here.log, found.execution_id, by=actor(caller), reason="discarded by OJS client")
    return {"deleted": True, "id": id, "job_id": id}


async def _letter(here: Components, caller: Principal, id: str) -> ExecutionMatch:  # noqa: A002 - the field is called so
    found = await job_view.find(here.log, id, here.stored)
    if not await here.visibility.may_see(caller, found.job):
        raise NotFound(f"no job has the id {id!r}")
    if not await here.visibility.permits(caller, Permission.REPLAY, found.job):
        raise forbidden(caller, Permission.REPLAY)
    if not await here.log.load(subjects.dead_letter(found.job, found.execution_id)):
        raise NotFound(f"job {id} is no dead letter")
    return found


async def _shown(here: Components, caller: Principal, job: str, execution_id: str | None) -> dict[str, Any] | None:
    if execution_id is None or not await here.visibility.may_see(caller, job):
        return None
    facts = await wherever(here.log, here.stored, subjects.execution(job, execution_id))
    return job_view.job(facts) if facts else None


async def _caught_up(here: Components) -> None:
    """Wait, not for ever, until the history knows what the log knew: a job that failed just now is listed."""
    newest = await here.log.last("dead-letter.>")
    if newest is None:
        return
    for pause in CAUGHT_UP:
        if await here.history.offset(Stream.LOG) >= newest.sequence:
            return
        await asyncio.sleep(pause)
