"""`/v1/queues`: list, show, pause, resume and purge the queues of all transports."""

from typing import Annotated, Literal, TypeAlias

from fastapi import APIRouter, Path, Query, Request
from pydantic import BaseModel

from ....domain.access import Principal
from ....services import queues
from ....services.queue_decisions import PurgeAnswer
from ....services.queues import QueueDetails, find
from ..auth.security import Reader, SharedOperator
from ..middleware.idempotency import IdempotentRoute, forget_key
from .dependencies import Cause, Components, Here
from .problems import documented

router = APIRouter(prefix="/v1/queues", tags=["queues"], route_class=IdempotentRoute)

QueueName: TypeAlias = Annotated[str, Path(description="The queue's name.", max_length=255)]


class QueueList(BaseModel):
    """Queues, sorted by name; `next` is the cursor of the following page."""

    queues: list[QueueDetails]
    next: str | None = None


class QueueSwitched(BaseModel):
    """Whether the request changed the state of the queue."""

    queue: str
    action: Literal["paused", "resumed"]
    changed: bool


@router.get("", operation_id="getQueues")
async def get_queues(
    here: Here,
    caller: Reader,
    after: Annotated[
        str | None,
        Query(max_length=255, description="Return queues that sort after this name: `next` of the previous page."),
    ] = None,
    limit: Annotated[int, Query(ge=1, le=1_000)] = 1_000,
) -> QueueList:
    """List the queues of the settings and of the jobs that the caller sees.

    Each has its transport, its tasks, the agents that serve it, and what operators decided about it.
    """
    known = [queue for queue in await here.queues(caller) if after is None or queue.name > after]
    page = known[:limit]
    return QueueList(queues=page, next=page[-1].name if len(known) > limit else None)


@router.get("/{name}", operation_id="getQueue", responses=documented(404))
async def get_queue(here: Here, caller: Reader, name: QueueName) -> QueueDetails:
    """Show a queue."""
    return find(name, await here.queues(caller))


@router.post("/{name}/pause", operation_id="pauseQueueTasks", responses=documented(404, 409))
async def pause(here: Here, caller: SharedOperator, name: QueueName, cause: Cause) -> QueueSwitched:
    """Let the tasks of a queue wait until it is resumed; running tasks finish."""
    changed = await switch(here, caller, name, paused=True, reason=cause)
    return QueueSwitched(queue=name, action="paused", changed=changed)


@router.post("/{name}/resume", operation_id="resumeQueueTasks", responses=documented(404, 409))
async def resume(here: Here, caller: SharedOperator, name: QueueName, cause: Cause) -> QueueSwitched:
    """Hand out the tasks of a paused queue again."""
    changed = await switch(here, caller, name, paused=False, reason=cause)
    return QueueSwitched(queue=name, action="resumed", changed=changed)


@router.post("/{name}/purge", operation_id="purgeQueue", responses=documented(404, 409))
async def purge(
    here: Here,
    caller: SharedOperator,
    request: Request,
    name: QueueName,
    cause: Cause,
    *,
    dry_run: Annotated[bool, Query(description="Only answer how many tasks wait.")] = False,
) -> PurgeAnswer:
    """Cancel the executions whose tasks wait in a queue now.

    Tasks that a worker has, tasks that the MQ bridge has handed over, and tasks that are dispatched later are not touched. The answer
    comes before all of them are cancelled.
    """
    if dry_run:
        forget_key(request)
    queue = find(name, await here.queues(caller))
    return await queues.purge(here.queue_decisions(caller), queue, reason=cause, dry_run=dry_run)


async def switch(here: Components, caller: Principal, name: str, *, paused: bool, reason: str | None = None) -> bool:
    """Pause or resume a queue that the caller sees; return whether that changed anything."""
    queue = find(name, await here.queues(caller))
    return await here.queue_decisions(caller).switch(queue.name, paused=paused, reason=reason)
