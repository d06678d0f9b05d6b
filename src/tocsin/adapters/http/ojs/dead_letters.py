"""`/ojs/v1/dead-letter`: jobs that failed permanently (ojs-dead-letter, ojs-http-binding §12)."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, Final, NamedTuple

from fastapi import Query, Request

from .... import subjects
from ....domain import dead_letter, execution
from ....domain.access import Permission, Principal
from ....domain.events import Message, Recorded
from ....domain.execution import Execution, Phase
from ....ports import DeadLetterRow, recorded_upto
from ....ports.queries import DeadLetterQuery, Place
from ....services.operations import dead_letters, event_waiter, execution_requests
from ....services.operations.errors import NotFound
from ....services.operations.lookup import ExecutionMatch
from ....subjects import DecodeError, Stream
from ..api.dependencies import Components, Here
from ..api.problems import Problem
from ..auth.security import HistoryReader, Replayer, actor, forbidden
from ..auth.visibility import Run
from ..middleware.idempotency import IdempotentRoute, request_name
from . import job_view, protocol
from .job_view import MAX_REPLAYS, about_of, newest_replay
from .jobs import visible_match
from .protocol import Id, OptionalBody, ojs_router

MAX_LIMIT: Final = 200
MAX_READ_TOGETHER: Final = 100
"""Dead letters whose events are read at the same time."""
MAX_OFFSET: Final = 10_000
MAX_COUNTED: Final = MAX_OFFSET + MAX_LIMIT + 1
"""Dead letters that a request reads from the history."""
MAX_READ: Final = 1_000
"""Dead letters whose events a request reads to find those of a queue."""
CATCH_UP_PAUSES_S: Final = (0.02, 0.05, 0.1, 0.1, 0.1, 0.2, 0.2, 0.3, 0.5)
"""Pauses between checks that the history has read the dead letters that the log had at the request."""

router = ojs_router("/ojs/v1/dead-letter", 404, 409, route_class=IdempotentRoute)


class _Letter(NamedTuple):
    """A dead letter and its place in the history, where several may have one id."""

    row: DeadLetterRow
    place: Place


@router.get("", operation_id="listDeadJobs")
async def list_dead(
    here: Here,
    caller: HistoryReader,
    queue: Annotated[str | None, Query(description="Return jobs of this queue only.")] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_LIMIT)] = 50,
    offset: Annotated[int, Query(ge=0, le=MAX_OFFSET)] = 0,
    cursor: Annotated[
        str | None, Query(description="Continue after a page: its `next_cursor`. Skip `offset` jobs from there.")
    ] = None,
) -> dict[str, Any]:
    """List jobs that failed permanently and are not resolved, newest first.

    A request searches a limited number of dead letters, from the cursor on. `total` counts those found;
    `next_cursor` continues the list, and is null at its end. A dead letter that was retried is no longer shown, so a page may be
    short: if the retry failed too, its dead letter is shown.
    """
    if (newest := await here.log.last("dead-letter.>")) is not None:  # a job that failed just now is listed
        await recorded_upto(here.history, Stream.LOG, newest.sequence, CATCH_UP_PAUSES_S)
    query = DeadLetterQuery(unresolved=True, limit=1_000, cursor=cursor, namespaces=caller.reached)
    rows, searched = await _search(here, caller, query, MAX_COUNTED if queue is None else MAX_READ)
    end = offset + limit
    if queue is None:
        total, page = len(rows), rows[offset:end]
        jobs = [job for _, job in await _views(here, caller, page)]
    else:  # only an execution's events name its queue
        matching = [(row, job) for row, job in await _views(here, caller, rows) if job["queue"] == queue]
        total, page = len(matching), [row for row, _ in matching[offset:end]]
        jobs = [job for _, job in matching[offset:end]]
    after = page[-1].place.cursor if total > end else searched
    place = {"total": total, "limit": limit, "offset": offset, "has_more": after is not None, "next_cursor": after}
    return {"jobs": jobs, "pagination": place}


@router.post("/{id}/retry", operation_id="retryDeadJob", openapi_extra=protocol.body_schema(optional=True))
async def retry(here: Here, caller: Replayer, request: Request, _: OptionalBody, job_id: Id) -> dict[str, Any]:
    """Run a permanently failed job again. Its attempts start at 1."""
    return {"job": await retry_job(here, caller, request, job_id)}


async def retry_job(here: Components, caller: Principal, request: Request, job_id: str) -> dict[str, Any]:
    """Run a permanently failed job again, and return it.

    A request with an idempotency key that ran the job again before, which the answer may not say, runs it no second time.
    """
    match, name = await _replayable(here, caller, job_id), request_name(request)
    key = None if name is None else name.name
    execution_id = None if key is None else await of_request(here, match.job, job_id.partition(":")[0], key)
    if execution_id is None:
        await _require_letter(here, match, job_id)
        replay = await dead_letters.replay(
            here.log,
            match.execution_id,
            job=match.job,
            by=actor(caller),
            reason="retried by OJS client",
            request=key,
        )
        execution_id = replay.execution_id or match.execution_id
    return job_view.job(await begun(here, match.job, execution_id, f"job {job_id}"), job_id=job_id)


@router.delete("/{id}", operation_id="discardDeadJob")
async def discard(here: Here, caller: Replayer, job_id: Id) -> dict[str, Any]:
    """Resolve a dead letter, so that it is no longer listed. Its events remain."""
    match = await _replayable(here, caller, job_id, of_workflow=True)
    await _require_letter(here, match, job_id)
    cause = "discarded by OJS client"
    await dead_letters.resolve(here.log, match.execution_id, job=match.job, by=actor(caller), reason=cause)
    return {"deleted": True, "id": job_id, "job_id": job_id}


async def _replayable(here: Components, caller: Principal, job_id: str, *, of_workflow: bool = False) -> ExecutionMatch:
    match = await visible_match(here, caller, job_id)
    if job_view.is_workflow(execution.fold(match.facts)) and not of_workflow:
        workflow = job_id.partition(":")[0]
        detail = f"job {job_id} is part of a workflow: retry workflow {workflow}"
        raise Problem(409, "conflict", detail, facts={"workflow_id": workflow})
    if not await here.visibility.permits_replay(caller, Run.of(match)):
        raise forbidden(caller, Permission.REPLAY)
    return match


async def _require_letter(here: Components, match: ExecutionMatch, job_id: str) -> None:
    if not await here.log.load(subjects.dead_letter(match.job, match.execution_id)):
        raise NotFound(f"job {job_id} is not a dead letter")


async def _search(
    here: Components, caller: Principal, query: DeadLetterQuery, most: int
) -> tuple[list[_Letter], str | None]:
    """Return the visible dead letters among the next `most`, and the cursor after them."""
    rows: list[_Letter] = []
    while True:
        page = await here.history.dead_letters(replace(query, limit=min(query.limit, most)))
        rows += [
            _Letter(row, place)
            for row, place in zip(page.rows, page.places, strict=True)
            if row.execution_id is not None and await here.visibility.may_see_run(caller, Run.of(row))
        ]
        most -= len(page.rows)
        if page.cursor is None or most <= 0:
            return rows, page.cursor
        query = replace(query, cursor=page.cursor)


async def _views(here: Components, caller: Principal, rows: Sequence[_Letter]) -> list[tuple[_Letter, dict[str, Any]]]:
    """Return the jobs of dead letters that were not retried and have events."""
    views: list[tuple[_Letter, dict[str, Any]]] = []
    for start in range(0, len(rows), MAX_READ_TOGETHER):
        part = rows[start : start + MAX_READ_TOGETHER]
        jobs = await asyncio.gather(*(_dead_job(here, caller, letter.row) for letter in part))
        views += [(row, job) for row, job in zip(part, jobs, strict=True) if job is not None]
    return views


async def _dead_job(here: Components, caller: Principal, row: DeadLetterRow) -> dict[str, Any] | None:
    """Return the job of a dead letter; of a workflow, the first job that failed."""
    events = await facts_of(here, row)
    if not events:
        return None
    state = execution.fold(events)
    if not job_view.is_workflow(state):
        return job_view.job(events, state=state, job_id=await id_of(here, caller, state))
    failed = [name for name, step in state.steps.items() if step.phase is Phase.EXHAUSTED]
    step = failed[0] if failed else job_view.current_step(events)
    return job_view.job(events, job_id=f"{state.request.execution_id}:{step}", step=step, state=state)


class NotStarted(Problem):
    """A retry is stored, and no stage has started it yet."""

    code = "unavailable"
    is_momentary = True


async def of_request(here: Components, job: str, execution_id: str, key: str) -> str | None:
    """Return the id of the execution that a request led to, if any.

    `key` is made from its idempotency key. `execution_id` is that of the job's first execution. The execution may have failed too, and have run again by another request.
    """
    for _ in range(MAX_REPLAYS):
        state = dead_letter.fold(await here.log.load(subjects.dead_letter(job, execution_id)))
        if (replay := dead_letter.find_replay(state, key)) is not None:
            return replay.execution_id
        newest = await newest_replay(here.log, job, execution_id)
        if newest is None:
            break
        execution_id = newest.execution_id
    return None


async def begun(here: Components, job: str, execution_id: str, name: str) -> Sequence[Recorded[Message]]:
    """Return the events of a retry after a stage started it; `name`: for the error."""
    events = await event_waiter.until(here.log, subjects.execution(job, execution_id), execution_requests.has_begun)
    if not events:
        detail = f"{name} is stored for a retry, but no stage has started it yet. Check that the stages run"
        raise NotStarted(503, "unavailable", detail)
    return events


async def facts_of(here: Components, row: DeadLetterRow) -> Sequence[Recorded[Message]]:
    """Return the events of a dead letter's execution, unless it ran again."""
    if row.execution_id is None:
        return ()
    try:
        if await newest_replay(here.log, row.job_name, row.execution_id) is not None:
            return ()  # it stays in the history's list until it is resolved
        return await here.log.load(subjects.execution(row.job_name, row.execution_id))
    except DecodeError:  # the other dead letters are listed nevertheless
        return ()


async def id_of(here: Components, caller: Principal, state: Execution) -> str:
    """Return the id by which `job_view.find` finds an execution.

    It is that of the job's first execution. If a later retry or another definition keeps the first from leading to this execution, it
    is the execution's own.
    """
    request = state.request
    if (own := about_of(request.plan.meta).get("id")) is not None:  # a retry has the same plan
        return str(own)
    current, before = request.execution_id, request.replay_of
    for _ in range(MAX_REPLAYS):
        try:
            newest = None if before is None else await newest_replay(here.log, request.job, before)
            if before is None or newest is None or newest.execution_id != current:
                break
            facts = await here.log.load(subjects.execution(request.job, before))
        except DecodeError:  # of a later version
            break
        requested = execution.fold(facts).requested
        if requested is None or not await here.visibility.may_see_run(caller, Run.of_facts(request.job, facts)):
            break
        current, before = before, requested.replay_of
    return current
