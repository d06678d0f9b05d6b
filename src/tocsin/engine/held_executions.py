"""The number of executions of a job that wait before their lock."""

from collections import Counter
from datetime import UTC, datetime
from typing import Final, TypeAlias

from ..domain.events import COMPENSATING_TRIGGERS, Planned
from ..domain.lock import most_waiting

DUE_NOW: Final = datetime.min.replace(tzinfo=UTC)
"""The time of an examination that is due now."""

Kind: TypeAlias = tuple[str, bool]
"""A job, and whether the execution is a replay or a backfill, which are counted apart."""


class HeldCounts:
    """The number of waiting executions of each job and kind, without surplus."""

    def __init__(self) -> None:
        self._counts: Counter[Kind] = Counter()

    def add(self, fact: Planned) -> tuple[Kind, bool]:
        """Count an execution, and return its kind and whether it is surplus.

        It is if as many of its job and kind as may wait do so before it. Then it is not counted.
        """
        kind = fact.job, fact.trigger in COMPENSATING_TRIGGERS
        is_surplus = self._counts[kind] >= most_waiting(fact)
        if not is_surplus:
            self._counts[kind] += 1
        return kind, is_surplus

    def remove(self, kind: Kind) -> None:
        """Stop counting an execution that was counted."""
        self._counts[kind] -= 1
        if not self._counts[kind]:
            del self._counts[kind]
