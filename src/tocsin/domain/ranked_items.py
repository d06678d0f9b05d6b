"""Items by rank, of which the first is found fast, and whose ranks may change."""

from collections.abc import Hashable, Iterator
from heapq import heapify, heappop, heappush, heapreplace
from typing import Final, Generic, TypeVar

T = TypeVar("T", bound=Hashable)

_SPARE: Final = 16


class RankedItems(Generic[T]):
    """Items with the least rank first.

    Every change takes O(log n) steps, spread over all changes. An entry of an earlier rank stays in the heap until it comes first, or until such entries are more than the others.
    """

    __slots__ = ("_heap", "_number", "_ranks")

    def __init__(self) -> None:
        """Start empty."""
        self._ranks: dict[T, int] = {}
        self._heap: list[tuple[int, int, T]] = []
        self._number = 0

    def put(self, item: T, rank: int) -> None:
        """Add an item, or change its rank."""
        if self._ranks.get(item) == rank:
            return
        self._ranks[item] = rank
        self._number += 1  # items of one rank are not compared
        if self._heap and self._heap[0][2] is item:
            heapreplace(self._heap, (rank, self._number, item))
            return
        heappush(self._heap, (rank, self._number, item))
        if len(self._heap) > 2 * len(self._ranks) + _SPARE:
            self._heap = [(rank, number, item) for number, (item, rank) in enumerate(self._ranks.items())]
            heapify(self._heap)

    def discard(self, item: T) -> None:
        """Remove an item if it is there."""
        self._ranks.pop(item, None)

    @property
    def first(self) -> tuple[int, T] | None:
        """The least rank and its item; None: there are no items."""
        while self._heap:
            rank, _, item = self._heap[0]
            if self._ranks.get(item) == rank:
                return rank, item
            heappop(self._heap)
        return None

    def __contains__(self, item: object) -> bool:
        """Return whether an item is there."""
        return item in self._ranks

    def __iter__(self) -> Iterator[T]:
        """Yield the items in any order."""
        return iter(self._ranks)

    def __len__(self) -> int:
        """Return the number of items."""
        return len(self._ranks)
