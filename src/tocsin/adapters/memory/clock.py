"""Clocks of the in-memory adapters: a clock that a test moves, and the machine's."""

import asyncio
import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol

from ...ports import Clock
from ..system_clock import SystemClock

START: Final = datetime(2026, 1, 1, tzinfo=UTC)
_ROUNDS: Final = 50
_LOOK_S: Final = 1.0
"""How often an alarm for an instant reads the wall clock, which may be set."""


@dataclass(order=True, slots=True)
class Alarm:
    """A scheduled call of the clock."""

    due: timedelta
    number: int
    call: Callable[[], None] | None = field(compare=False)

    def cancel(self) -> None:
        self.call = None


class AlarmClock(Clock, Protocol):
    """A clock that calls functions, as a server does when a delay ends."""

    def after(self, seconds: float, call: Callable[[], None]) -> Alarm:
        """Call a function after a number of seconds, independent of the wall clock."""

    def at(self, instant: datetime, call: Callable[[], None]) -> Alarm:
        """Call a function when the wall clock reaches `instant`."""


class ManualClock:
    """Implement `AlarmClock`.

    Time passes only in `advance`, `run` and `step`, so that every test is deterministic.
    """

    def __init__(self, start: datetime = START) -> None:
        self._start = start.astimezone(UTC)
        self._stepped = timedelta()
        self._elapsed = timedelta()
        self._numbers = itertools.count()
        self._after: list[Alarm] = []
        self._at: list[Alarm] = []  # `due` counts from `_start` on the wall clock

    def now(self) -> datetime:
        return self._start + self._stepped + self._elapsed

    def monotonic(self) -> float:
        return self._elapsed.total_seconds()

    async def sleep(self, seconds: float) -> None:
        awake: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        alarm = self.after(seconds, lambda: None if awake.done() else awake.set_result(None))
        try:
            await awake
        finally:
            alarm.cancel()

    def after(self, seconds: float, call: Callable[[], None]) -> Alarm:
        return self._set(self._after, self._elapsed + timedelta(seconds=seconds), call)

    def at(self, instant: datetime, call: Callable[[], None]) -> Alarm:
        alarm = self._set(self._at, instant - self._start, call)
        self._ring()
        return alarm

    def next_alarm(self) -> float | None:
        """Return the seconds until the next alarm, so that a simulator can skip idle time."""
        alarm = self._next()
        return None if alarm is None else alarm[0].total_seconds()

    def next_instant(self) -> datetime | None:
        """Return the instant of the next call of `at`."""
        while self._at and self._at[0].call is None:
            heapq.heappop(self._at)
        return self._start + self._at[0].due if self._at else None

    def advance(self, seconds: float) -> None:
        """Let time pass, and make all due calls in order. Woken tasks run later."""
        end = self._elapsed + timedelta(seconds=seconds)
        while self._ring_until(end):
            pass
        self._elapsed = end

    async def run(self, seconds: float) -> None:
        """Let time pass, and let all woken tasks act before the next alarm."""
        end = self._elapsed + timedelta(seconds=seconds)
        await settle()
        while self._ring_until(end):
            await settle()
        self._elapsed = end
        await settle()

    def step(self, seconds: float) -> None:
        """Set the wall clock forward or back, as an administrator does. No time passes."""
        self._stepped += timedelta(seconds=seconds)
        self._ring()

    def _set(self, alarms: list[Alarm], due: timedelta, call: Callable[[], None]) -> Alarm:
        alarm = Alarm(due, next(self._numbers), call)
        heapq.heappush(alarms, alarm)
        return alarm

    def _next(self) -> tuple[timedelta, int, list[Alarm]] | None:
        """Return the time until the next alarm, and the list that starts with it."""
        for alarms in (self._after, self._at):
            while alarms and alarms[0].call is None:
                heapq.heappop(alarms)
        lists = ((self._after, self._elapsed), (self._at, self._stepped + self._elapsed))
        off = [(alarms[0].due - now, alarms[0].number, alarms) for alarms, now in lists if alarms]
        if not off:
            return None
        distance, number, alarms = min(off, key=lambda alarm: alarm[:2])
        return max(distance, timedelta()), number, alarms

    def _ring_until(self, end: timedelta) -> bool:
        alarm = self._next()
        if alarm is None or self._elapsed + alarm[0] > end:
            return False
        distance, _, alarms = alarm
        self._elapsed += distance
        call = heapq.heappop(alarms).call
        if call is not None:
            call()
        return True

    def _ring(self) -> None:
        while self._ring_until(self._elapsed):
            pass


class LoopClock(SystemClock):
    """Implement `AlarmClock` by the clock of the machine; the running event loop makes the calls."""

    def after(self, seconds: float, call: Callable[[], None]) -> Alarm:
        alarm = Alarm(timedelta(), 0, call)
        asyncio.get_running_loop().call_later(seconds, _ring, alarm)
        return alarm

    def at(self, instant: datetime, call: Callable[[], None]) -> Alarm:
        alarm = Alarm(timedelta(), 0, call)
        self._wait_for(instant, alarm)
        return alarm

    def _wait_for(self, instant: datetime, alarm: Alarm) -> None:
        remaining = (instant - self.now()).total_seconds()
        if remaining <= 0:
            _ring(alarm)
        elif alarm.call is not None:
            asyncio.get_running_loop().call_later(min(remaining, _LOOK_S), self._wait_for, instant, alarm)


def _ring(alarm: Alarm) -> None:
    if alarm.call is not None:
        alarm.call()


async def settle() -> None:
    """Let every task run until it waits."""
    for _ in range(_ROUNDS):
        await asyncio.sleep(0)
