"""The number of jobs of each queue, counted once for all callers."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from datetime import timedelta
from typing import Final

from ..ports import Clock
from ..ports.summaries import HistorySummaries, QueueCounts
from .shared_read import SharedRead

PERIOD: Final = timedelta(hours=1)
"""The time of the throughput."""
COUNTED_TOGETHER: Final = 8
"""Queues whose jobs are counted at the same time."""


class SharedQueueCounts:
    """Counts the jobs of all queues, one count at a time."""

    def __init__(
        self, summaries: HistorySummaries, clock: Clock, names: Callable[[], Awaitable[Collection[str]]]
    ) -> None:
        """`names` returns the names of all queues."""
        self._summaries = summaries
        self._clock = clock
        self._names = names
        self._shared = SharedRead(self._count)

    async def answer(self) -> Mapping[str, QueueCounts]:
        return await self._shared.answer()

    async def _count(self) -> Mapping[str, QueueCounts]:
        names = [*await self._names()]
        return dict(zip(names, await count(self._summaries, self._clock, names), strict=True))


async def count(summaries: HistorySummaries, clock: Clock, names: Sequence[str]) -> list[QueueCounts]:
    """Count the jobs of queues, some queues at a time.

    Those that ended count within `PERIOD`.
    """
    since, counts = clock.now() - PERIOD, list[QueueCounts]()
    for first in range(0, len(names), COUNTED_TOGETHER):
        part = names[first : first + COUNTED_TOGETHER]
        counts += await asyncio.gather(*(summaries.of_queue(name, since) for name in part))
    return counts
