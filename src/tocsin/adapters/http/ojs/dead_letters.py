"""`/ojs/v1/dead-letter`: jobs that failed permanently (ojs-dead-letter, ojs-http-binding §12)."""

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query

from .... import subjects
from ....archive.stream_reader import wherever
from ....domain.access import Permission, Principal
from ....ports.queries import DeadLetterQuery, every
from ....services.operations import dead_letters, event_waiter, execution_requests
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
HISTORY_PAGE_SIZE: Final = 1_000
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
    executions = [
        (row.job_name, row.execution_id)
        async for row in every(here.history.dead_letters, DeadLetterQuery(unresolved=True, limit=HISTORY_PAGE_SIZE))
        if row.execution_id is not None and await here.visibility.may_see(caller, row.job_name)
    ]
    if queue is None:
        total = len(executions)
        jobs = await _views(here, executions[offset : offset + limit])
    else:  # only an execution's events name its queue
        matching = [job for job in await _views(here, executions) if job["queue"] == queue]
        total = len(matching)
        jobs = matching[offset : offset + limit]
    pages = {"total": total, "limit": limit, "offset": offset, "has_more": total > offset + limit}
    return {"jobs": jobs, "pagination": pages}


@router.post("/{id}/retry", operation_id="retryDeadJob", openapi_extra=protocol.body_schema(optional=True))
async def retry(here: Here, caller: Replayer, _: OptionalBody, id: str) -> dict[str, Any]:  # noqa: A002 - the field has this name
    """Run a permanently failed job again. Its attempts start at 1."""
    match = await _letter(here, caller, id)
    reason = "retried by OJS client"
    replay = await dead_letters.replay(
        here.log, match.execution_id, by=actor(caller), reason=reason, stored=here.stored
    )
    scope = subjects.execution(match.job, replay.execution_id or match.execution_id)
    events = await event_waiter.until(here.log, scope, execution_requests.has_begun)
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


async def _views(here: Components, executions: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
    """Return the jobs of executions, without executions whose events are gone."""
    views: list[dict[str, Any]] = []
    for start in range(0, len(executions), MAX_LIMIT):
        scopes = [subjects.execution(job, execution_id) for job, execution_id in executions[start : start + MAX_LIMIT]]
        histories = await asyncio.gather(*(wherever(here.log, here.stored, scope) for scope in scopes))
        views += [job_view.job(events) for events in histories if events]
    return views


async def _await_history(here: Components) -> None:
    """Wait briefly for the history, so that a job that failed just now is listed."""
    newest = await here.log.last("dead-letter.>")
    if newest is None:
        return
    for pause in CATCH_UP_PAUSES_S:
        if await here.history.offset(Stream.LOG) >= newest.sequence:
            return
        await asyncio.sleep(pause)
