"""The server's clock: the loop's time, under the hands of the in-memory adapters."""

from collections.abc import Callable
from datetime import datetime, timedelta

from typing_extensions import override

from tocsin.adapters.memory.clock import Alarm
from tocsin.testing import ManualClock

from .loop import VirtualLoop


class ServerClock(ManualClock):
    """Moves by itself, as the loop does."""

    def __init__(self, loop: VirtualLoop) -> None:
        """The time of `loop`."""
        super().__init__()
        self._loop = loop

    @override
    def now(self) -> datetime:
        return self._start + timedelta(seconds=self._loop.time())

    def seconds(self, at: datetime) -> float:
        """Return the loop's time at an instant (UTC)."""
        return (at - self._start).total_seconds()

    @override
    def monotonic(self) -> float:
        return self._loop.time()

    @override
    def after(self, seconds: float, call: Callable[[], None]) -> Alarm:
        alarm = Alarm(timedelta(), 0, call)
        self._loop.call_later(seconds, _ring, alarm)
        return alarm

    @override
    def at(self, instant: datetime, call: Callable[[], None]) -> Alarm:
        return self.after(max(0.0, (instant - self.now()).total_seconds()), call)


def _ring(alarm: Alarm) -> None:
    if alarm.call is not None:
        alarm.call()
