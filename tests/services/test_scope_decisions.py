"""Decisions of operators while others decide."""

from collections.abc import Sequence
from typing import Final

import pytest

from tocsin import subjects
from tocsin.domain.events import (
    Message,
    QueuePaused,
    QueuePurged,
    QueueResumed,
    Recorded,
)
from tocsin.ports import LogUnavailable
from tocsin.services import documents
from tocsin.testing import InMemoryEventLog, ManualClock

QUEUE: Final = subjects.queue("mail")


async def newest(log: InMemoryEventLog, scope: str) -> Message:
    return (await log.read(scope))[-1].message


async def test_decision_is_made_again_after_another() -> None:
    log = InMemoryEventLog(ManualClock())
    rivals = [QueuePaused(queue="mail"), QueueResumed(queue="mail")]

    async def purged(stored: Sequence[Recorded[Message]]) -> list[QueuePurged]:
        if rivals:
            await log.append(rivals.pop(0), expect=stored[-1].sequence if stored else 0)
        return [QueuePurged(queue="mail", upto=len(stored) + 1)]

    [fact] = await documents.decide(log, QUEUE, purged)
    assert fact.upto == 3
    assert await newest(log, QUEUE) == fact


async def test_decision_gives_up_after_rivals() -> None:
    log = InMemoryEventLog(ManualClock())

    async def paused(stored: Sequence[Recorded[Message]]) -> list[QueuePaused]:
        await log.append(QueueResumed(queue="mail"), expect=stored[-1].sequence if stored else 0)
        return [QueuePaused(queue="mail")]

    with pytest.raises(LogUnavailable, match="other writers"):
        await documents.decide(log, QUEUE, paused)
