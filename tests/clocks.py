"""Clocks of processes whose machines disagree about the time."""

from datetime import datetime, timedelta

from tocsin.ports import Clock


class ShiftedClock:
    """Implement `ports.Clock` with a wall clock that is wrong by `seconds`, and right durations."""

    def __init__(self, clock: Clock, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self._clock = clock

    def now(self) -> datetime:
        """Return the wrong time."""
        return self._clock.now() + timedelta(seconds=self.seconds)

    def monotonic(self) -> float:
        """Return the true monotonic time."""
        return self._clock.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Wait for as long as the true clock."""
        await self._clock.sleep(seconds)
