"""A queue of jobs by their next check, and a limit on firings.

It is a heap, so that the cost of a tick is proportional to the number of due jobs.
"""

import heapq
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from typing import Final

from ..domain.ledger import MAX_FIRED_PER_MINUTE
from ..ports import Clock

SLACK: Final = 1_000
"""The heap is rebuilt when it holds more replaced entries than this plus the number of jobs."""


class DueQueue:
    """Jobs and the time of their next check; a later `put` replaces the earlier."""

    def __init__(self) -> None:
        self._heap: list[tuple[datetime, str]] = []
        self._at: dict[str, datetime] = {}

    def put(self, job: str, at: datetime | None) -> None:
        """Set the time of a job's next check; None removes the job."""
        if at is None:
            self._at.pop(job, None)
        elif self._at.get(job) != at:
            self._at[job] = at
            heapq.heappush(self._heap, (at, job))
        if len(self._heap) > 2 * len(self._at) + SLACK:  # a process that does not lead puts and never takes
            self._heap = [(at, job) for job, at in self._at.items()]
            heapq.heapify(self._heap)

    def take(self, now: datetime) -> Iterator[str]:
        """Remove and yield the jobs that are due, the oldest first."""
        while self._heap and self._heap[0][0] <= now:
            at, job = heapq.heappop(self._heap)
            if self._at.get(job) == at:
                del self._at[job]
                yield job


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
