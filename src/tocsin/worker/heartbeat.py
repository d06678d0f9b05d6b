"""Keeps what the worker holds: else a task that takes longer than the acknowledgement wait is given to another.

An async handler that blocks the loop stops this too; such a handler should be a sync one.
"""

import asyncio
from typing import Final

from ..ports import Clock
from .held_tasks import HeldTasks
from .logger import log

BEATS_PER_ACK_WAIT: Final = 3


class Heartbeat:
    """One loop for all tasks of a worker."""

    def __init__(self, holdings: HeldTasks, clock: Clock, *, ack_wait: float) -> None:
        """Beat three times in each `ack_wait` seconds, so that two may be lost."""
        self._holdings = holdings
        self._clock = clock
        self._interval = ack_wait / BEATS_PER_ACK_WAIT

    async def run(self) -> None:
        """Beat until cancelled."""
        while True:
            await self._clock.sleep(self._interval)
            await self.run_once()

    async def run_once(self) -> None:
        """Tell the queues that every task held is still being worked at."""
        beats = (holding.delivery.in_progress() for holding in self._holdings)
        answers = await asyncio.gather(*beats, return_exceptions=True)
        if lost := [answer for answer in answers if isinstance(answer, Exception)]:
            log.warning("a heartbeat was lost", action="heartbeat-lost", count=len(lost), error=str(lost[0]))
