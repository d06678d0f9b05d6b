"""The clock of a simulation."""

import asyncio
import math
from datetime import datetime, timedelta
from typing import Final

from typing_extensions import override

from ..adapters.memory.clock import ManualClock

POLL_S: Final = 1.5
"""A loop that looks for work sleeps no longer than this between two looks; a longer sleep is a delay."""
GRID_S: Final = 0.5
"""Loops that look for work do so together, at multiples of this, because each moment costs the simulation some turns."""


class SimulatedClock(ManualClock):
    """A clock that can skip time, as a machine does that sleeps."""

    def __init__(self, start: datetime) -> None:
        """Start at an aware time."""
        super().__init__(start)
        self._polls: dict[asyncio.Future[None], None] = {}

    @override
    async def sleep(self, seconds: float) -> None:
        awake: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if seconds <= POLL_S:
            self._polls[awake] = None
            now = self.monotonic()
            seconds = math.ceil((now + max(seconds, GRID_S / 10)) / GRID_S) * GRID_S - now
        alarm = self.after(seconds, lambda: _wake(awake))
        try:
            await awake
        finally:
            alarm.cancel()
            self._polls.pop(awake, None)

    def skip(self, span: timedelta) -> None:
        """Let the wall clock run on, and no seconds count.

        Waits for an instant end, and sleeps do not.
        """
        self.step(span.total_seconds())

    def wake_polls(self) -> None:
        """Let every loop that looks for work look now."""
        for awake in tuple(self._polls):
            _wake(awake)


def _wake(awake: "asyncio.Future[None]") -> None:
    if not awake.done():
        awake.set_result(None)
