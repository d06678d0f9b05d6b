"""What the handlers are given: the parts of an installation, introduced to them by the composition root."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias, cast

from fastapi import Depends, Request

from ....ports import Clock, EventLog, History, Projections, StoredLog, TaskQueues
from ....services.jobs import Registry
from ....services.operations.event_waiter import EventWaiter
from ....settings import Settings
from ..auth.visibility import Visibility


@dataclass(frozen=True)
class Components:
    """One installation, as this adapter sees it."""

    version: str
    settings: Settings
    registry: Registry
    log: EventLog
    stored: StoredLog
    projections: Projections
    history: History
    clock: Clock
    sight: Visibility
    status: Callable[[], Awaitable[dict[str, Any]]]
    """What the installation consists of at this moment."""
    queues: TaskQueues
    arrivals: EventWaiter
    """Tells who enqueues that it has begun, and who answers what was decided on it."""
    reset: Callable[[], Awaitable[None]] | None = None
    """Wipes everything, where that is allowed."""


def parts_of(request: Request) -> Components:
    """What the application was made of."""
    return cast("Components", request.app.state.parts)


async def _parts(request: Request) -> Components:  # a coroutine, since FastAPI has a thread run what is none
    return parts_of(request)


Here: TypeAlias = Annotated[Components, Depends(_parts)]
