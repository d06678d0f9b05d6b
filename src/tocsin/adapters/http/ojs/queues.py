"""`/ojs/v1/queues`: list, show, pause and resume queues (ojs-queue-config, ojs-http-binding §11).

A pause is an operator's decision, an event of the queue. A `native` queue is a durable of the log, and NATS pauses the
durable itself.
"""

from typing import Any

from fastapi import APIRouter

from ....domain.access import Principal
from ....ports import QueueStatus
from ....services.jobs.registry import each
from ....services.queues import QueueDetails, find
from ....settings import Queue
from ..api.dependencies import Components, Here, Reason
from ..api.problems import FieldError, Problem
from ..api.queue_details import switch
from ..auth.security import Reader, SharedOperator
from . import envelope, job_view
from .protocol import DEFAULT_LIMIT, Limit, Offset, OjsResponse, documented

router = APIRouter(
    prefix="/ojs/v1/queues",
    tags=["Open Job Spec"],
    default_response_class=OjsResponse,
    responses=documented(400, 401, 403, 404, 409, 429, 500, 503),
)


@router.get("", operation_id="listQueues")
async def list_queues(here: Here, caller: Reader, limit: Limit = DEFAULT_LIMIT, offset: Offset = 0) -> dict[str, Any]:
    """List the queues."""
    others = {queue.name: queue for queue in await here.queue_details(caller.may_see) if _is_decided(queue)}
    names = sorted({*await here.queues.names(), *others})
    end = offset + limit
    shown = names[offset:end]
    pulled = await each([name for name in shown if name not in others], here.queues.standing)
    standings = {standing.name: standing for standing in pulled if standing is not None}
    standings |= {name: _standing_of(queue) for name, queue in others.items()}
    pages = {"total": len(names), "limit": limit, "offset": offset, "has_more": len(names) > end}
    return {"queues": [_queue_of(standings[name]) for name in shown if name in standings], "pagination": pages}


@router.get("/{name}/stats", operation_id="queueStats")
async def stats(here: Here, caller: Reader, name: str) -> dict[str, Any]:
    """Show the backlog of a queue."""
    standing = await _standing(here, caller, name)
    return {
        "queue": _queue_of(standing),
        "name": name,
        "status": "paused" if standing.is_paused else "active",
        "stats": {"available": standing.waiting, "in_hand": standing.in_hand},
        "computed_at": job_view.instant(here.clock.now()),
    }


@router.post("/{name}/pause", operation_id="pauseQueue")
async def pause(here: Here, caller: SharedOperator, name: str, reason: Reason = None) -> dict[str, Any]:
    """Pause a queue: no job is handed out, and new jobs are accepted."""
    if await _is_pulled(here, _checked_name(name)):
        await here.queues.pause(name)
    else:
        await switch(here, caller, name, paused=True, reason=reason)
    return await _answer(here, caller, name)


@router.post("/{name}/resume", operation_id="resumeQueue")
async def resume(here: Here, caller: SharedOperator, name: str, reason: Reason = None) -> dict[str, Any]:
    """Resume a queue: jobs are handed out again."""
    if await _is_pulled(here, _checked_name(name)):
        await here.queues.resume(name)
    else:
        await switch(here, caller, name, paused=False, reason=reason)
    return await _answer(here, caller, name)


def not_pulled(name: str, transport: str, right: str, *, field: str) -> Problem:
    """Return the answer to a queue of a wrong transport."""
    right = f"must name queues whose transport is {right}; that of {name!r} is `{transport}`"
    return Problem(409, "queue-not-pulled", f"`{field}` {right}", (FieldError(field=field, right=right),))


async def _answer(here: Components, caller: Principal, name: str) -> dict[str, Any]:
    standing = await _standing(here, caller, name)
    return {"queue": _queue_of(standing), "name": name, "status": "paused" if standing.is_paused else "active"}


async def _standing(here: Components, caller: Principal, name: str) -> QueueStatus:
    standing = await here.queues.standing(_checked_name(name))
    if standing is None:
        return _standing_of(find(name, await here.queue_details(caller.may_see)))
    return standing


async def _is_pulled(here: Components, name: str) -> bool:
    """Return whether workers take the tasks of a queue by themselves."""
    transport = here.settings.queues.get(name, Queue()).transport
    if transport != "native":
        return False
    is_known = name in here.settings.pulled_queues or here.reset is not None
    return is_known or await here.queues.standing(name) is not None


def _is_decided(queue: QueueDetails) -> bool:
    """Return whether operators pause a queue by an event."""
    return queue.transport in {"matched", "mq"}


def _standing_of(queue: QueueDetails) -> QueueStatus:
    return QueueStatus(queue.name, queue.paused is not None, queue.waiting or 0, queue.taken or 0)


def _checked_name(name: str) -> str:
    if not envelope.QUEUE.fullmatch(name):
        raise Problem(404, "not-found", f"no queue is called {name!r}")
    return name


def _queue_of(standing: QueueStatus) -> dict[str, Any]:
    status = "paused" if standing.is_paused else "active"
    return {"name": standing.name, "paused": standing.is_paused, "status": status, "available": standing.waiting}
