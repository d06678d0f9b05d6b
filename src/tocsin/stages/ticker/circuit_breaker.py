"""How often one job may fire in a real minute, whatever clocks and schedules say."""

from collections import Counter
from typing import Final

from ...ports import Clock

PER_MINUTE: Final = 600
"""Ten times what a schedule of every second needs."""
_MINUTE: Final = 60.0


class CircuitBreaker:
    """Counts by a clock that never steps, so that a wall clock that runs away cannot make a flood."""

    def __init__(self, clock: Clock, *, per_minute: int = PER_MINUTE) -> None:
        self._clock = clock
        self._per_minute = per_minute
        self._minute = 0
        self._fired: Counter[str] = Counter()

    def left(self, job: str) -> int:
        """How often a job may still fire in this minute."""
        minute = int(self._clock.monotonic() // _MINUTE)
        if minute != self._minute:
            self._minute = minute
            self._fired.clear()
        return max(0, self._per_minute - self._fired[job])

    def count(self, job: str) -> None:
        """It fired."""
        self._fired[job] += 1
