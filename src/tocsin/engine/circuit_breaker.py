"""A limit on how often each job fires."""

from collections import Counter
from typing import Final

from ..ports import Clock

MAX_FIRED_PER_MINUTE: Final = 600
"""Ten times the instants of a schedule of every second."""
_MINUTE_S: Final = 60.0


class CircuitBreaker:
    """Limits how often each job fires in a minute.

    It counts by a monotonic clock, so that a wall clock that runs away cannot cause a flood.
    """

    def __init__(self, clock: Clock, *, per_minute: int = MAX_FIRED_PER_MINUTE) -> None:
        self._clock = clock
        self._per_minute = per_minute
        self._minute = 0
        self._fired: Counter[str] = Counter()

    def left(self, job: str) -> int:
        """Return how often a job may still fire in this minute."""
        minute = int(self._clock.monotonic() // _MINUTE_S)
        if minute != self._minute:
            self._minute = minute
            self._fired.clear()
        return max(0, self._per_minute - self._fired[job])

    def count(self, job: str) -> None:
        """Count that a job fired."""
        self._fired[job] += 1
