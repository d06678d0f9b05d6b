"""What is to be looked at next: a heap, so that a tick costs in proportion to what is due."""

import heapq
from collections.abc import Iterator
from datetime import datetime
from typing import Final

SLACK: Final = 1_000
"""So many entries that were replaced may lie in the heap, and as many as there are others, before it is made anew."""


class DueQueue:
    """One time for each job; a later word replaces an earlier one."""

    def __init__(self) -> None:
        self._heap: list[tuple[datetime, str]] = []
        self._at: dict[str, datetime] = {}

    def put(self, job: str, at: datetime | None) -> None:
        """Look at a job at `at`, or no more."""
        if at is None:
            self._at.pop(job, None)
        elif self._at.get(job) != at:
            self._at[job] = at
            heapq.heappush(self._heap, (at, job))
        if len(self._heap) > 2 * len(self._at) + SLACK:  # whoever does not lead never takes any
            self._heap = [(at, job) for job, at in self._at.items()]
            heapq.heapify(self._heap)

    def take(self, now: datetime) -> Iterator[str]:
        """The jobs whose time has come, each once, the oldest first; they are off the agenda."""
        while self._heap and self._heap[0][0] <= now:
            at, job = heapq.heappop(self._heap)
            if self._at.get(job) == at:
                del self._at[job]
                yield job
