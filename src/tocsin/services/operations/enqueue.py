"""Run a job once that is not registered (ojs-core, PUSH).

The request is an input, and the planner makes an execution of it. The call returns once that execution has started, so
that the caller can read it.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

from ... import subjects
from ...domain.events import Admitted, Dispatched, Enqueued
from ...ports import EventLog
from .errors import OperationError
from .event_waiter import EventWaiter, Facts, awaited_of

AT_ONCE: Final = 64
"""Requests in flight at the same time."""

WasThere: TypeAlias = Callable[[str], Awaitable[bool]]


class Duplicate(OperationError):
    """An execution with this id exists."""

    code = "duplicate-job"

    def __init__(self, execution_id: str) -> None:
        super().__init__(f"a job with the id {execution_id!r} was enqueued before")
        self.execution_id = execution_id


async def enqueue(
    log: EventLog, *wishes: Enqueued, arrivals: EventWaiter | None = None, was_there: WasThere | None = None
) -> list[Facts]:
    """Request executions: all of them, or none if an id is taken.

    Returns the facts of each execution, or none for one that has not started within some seconds.

    Args:
        log: receives the requests and holds the facts.
        wishes: the requested executions.
        arrivals: delivers new facts, so that the call need not poll.
        was_there: returns whether an archived execution has an id that the log does not know.

    Raises:
        Duplicate: an id exists, or is requested twice.
        LogUnavailable: it is unknown which requests are stored; retry with the same ids.
    """
    limit = asyncio.Semaphore(AT_ONCE)

    async def is_taken(wish: Enqueued) -> bool:
        async with limit:
            if await log.load(subjects.execution(subjects.ANY, wish.execution_id)):
                return True
            return was_there is not None and await was_there(wish.execution_id)

    async def request(wish: Enqueued) -> Facts:
        subject = subjects.subject_of(wish)
        async with limit:
            with awaited_of(log, arrivals, subjects.execution(wish.definition.name, wish.execution_id)) as awaited:
                await log.publish(subject, wish, message_id=subject)
                return await awaited.until(has_begun)

    seen: set[str] = set()
    taken = await asyncio.gather(*map(is_taken, wishes))
    for wish, is_there in zip(wishes, taken, strict=True):
        if is_there or wish.execution_id in seen:
            raise Duplicate(wish.execution_id)
        seen.add(wish.execution_id)
    return list(await asyncio.gather(*map(request, wishes)))


def has_begun(facts: Facts) -> bool:
    """Return whether an execution has a task, or is scheduled for later."""
    return any(
        isinstance(fact.message, Dispatched)
        or (isinstance(fact.message, Admitted) and fact.message.plan.start_at is not None)
        for fact in facts
    )
