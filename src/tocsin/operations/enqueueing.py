"""Running once what is registered nowhere (ojs-core, PUSH).

The wish is an input, and the planner makes an execution of it; so that whoever asked sees what they asked for, the answer
waits until that has begun.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from .. import subjects
from ..domain.events import Admitted, Dispatched, Enqueued, Message, Recorded
from ..ports import EventLog
from .refusals import Refusal

PAUSES: Final = (0.001, 0.002, 0.004, 0.008, 0.016, *(0.03,) * 10, *(0.1,) * 20)
"""Seconds before each look: it begins after a few milliseconds, unless the stages are busy, or away."""

Facts = Sequence[Recorded[Message]]


class Duplicate(Refusal):
    """There is an execution of that id already."""

    def __init__(self, execution_id: str) -> None:
        super().__init__(f"a job with the id {execution_id!r} was enqueued before")
        self.execution_id = execution_id


async def enqueue(log: EventLog, wish: Enqueued) -> Facts:
    """Ask for one execution; its facts as far as it has come, or none where it has not begun within some seconds.

    Raises:
        Duplicate: an execution of that id exists.
        LogUnavailable: nobody knows whether it is stored: ask again, under the same id.
    """
    if await log.load(subjects.execution(subjects.ANY, wish.execution_id)):
        raise Duplicate(wish.execution_id)
    subject = subjects.subject_of(wish)
    await log.publish(subject, wish, message_id=subject)
    return await until(log, subjects.execution(wish.definition.name, wish.execution_id), has_begun)


async def until(log: EventLog, scope: str, is_enough: Callable[[Facts], bool]) -> Facts:
    """The facts of a scope once they are enough, or as they are after some seconds."""
    facts: Facts = ()
    for pause in PAUSES:
        await asyncio.sleep(pause)
        facts = await log.load(scope)
        if is_enough(facts):
            break
    return facts


def has_begun(facts: Facts) -> bool:
    """It is in its queue, or waits for its time."""
    return any(
        isinstance(fact.message, Dispatched)
        or (isinstance(fact.message, Admitted) and fact.message.plan.start_at is not None)
        for fact in facts
    )
