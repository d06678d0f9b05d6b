"""Retry timers of one process, which fire at their very instant.

The log's own timers survive every crash, and fire up to a quarter of a second late. A process that remembers a delay decides
when the delay ends; the log's timer then changes nothing. A delay that a crash erased is only late.
"""

import asyncio
import heapq
from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import count
from typing import Final

import msgspec

from ... import subjects, telemetry
from ...domain.events import Message, Recorded, RetryTimer
from ...engine.items import Item, Result
from ...engine.states import StateStore
from ...engine.step import Decide
from ...engine.waves import Waves
from ...ports import LogUnavailable, OutdatedState

HORIZON: Final = timedelta(minutes=10)
"""The longest delay that is remembered; to a longer delay a quarter of a second makes no difference."""
CAPACITY: Final = 100_000

_log = telemetry.get_logger("tocsin.stages")


class Alarm(msgspec.Struct, frozen=True):
    """A retry timer and its instant (UTC)."""

    until: datetime
    timer: RetryTimer


class RetryTimers:
    """Decides on each timer when its delay ends."""

    def __init__(self, states: StateStore, decide: Decide) -> None:
        self._clock = states.sources.clock
        self._waves = Waves(states)
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
        """Decide on the timers that are due at `now` (UTC), all in one batch."""
        items: list[Item] = []
        while self._waiting and self._waiting[0][0] <= now:
            until, _, timer = heapq.heappop(self._waiting)
            recorded: Recorded[Message] = Recorded(timer, subjects.subject_of(timer), 0, until)
            items.append(Item(recorded, (timer.job, timer.execution_id)))
        while items:
            await self._waves.run(self._decide, items)
            items = _held_by_defects(items)

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


def _held_by_defects(items: Sequence[Item]) -> list[Item]:
    """Log undecided timers; return those that only another timer's defect held back.

    The log's timer reaches a subscription that reports the error.
    """
    defective = {item.key for item in items if _has_defect(item)}
    blocked: list[Item] = []
    for item in items:
        if item.outcome is None or item.outcome.result is Result.DONE:
            continue
        timer, error = item.input.message, item.outcome.error
        assert isinstance(timer, RetryTimer)  # noqa: S101 - for the type checker
        fields = {"job": timer.job, "execution_id": timer.execution_id, "step": timer.step}
        if _has_defect(item):
            _log.warning("retry timer failed; waiting for JetStream", action="not-punctual", exc_info=error, **fields)
        elif item.outcome.result is Result.HELD and item.key in defective:
            blocked.append(Item(item.input, item.key))
        else:
            _log.info("retry timer missed; waiting for JetStream", action="not-punctual", error=str(error), **fields)
    return blocked


def _has_defect(item: Item) -> bool:
    """Return whether a decision raised an unexpected error."""
    error = None if item.outcome is None else item.outcome.error
    return error is not None and not isinstance(error, OutdatedState | LogUnavailable)
