"""The newest events of a graph, as a worker remembers them."""

import asyncio
from collections.abc import Sequence

from ..domain import execution
from ..domain.events import Message, Recorded


class RecentEvents:
    """The last event of each step since a sequence.

    No other part of the events is kept.
    `lock` is held while the execution is read or claimed from.
    """

    def __init__(self) -> None:
        """Start without events."""
        self.lock = asyncio.Lock()
        self._since = 0
        self._newest = 0
        self._last: dict[str | None, int] = {}
        """The last event that affects the claim of each step, or under None the claim of every step."""

    def affect(self, step: str, *, after: int) -> bool:
        """Return whether a known event after a sequence may affect the claim of a step."""
        return self._last.get(step, 0) > after or self._last.get(None, 0) > after

    def newest(self, *, after: int) -> int:
        """Return the newest sequence of the execution.

        It is `after` if not all events after it are known.
        """
        return self._newest if self._since <= after < self._newest else after

    def add(self, events: Sequence[Recorded[Message]], *, after: int) -> int:
        """Add all events that directly follow a sequence; return the number of new events."""
        if not self._since <= after <= self._newest:
            self._since = self._newest = after
            self._last.clear()
        new = [recorded for recorded in events if recorded.sequence > self._newest]
        for recorded in new:
            self._last[execution.affected_step(recorded.message)] = recorded.sequence
            self._newest = recorded.sequence
        return len(new)

    def add_own(self, step: str, sequence: int, *, after: int) -> None:
        """Add a claim that this worker stored directly after the sequence `after`."""
        if after == self._newest:
            self._last[step] = self._newest = sequence
