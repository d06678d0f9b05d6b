"""Lines of open tasks that the same limit and the same refusals hold back."""

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, heapreplace
from typing import Final, Generic, TypeAlias, TypeVar

from .hold_up_time import Gate, HoldUpCause
from .open_task import LimitGroup, OpenTask, RateGroup, StepKey

LineKey: TypeAlias = tuple[LimitGroup | None, int, RateGroup | None, frozenset[str], bool, bool]
"""A group, its limit, the group of a rate, the agents that refused the tasks, and whether these are suspects and run alone."""


T = TypeVar("T", bound=Hashable)

_SPARE: Final = 16


class RankedItems(Generic[T]):
    """Items with the least rank first.

    Every change takes O(log n) steps, spread over all changes. An entry of an earlier rank stays in the heap until it comes first, or until such entries are more than the others.
    """

    __slots__ = ("_heap", "_number", "_ranks")

    def __init__(self) -> None:
        self._ranks: dict[T, int] = {}
        self._heap: list[tuple[int, int, T]] = []
        self._number = 0

    def put(self, item: T, rank: int) -> None:
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
        return item in self._ranks

    def __iter__(self) -> Iterator[T]:
        return iter(self._ranks)

    def __len__(self) -> int:
        return len(self._ranks)


@dataclass(slots=True, eq=False)
class Group:
    """The tasks of a group that workers have, and its lines by limit."""

    running: int = 0
    lines: dict[int, dict["Line", None]] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Starts:
    """The tasks of a rate's group that may start now, and its lines."""

    room: int | None = None
    """None: not known. The tasks wait, but the rate does not hold them back."""
    lines: dict["Line", None] = field(default_factory=dict)

    @property
    def may_start(self) -> bool:
        return self.room is not None and self.room > 0


@dataclass(slots=True, eq=False)
class Lane:
    """The tasks of one queue, function and priority."""

    key: tuple[str, str, int]
    jobs: dict[str, "JobLines"] = field(default_factory=dict)
    listed: RankedItems[str] = field(default_factory=RankedItems)
    number: int = 0


@dataclass(slots=True, eq=False)
class JobLines:
    """The lines of one job in one lane."""

    lines: dict[LineKey, "Line"] = field(default_factory=dict)
    listed: RankedItems["Line"] = field(default_factory=RankedItems)


@dataclass(slots=True, eq=False)
class Line:
    """Tasks of one job in one lane, in order, with the same limits and refusals."""

    lane: Lane
    job: str
    key: LineKey
    group: Group | None
    starts: Starts | None
    tasks: OrderedDict[StepKey, OpenTask] = field(default_factory=OrderedDict)
    gate: Gate = field(default_factory=Gate)
    """It is closed while a limit holds back the tasks."""

    @property
    def first(self) -> OpenTask:
        return next(iter(self.tasks.values()))

    @property
    def is_limited(self) -> bool:
        return self.group is not None or self.starts is not None

    @property
    def held_up_by(self) -> HoldUpCause | None:
        """The cause that holds back the tasks.

        The limit of the group is reached, or the rate is known to let none start now.
        """
        if self.group is not None and self.group.running >= self.key[1]:
            return "job_limit" if self.key[0] is None or self.key[0].key is None else "key_limit"
        room = None if self.starts is None else self.starts.room
        return "start_rate" if room is not None and room < 1 else None

    @property
    def runs_alone(self) -> bool:
        """Whether an agent gets no other task beside one of these."""
        return self.key[-1]

    @property
    def may_start(self) -> bool:
        return self.held_up_by is None and (self.starts is None or self.starts.may_start)
