"""Retries at their very instant.

The log's own timers survive everything, and are up to a quarter of a second late. Whoever remembers a delay decides on it
when it is over, and the timer that comes behind finds that done. What is forgotten by a crash is merely late.
"""

import heapq
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from itertools import count
from typing import Final

import structlog

from ...domain.events import RetryTimer
from ...ports import Clock, LogUnavailable, OutdatedState

HORIZON: Final = timedelta(minutes=10)
"""A longer delay is left to the log: a quarter of a second is nothing to it."""
CAPACITY: Final = 100_000
REST: Final = 0.02
"""Seconds between two looks."""

_log = structlog.get_logger("tocsin.stages")


class RetryTimers:
    """Remembers delays, and has `decide` called when each is over."""

    def __init__(self, clock: Clock, decide: Callable[[RetryTimer], Awaitable[None]]) -> None:
        self._clock = clock
        self._decide = decide
        self._waiting: list[tuple[datetime, int, RetryTimer]] = []
        self._numbers = count()

    def at(self, until: datetime, timer: RetryTimer) -> None:
        """Decide on `timer` at `until` (UTC)."""
        if until - self._clock.now() <= HORIZON and len(self._waiting) < CAPACITY:
            heapq.heappush(self._waiting, (until, next(self._numbers), timer))

    async def run(self) -> None:
        """Look again and again."""
        while True:
            await self._clock.sleep(REST)
            await self.run_once(self._clock.now())

    async def run_once(self, now: datetime) -> None:
        """Decide on what is over at `now` (UTC)."""
        while self._waiting and self._waiting[0][0] <= now:
            _, _, timer = heapq.heappop(self._waiting)
            try:
                await self._decide(timer)
            except (OutdatedState, LogUnavailable) as error:
                _log.info("left to the log's timer", action="not-punctual", job=timer.job, error=str(error))
            except Exception as error:  # noqa: BLE001 - the log's timer comes to a handler that tells of it
                _log.warning("left to the log's timer", action="not-punctual", job=timer.job, exc_info=error)
