"""`/v1/queues`: list and show the queues of all transports."""

from typing import Annotated

from fastapi import APIRouter, Path
from pydantic import BaseModel

from ....services.queues import QueueDetails, find
from ..auth.security import Reader
from .dependencies import Here
from .problems import documented

router = APIRouter(prefix="/v1/queues", tags=["queues"])


class QueueList(BaseModel):
    """Queues, sorted by name."""

    queues: list[QueueDetails]


@router.get("", operation_id="getQueues")
async def get_queues(here: Here, caller: Reader) -> QueueList:
    """List the queues of the settings and of the jobs that the caller sees.

    Each has its transport, its tasks, and the agents that serve it.
    """
    return QueueList(queues=list(await here.queue_details(caller.may_see)))


@router.get("/{name}", operation_id="getQueue", responses=documented(404))
async def get_queue(
    here: Here, caller: Reader, name: Annotated[str, Path(description="The queue's name.", max_length=255)]
) -> QueueDetails:
    """Show a queue."""
    return find(name, await here.queue_details(caller.may_see))
