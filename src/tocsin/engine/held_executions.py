"""The executions that wait before their lock, and when each is examined."""

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final, Generic, Protocol, TypeAlias, TypeVar

from ..domain.events import COMPENSATING_TRIGGERS, Planned
from ..domain.lock import most_waiting
from .due_queue import DueQueue

DUE_NOW: Final = datetime.min.replace(tzinfo=UTC)
"""The time of an examination that is due now."""

Kind: TypeAlias = tuple[str, bool]
"""A job, and whether the execution is a replay or a backfill, which are counted apart."""


class _Held(Protocol):
    """An execution that waits since an event."""

    @property
    def sequence(self) -> int: ...
    @property
    def kind(self) -> Kind: ...
    @property
    def is_surplus(self) -> bool: ...


H = TypeVar("H", bound=_Held)


class HeldExecutions(Generic[H]):
    """All executions that wait for one reason, by scope."""

    def __init__(self) -> None:
        """Start without executions."""
        self._waiting: dict[str, H] = {}  # in log order: the first entry is the oldest
        self._counts: Counter[Kind] = Counter()
        """The number of waiting executions of each job and kind, without surplus."""
        self._agenda = DueQueue()

    def __len__(self) -> int:
        """Return the number of waiting executions."""
        return len(self._waiting)

    @property
    def oldest(self) -> int | None:
        """The sequence of the oldest execution that waits; None: none waits."""
        return next((held.sequence for held in self._waiting.values()), None)

    def _count(self, fact: Planned) -> tuple[Kind, bool]:
        """Count an execution, and return its kind and whether it is surplus.

        It is if as many of its job and kind as may wait do so before it. Then it is not counted.
        """
        kind = fact.job, fact.trigger in COMPENSATING_TRIGGERS
        is_surplus = self._counts[kind] >= most_waiting(fact)
        if not is_surplus:
            self._counts[kind] += 1
        return kind, is_surplus

    def _remove(self, scope: str) -> H | None:
        """Remove an execution that does not wait any more, and return it."""
        if (held := self._waiting.pop(scope, None)) is not None:
            self._agenda.put(scope, None)
            if not held.is_surplus and (others := self._counts.pop(held.kind) - 1):
                self._counts[held.kind] = others
        return held

    def take(self, now: datetime) -> Iterator[H]:
        """Yield the executions that are due for an examination."""
        for scope in self._agenda.take(now):
            if (held := self._waiting.get(scope)) is not None:
                yield held

    def look_again(self, scope: str, at: datetime) -> None:
        """Examine an execution again at `at` (UTC), if it still waits."""
        if scope in self._waiting:
            self._agenda.put(scope, at)
