"""Running once what is registered nowhere (ojs-core, PUSH).

The wish is an input, and the planner makes an execution of it; so that whoever asked sees what they asked for, the answer
waits until that has begun.
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
"""Wishes that are asked for at the same time."""

WasThere: TypeAlias = Callable[[str], Awaitable[bool]]


class Duplicate(OperationError):
    """There is an execution of that id already."""

    code = "duplicate-job"

    def __init__(self, execution_id: str) -> None:
        super().__init__(f"a job with the id {execution_id!r} was enqueued before")
        self.execution_id = execution_id


async def enqueue(
    log: EventLog, *wishes: Enqueued, arrivals: EventWaiter | None = None, was_there: WasThere | None = None
) -> list[Facts]:
    """Ask for executions: for all of them, or for none where one cannot be.

    The facts of each as far as it has come, or none where it has not begun within some seconds.

    Args:
        log: where the wishes go, and the facts are.
        wishes: what is to be run.
        arrivals: to hear that they have begun, and not to ask for it.
        was_there: is asked whether an execution had an id that the log does not know.

    Raises:
        Duplicate: an execution of one of the ids exists, or two of them have the same.
        LogUnavailable: nobody knows which of them are stored: ask again, under the same ids.
    """
    limit = asyncio.Semaphore(AT_ONCE)

    async def is_taken(wish: Enqueued) -> bool:
        async with limit:
            if await log.load(subjects.execution(subjects.ANY, wish.execution_id)):
                return True
            return was_there is not None and await was_there(wish.execution_id)

    async def ask(wish: Enqueued) -> Facts:
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
    return list(await asyncio.gather(*map(ask, wishes)))


def has_begun(facts: Facts) -> bool:
    """It is in its queue, or waits for its time."""
    return any(
        isinstance(fact.message, Dispatched)
        or (isinstance(fact.message, Admitted) and fact.message.plan.start_at is not None)
        for fact in facts
    )
