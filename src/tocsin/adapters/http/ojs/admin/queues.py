"""`/ojs/v1/admin/queues` and `/stats`: queues, their counts and decisions on them (ojs-admin-api §6, §10)."""

import time
from collections.abc import Sequence
from typing import Annotated, Final, TypeAlias, TypeVar

from fastapi import Path, Query

from .....domain.events import JobState
from .....ports.summaries import QueueCounts
from .....services import queues as queue_service
from .....services.agents import AgentRegistry
from .....services.operations.event_waiter import EXECUTIONS
from .....services.queues import PERIOD, QueueDetails, count
from ...api.dependencies import Components, Here, Reason
from ...auth.security import Reader, SharedOperator, actor
from ...auth.visibility import seen_agents
from .. import job_view, protocol
from ..batches import BulkRoute
from ..job_filter import catches_up
from ..job_view import Json
from ..protocol import Body, ojs_router, refused
from ..queues import STATES, checked_name, config_of, measured, status_of, switch_queue, warnings_on

PURGED: Final = ["available"]
"""The states of the jobs that a purge covers."""
_MINUTES: Final = PERIOD.total_seconds() / 60
QueueName: TypeAlias = Annotated[str, Path(description="The name of the queue.")]


CATCH_UP_PAUSES_S: Final = (0.01, 0.02, 0.04, 0.08)
"""Pauses between looks whether the history has what was stored before a request. Then the answer is a moment old."""

Page: TypeAlias = Annotated[int, Query(ge=1, le=10_000, description="The page, counted from 1.")]
PerPage: TypeAlias = Annotated[int, Query(ge=1, le=100, description="Items of a page.")]
DEFAULT_PER_PAGE: Final = 20

T = TypeVar("T")


def paged(items: Sequence[T], page: int, per_page: int) -> tuple[Sequence[T], Json]:
    """Return the items of a page, and the description of the page."""
    begin = (page - 1) * per_page
    return items[begin : begin + per_page], {"total": len(items), "page": page, "per_page": per_page}


async def soon_current(here: Components) -> None:
    """Wait briefly for the history, so that an answer has what was stored just now."""
    await catches_up(here, await here.log.tail(EXECUTIONS), CATCH_UP_PAUSES_S)


def require_confirmation(body: Json) -> None:
    """Check that a request confirms that it changes many jobs (ojs-admin-api §4).

    Raises:
        Problem: `confirm` is not true.
    """
    if body.get("confirm") is not True:
        raise refused("confirm", "must be true, because the request changes all jobs that match", body.get("confirm"))


router = ojs_router("/ojs/v1/admin", 404, 409, route_class=BulkRoute)


@router.get("/queues", operation_id="adminListQueues")
async def list_queues(here: Here, caller: Reader, page: Page = 1, per_page: PerPage = DEFAULT_PER_PAGE) -> Json:
    """List the queues with the number of their jobs by state."""
    shown, pagination = paged(await here.queues(caller), page, per_page)
    await soon_current(here)
    async with here.job_searches.turn(caller.party):
        counts = await count(here.history.summaries, here.clock, [queue.name for queue in shown])
    return {"items": list(map(_item, shown, counts)), "pagination": pagination}


@router.get("/queues/{name}", operation_id="adminGetQueue")
async def show_queue(here: Here, caller: Reader, name: QueueName) -> Json:
    """Show a queue with its configuration, which is that of the settings."""
    checked = checked_name(caller, name)
    await soon_current(here)
    queue, counts = await measured(here, caller, checked)
    return {**_item(queue, counts), "configuration": config_of(here, checked)}


@router.post("/queues/{name}/pause", operation_id="adminPauseQueue")
async def pause_queue(here: Here, caller: SharedOperator, name: QueueName, reason: Reason = None) -> Json:
    """Pause a queue: no job is handed out, and new jobs are accepted.

    A queue that does not exist yet is paused too, and the answer has `warnings` (an extension). A caller that is bound to namespaces gets
    404 for it.
    """
    paused = _paused(await switch_queue(here, caller, name, reason, paused=True))
    return {**paused, **await warnings_on(here, caller, name)}


@router.post("/queues/{name}/resume", operation_id="adminResumeQueue")
async def resume_queue(here: Here, caller: SharedOperator, name: QueueName, reason: Reason = None) -> Json:
    """Resume a queue: jobs are handed out again."""
    return _paused(await switch_queue(here, caller, name, reason, paused=False))


@router.delete(
    "/queues/{name}/jobs",
    operation_id="adminPurgeQueue",
    openapi_extra=protocol.body_schema(
        "states",
        "confirm",
        states={"type": "array", "items": {"type": "string", "enum": PURGED}},
        confirm={"type": "boolean"},
    ),
)
async def purge_queue(here: Here, caller: SharedOperator, name: QueueName, body: Body, reason: Reason = None) -> Json:
    """Cancel the jobs that wait in a queue now.

    Ended jobs are evidence, and are not deleted. The answer has the number of jobs that it covers, and comes before all of them are cancelled.
    """
    require_confirmation(body)
    if body.get("states") != PURGED:
        raise refused("states", 'must be `["available"]`: no other jobs are purged', body.get("states"))
    if body.get("older_than") is not None:
        raise refused("older_than", "must be absent: a purge covers all jobs that wait", body["older_than"])
    known = await here.queues(caller)
    purged = await queue_service.purge(
        here.log, known, checked_name(caller, name), by=actor(caller), reason=reason, room=here.registry.room
    )
    return {"purged_count": (purged.waiting or 0) if purged.changed else 0, "states": PURGED}


@router.get("/stats", operation_id="adminStats")
async def stats(here: Here, caller: Reader) -> Json:
    """Count the queues, the workers and the jobs by state that the caller reaches.

    The number of jobs may be a second old, because callers share a count.
    """
    known = {queue.name for queue in await here.queues(caller)}
    await soon_current(here)
    counts = [counts for name, counts in (await here.queue_counts.answer()).items() if name in known]
    agents = seen_agents(caller, await AgentRegistry(here.log, here.projections).agents())
    return {
        "queues": len(known),
        "workers": len(agents),
        "jobs": {state: sum(each.states.get(state, 0) for each in counts) for state in STATES},
        "throughput": _throughput(counts),
        "uptime_seconds": round(time.monotonic() - here.began),
    }


def _item(queue: QueueDetails, counts: QueueCounts) -> Json:
    return {
        "name": queue.name,
        "state": status_of(queue),
        "counts": {state: counts.states.get(state, 0) for state in STATES},
        "throughput": _throughput([counts]),
        **_paused(queue),
    }


def _throughput(counts: Sequence[QueueCounts]) -> dict[str, float]:
    def per_minute(*states: JobState) -> float:
        return round(sum(each.ended.get(state, 0) for each in counts for state in states) / _MINUTES, 4)

    return {
        "processed_per_minute": per_minute("completed", "discarded"),
        "failed_per_minute": per_minute("discarded"),
    }


def _paused(queue: QueueDetails) -> Json:
    since = None if queue.paused is None else job_view.instant(queue.paused.since)
    return {"name": queue.name, "paused": since is not None, **({} if since is None else {"paused_at": since})}
