"""`/ojs/v1/queues`: list, show, pause and resume queues (ojs-queue-config, ojs-http-binding §11).

A queue is a durable of the log, and NATS pauses the durable itself, so a pause holds for all copies of the API.
"""

from typing import Any

from fastapi import APIRouter

from ....ports import QueueStatus
from ....services.jobs.registry import each
from ....settings import Queue
from ..api.dependencies import Components, Here
from ..api.problems import FieldError, Problem
from ..auth.security import Reader, SharedOperator
from . import envelope, job_view
from .protocol import DEFAULT_LIMIT, Limit, Offset, OjsResponse, documented

router = APIRouter(
    prefix="/ojs/v1/queues",
    tags=["Open Job Spec"],
    default_response_class=OjsResponse,
    responses=documented(400, 401, 403, 404, 429, 500, 503),
)


@router.get("", operation_id="listQueues")
async def list_queues(here: Here, _: Reader, limit: Limit = DEFAULT_LIMIT, offset: Offset = 0) -> dict[str, Any]:
    """List the queues."""
    names = await here.queues.names()
    end = offset + limit
    standings = await each(names[offset:end], here.queues.standing)
    pages = {"total": len(names), "limit": limit, "offset": offset, "has_more": len(names) > end}
    return {"queues": [_queue_of(standing) for standing in standings if standing is not None], "pagination": pages}


@router.get("/{name}/stats", operation_id="queueStats")
async def stats(here: Here, _: Reader, name: str) -> dict[str, Any]:
    """Show the backlog of a queue."""
    standing = await _standing(here, name)
    return {
        "queue": _queue_of(standing),
        "name": name,
        "status": "paused" if standing.is_paused else "active",
        "stats": {"available": standing.waiting, "in_hand": standing.in_hand},
        "computed_at": job_view.instant(here.clock.now()),
    }


@router.post("/{name}/pause", operation_id="pauseQueue")
async def pause(here: Here, _: SharedOperator, name: str) -> dict[str, Any]:
    """Pause a queue: no job is handed out, and new jobs are accepted."""
    require_pulled(here, _checked_name(name))
    await here.queues.pause(name)
    return await _answer(here, name)


@router.post("/{name}/resume", operation_id="resumeQueue")
async def resume(here: Here, _: SharedOperator, name: str) -> dict[str, Any]:
    """Resume a queue: jobs are handed out again."""
    require_pulled(here, _checked_name(name))
    await here.queues.resume(name)
    return await _answer(here, name)


def require_pulled(here: Components, name: str, *, field: str = "name") -> None:
    """Check that workers take the tasks of a queue by themselves.

    Raises:
        Problem: the matcher or the MQ bridge brings its tasks to executors.
    """
    transport = here.settings.queues.get(name, Queue()).transport
    if transport != "native":
        right = f"must name queues whose transport is `native`; that of {name!r} is `{transport}`"
        raise Problem(409, "queue-not-pulled", f"`{field}` {right}", (FieldError(field=field, right=right),))


async def _answer(here: Components, name: str) -> dict[str, Any]:
    standing = await _standing(here, name)
    return {"queue": _queue_of(standing), "name": name, "status": "paused" if standing.is_paused else "active"}


async def _standing(here: Components, name: str) -> QueueStatus:
    standing = await here.queues.standing(_checked_name(name))
    if standing is None:
        raise Problem(404, "not-found", f"no queue is called {name!r}")
    return standing


def _checked_name(name: str) -> str:
    if not envelope.QUEUE.fullmatch(name):
        raise Problem(404, "not-found", f"no queue is called {name!r}")
    return name


def _queue_of(standing: QueueStatus) -> dict[str, Any]:
    status = "paused" if standing.is_paused else "active"
    return {"name": standing.name, "paused": standing.is_paused, "status": status, "available": standing.waiting}
