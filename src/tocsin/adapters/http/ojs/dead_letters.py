"""`/ojs/v1/dead-letter`: jobs that failed permanently (ojs-dead-letter, ojs-http-binding §12)."""

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
from ..auth.security import Reader, Replayer, actor
from . import job_view, protocol
from .jobs import visible_match
from .protocol import OjsResponse, OptionalBody, documented

MAX_LIMIT: Final = 100
CATCH_UP_PAUSES_S: Final = (0.02, 0.05, 0.1, 0.1, 0.1, 0.2, 0.2, 0.3, 0.5)
"""Pauses between checks that the history has read the dead letters that the log had at the request."""

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
    queue: Annotated[str | None, Query(description="Return jobs of this queue only.")] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_LIMIT)] = 50,
    offset: Annotated[int, Query(ge=0, le=10_000)] = 0,
) -> dict[str, Any]:
    """List jobs that failed permanently and are not resolved, newest first."""
    await _await_history(here)
    page = await here.history.dead_letters(DeadLetterQuery(unresolved=True, limit=offset + limit + 1))
    candidates = await asyncio.gather(*(_shown(here, caller, row.job_name, row.execution_id) for row in page.rows))
    jobs = [job for job in candidates if job is not None and queue in {None, job["queue"]}]
    selected = jobs[offset : offset + limit]
    has_more = len(jobs) > offset + limit
    pages = {"total": len(jobs), "limit": limit, "offset": offset, "has_more": has_more}
    return {"jobs": selected, "pagination": pages}


@router.post("/{id}/retry", operation_id="retryDeadJob", openapi_extra=protocol.body_schema(optional=True))
async def retry(here: Here, caller: Replayer, _: OptionalBody, id: str) -> dict[str, Any]:  # noqa: A002 - the field has this name
    """Run a permanently failed job again. Its attempts start at 1."""
    match = await _letter(here, caller, id)
    reason = "retried by OJS client"
    replay = await dead_letters.replay(
        here.log, match.execution_id, by=actor(caller), reason=reason, stored=here.stored
    )
    scope = subjects.execution(match.job, replay.execution_id or match.execution_id)
    events = await event_waiter.until(here.log, scope, enqueue.has_begun)
    if not events:
        raise Problem(
            503,
            "unavailable",
            f"job {id} is stored for a retry, but no stage has started it yet. Check that the stages run",
        )
    return {"job": job_view.job(events, id=id)}


@router.delete("/{id}", operation_id="discardDeadJob")
async def discard(here: Here, caller: Replayer, id: str) -> dict[str, Any]:  # noqa: A002 - the field has this name
    """Resolve a dead letter, so that it is no longer listed. Its events remain."""
    match = await _letter(here, caller, id)
    await dead_letters.resolve(here.log, match.execution_id, by=actor(caller), reason="discarded by OJS client")
    return {"deleted": True, "id": id, "job_id": id}


async def _letter(here: Components, caller: Principal, id: str) -> ExecutionMatch:  # noqa: A002 - the field has this name
    match = await visible_match(here, caller, id)
    await here.visibility.require(caller, Permission.REPLAY, match.job)
    if not await here.log.load(subjects.dead_letter(match.job, match.execution_id)):
        raise NotFound(f"job {id} is not a dead letter")
    return match


async def _shown(here: Components, caller: Principal, job: str, execution_id: str | None) -> dict[str, Any] | None:
    if execution_id is None or not await here.visibility.may_see(caller, job):
        return None
    events = await wherever(here.log, here.stored, subjects.execution(job, execution_id))
    return job_view.job(events) if events else None


async def _await_history(here: Components) -> None:
    """Wait briefly for the history, so that a job that failed just now is listed."""
    newest = await here.log.last("dead-letter.>")
    if newest is None:
        return
    for pause in CATCH_UP_PAUSES_S:
        if await here.history.offset(Stream.LOG) >= newest.sequence:
            return
        await asyncio.sleep(pause)
