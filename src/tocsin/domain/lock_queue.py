"""The executions that wait for a lock, in the order in which they acquire it."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from .sorted_items import SortedItems


@dataclass(frozen=True, slots=True)
class Waiter:
    """An execution that waits for a lock.

    `scheduled_time` (UTC) is the instant for which it was planned. `yields`: it is a replay or part of a backfill, and
    lets all others go first.
    """

    execution_id: str
    scheduled_time: datetime
    yields: bool = False


@dataclass(frozen=True, slots=True)
class LockQueue:
    """The waiting executions, each with the sequence of its `queued` event.

    Replays and backfills let all others go first. Within each group the earlier scheduled time goes first. A change takes
    a few microseconds, however many wait.
    """

    by_turn: SortedItems[tuple[bool, datetime, str, int]] = field(default_factory=SortedItems)
    by_id: SortedItems[tuple[str, int, bool, datetime]] = field(default_factory=SortedItems)
    by_arrival: SortedItems[tuple[int, str]] = field(default_factory=SortedItems)

    def __len__(self) -> int:
        """Return how many executions wait."""
        return len(self.by_turn)

    def __iter__(self) -> Iterator[Waiter]:
        """Yield the waiting executions in their order."""
        for yields, scheduled_time, execution_id, _ in self.by_turn:
            yield Waiter(execution_id, scheduled_time, yields)

    def __contains__(self, execution_id: object) -> bool:
        """Return whether an execution waits."""
        return isinstance(execution_id, str) and self._entry(execution_id) is not None

    def __eq__(self, other: object) -> bool:
        """Return whether the same executions wait since the same events."""
        return isinstance(other, LockQueue) and [*self.by_turn] == [*other.by_turn]

    __hash__ = None  # type: ignore[assignment]  # it is compared in tests only

    @property
    def first(self) -> Waiter | None:
        """The execution that acquires the lock next; None: no execution waits."""
        if (turn := self.by_turn.first) is None:
            return None
        yields, scheduled_time, execution_id, _ = turn
        return Waiter(execution_id, scheduled_time, yields)

    @property
    def oldest(self) -> int:
        """The least sequence of the `queued` events; 0: no execution waits."""
        return 0 if (arrival := self.by_arrival.first) is None else arrival[0]

    def add(self, waiter: Waiter, sequence: int) -> "LockQueue":
        """Return the queue with an execution that waits since the event of a sequence."""
        rest, name = self.remove(waiter.execution_id), waiter.execution_id
        return LockQueue(
            rest.by_turn.add((waiter.yields, waiter.scheduled_time, name, sequence)),
            rest.by_id.add((name, sequence, waiter.yields, waiter.scheduled_time)),
            rest.by_arrival.add((sequence, name)),
        )

    def remove(self, execution_id: str) -> "LockQueue":
        """Return the queue without an execution."""
        if (entry := self._entry(execution_id)) is None:
            return self
        _, sequence, yields, time = entry
        return LockQueue(
            self.by_turn.remove((yields, time, execution_id, sequence)),
            self.by_id.remove(entry),
            self.by_arrival.remove((sequence, execution_id)),
        )

    def since(self, oldest: int) -> "LockQueue":
        """Return the queue of the executions that wait since a sequence; 0: the empty queue."""
        if not oldest:
            return EMPTY
        queue = self
        while (arrival := queue.by_arrival.first) is not None and arrival[0] < oldest:
            queue = queue.remove(arrival[1])
        return queue

    def _entry(self, execution_id: str) -> tuple[str, int, bool, datetime] | None:
        # Typed as a whole entry; an entry's first field alone is less than the entry.
        entry = self.by_id.at_least((execution_id,))  # type: ignore[arg-type]
        return entry if entry is not None and entry[0] == execution_id else None


EMPTY: Final = LockQueue()
