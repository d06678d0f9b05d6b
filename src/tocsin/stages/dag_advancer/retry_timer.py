"""Retry timers of one process, which fire at their very instant.

The log's own timers survive every crash, and fire up to a quarter of a second late. A process that remembers a delay decides
when the delay ends; the log's timer then changes nothing. A delay that a crash erased is only late.
"""

import asyncio
import heapq
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from itertools import count
from typing import Final

from ... import telemetry
from ...domain.events import RetryTimer
from ...ports import Clock, LogUnavailable, OutdatedState

HORIZON: Final = timedelta(minutes=10)
"""The longest delay that is remembered; to a longer delay a quarter of a second makes no difference."""
CAPACITY: Final = 100_000

_log = telemetry.get_logger("tocsin.stages")


class RetryTimers:
    """Calls `decide` when each delay ends."""

    def __init__(self, clock: Clock, decide: Callable[[RetryTimer], Awaitable[None]]) -> None:
        self._clock = clock
        self._decide = decide
        self._waiting: list[tuple[datetime, int, RetryTimer]] = []
        self._numbers = count()
        self._is_earlier = asyncio.Event()
        """Set when a timer was added that is due before all others."""

    def at(self, until: datetime, timer: RetryTimer) -> None:
        """Decide on `timer` at `until` (UTC)."""
        if until - self._clock.now() > HORIZON or len(self._waiting) >= CAPACITY:
            return
        entry = (until, next(self._numbers), timer)
        heapq.heappush(self._waiting, entry)
        if self._waiting[0] is entry:
            self._is_earlier.set()

    async def run(self) -> None:
        """Decide on each timer when it is due, until cancelled."""
        while True:
            await self._sleep()
            await self.run_once(self._clock.now())

    async def run_once(self, now: datetime) -> None:
        """Decide on the timers that are due at `now` (UTC)."""
        while self._waiting and self._waiting[0][0] <= now:
            _, _, timer = heapq.heappop(self._waiting)
            fields = {"job": timer.job, "execution_id": timer.execution_id, "step": timer.step}
            try:
                await self._decide(timer)
            except (OutdatedState, LogUnavailable) as error:
                _log.info(
                    "retry timer missed; waiting for JetStream", action="not-punctual", error=str(error), **fields
                )
            except Exception as error:  # noqa: BLE001 - the log's timer reaches a handler that reports the error
                _log.warning(
                    "retry timer failed; waiting for JetStream", action="not-punctual", exc_info=error, **fields
                )

    async def _sleep(self) -> None:
        """Wait until the earliest timer is due, or until an earlier timer is added."""
        self._is_earlier.clear()
        if not self._waiting:
            await self._is_earlier.wait()
            return
        remaining = (self._waiting[0][0] - self._clock.now()).total_seconds()
        if remaining <= 0:
            return
        due = asyncio.ensure_future(self._clock.sleep(remaining))
        earlier = asyncio.ensure_future(self._is_earlier.wait())
        try:
            await asyncio.wait((due, earlier), return_when=asyncio.FIRST_COMPLETED)
        finally:
            due.cancel()
            earlier.cancel()
            await asyncio.gather(due, earlier, return_exceptions=True)
