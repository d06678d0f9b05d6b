"""Folded entities, remembered by scope and sequence, so that the usual road needs no read.

What is remembered may be stale: the guard of the append tells, and then it is read again. Nothing is ever decided on
memory alone.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Final, Generic, TypeVar

from .. import subjects
from ..domain.events import Message, Recorded
from ..ports import EventLog, SequenceConflict

S = TypeVar("S")

CAPACITY: Final = 10_000
UNTOLD: Final = datetime.min.replace(tzinfo=UTC)  # an answer to an append tells the sequence, not the log's time


class Entities(Generic[S]):
    """The entities of one kind: their states and the sequences that these are of."""

    def __init__(
        self,
        log: EventLog,
        initial: S,
        evolve: Callable[[S, Recorded[Message]], S],
        *,
        capacity: int = CAPACITY,
    ) -> None:
        self._log = log
        self._initial = initial
        self._evolve = evolve
        self._capacity = capacity
        self._known: OrderedDict[str, tuple[S, int]] = OrderedDict()
        self._to_be_read: set[str] = set()

    async def load(self, scope: str) -> tuple[S, int]:
        """An entity's state and the last sequence in its scope: as remembered, else as read."""
        known = self._known.get(scope)
        if known is not None:
            self._known.move_to_end(scope)
            return known
        self.loaded(scope, await self._log.load(scope))
        return self._known[scope]

    def knows(self, scope: str) -> bool:
        """Whether `load` would read nothing."""
        return scope in self._known

    def loaded(self, scope: str, facts: Iterable[Recorded[Message]]) -> None:
        """Take in all facts of a scope, as they were read from the log just now."""
        self._remember(scope, *self._fold(facts))
        self._to_be_read.discard(scope)

    def learn(self, scope: str, recorded: Recorded[Message], *, after: int) -> None:
        """Take in a fact that is known to follow `after` (0: that begins the scope, or tells all by itself).

        Later facts may exist; the guard tells. From then on only reading helps, until somebody has read.
        """
        state, sequence = self._known.get(scope, (self._initial, 0))
        if sequence >= recorded.sequence or scope in self._to_be_read:
            return
        if after in (0, sequence):
            self._remember(scope, self._evolve(state if after else self._initial, recorded), recorded.sequence)

    async def decide(self, scope: str, decide: Callable[[S], Sequence[Message]]) -> Sequence[Message]:
        """Append what `decide` says about an entity, in order; what it said.

        That there is nothing to do is believed only of the newest state: what is remembered, or read from a replica, may
        be old, and no guard would tell.

        Raises:
            SequenceConflict: the scope has moved; ask again.
        """
        known = await self.load(scope)
        facts = decide(known[0])
        if not facts and not await self.is_newest(scope, known[1]):
            known = await self.load(scope)
            facts = decide(known[0])
            if not facts and not await self.is_newest(scope, known[1]):
                raise SequenceConflict(f"{scope}: a replica that lags was read")
        for fact in facts:
            known = await self.append(scope, fact, behind=known)
        return facts

    async def append(self, scope: str, fact: Message, *, behind: tuple[S, int]) -> tuple[S, int]:
        """Append a fact behind what it was decided on, whatever was learned since; the state after it, and its sequence.

        Raises:
            SequenceConflict: the scope has moved; what was remembered of it is forgotten.
        """
        state, sequence = behind
        try:
            stored = await self._log.append(fact, expect=sequence)
        except SequenceConflict:
            self.forget(scope)
            raise
        recorded = Recorded(fact, subjects.subject_of(fact), stored, UNTOLD)
        return self._remember(scope, self._evolve(state, recorded), stored)

    async def is_newest(self, scope: str, sequence: int) -> bool:
        """Whether nothing is stored behind `sequence`; if something is, it is read the next time."""
        if await self._log.tail(scope) == sequence:
            return True
        self.forget(scope)
        return False

    def forget(self, scope: str) -> None:
        """Read anew the next time."""
        self._known.pop(scope, None)
        self._to_be_read.add(scope)

    def _fold(self, facts: Iterable[Recorded[Message]]) -> tuple[S, int]:
        state, sequence = self._initial, 0
        for recorded in facts:
            state, sequence = self._evolve(state, recorded), recorded.sequence
        return state, sequence

    def _remember(self, scope: str, state: S, sequence: int) -> tuple[S, int]:
        self._known[scope] = state, sequence
        self._known.move_to_end(scope)
        if len(self._known) > self._capacity:
            self._known.popitem(last=False)
        return state, sequence
