"""A queue of jobs by the time of their next check.

It is a heap, so that the cost of a tick is proportional to the number of due jobs.
"""

import heapq
from collections.abc import Iterator
from datetime import datetime
from typing import Final

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
