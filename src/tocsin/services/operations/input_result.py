"""Waiting for what the stages make of an input, so that whoever handed it in can be told."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from ...domain.events import Message, Recorded
from ...ports import EventLog

PAUSES: Final = (0.001, 0.002, 0.004, 0.008, 0.016, *(0.03,) * 10, *(0.1,) * 20)
"""Seconds before each look: what is asked for comes after a few milliseconds, unless the stages are busy, or away."""

Facts: TypeAlias = Sequence[Recorded[Message]]


async def until(log: EventLog, scope: str, is_enough: Callable[[Facts], bool]) -> Facts:
    """The facts of a scope once they are enough, or as they are after some seconds."""
    facts: Facts = ()
    for pause in PAUSES:
        await asyncio.sleep(pause)
        facts = await log.load(scope)
        if is_enough(facts):
            break
    return facts
