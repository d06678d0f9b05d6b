"""Folded entities, remembered by scope and sequence, so that the usual road needs no read.

What is remembered may be stale: the guard of the append tells, and then it is read again. Nothing is ever decided on
memory alone.
"""

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import UTC, datetime
from typing import Final, Generic, TypeVar

from .. import subjects
from ..domain.events import Message, Recorded
from ..ports import EventLog, SequenceConflict, StaleRead

S = TypeVar("S")

CAPACITY: Final = 10_000
UNTOLD: Final = datetime.min.replace(tzinfo=UTC)  # an answer to an append tells the sequence, not the log's time


class StateCache(Generic[S]):
    """The entities of one kind: their states and the sequences that these are of."""

    def __init__(
        self,
        log: EventLog,
        initial: S,
        evolve: Callable[[S, Recorded[Message]], S],
        *,
        capacity: int = CAPACITY,
        catches_up: bool = True,
    ) -> None:
        """`catches_up`: what is new is little beside all that `load` reads; not so where facts replace each other."""
        self._log = log
        self._initial = initial
        self._evolve = evolve
        self._capacity = capacity
        self._catches_up = catches_up
        self._known: OrderedDict[str, tuple[S, int]] = OrderedDict()
        self._upto: dict[str, int] = {}
        self._to_be_read: set[str] = set()

    async def load(self, scope: str) -> tuple[S, int]:
        """An entity's state and the last sequence in its scope: as remembered, else as read."""
        known = self._known.get(scope)
        if known is not None and scope not in self._to_be_read:
            self._known.move_to_end(scope)
            return known
        if known is None or not await self._catch_up(scope, *known):
            self.loaded(scope, await self._log.load(scope))
        return self._known[scope]

    async def recall(self, scopes: Collection[str]) -> None:
        """Read at once, each as a whole, what `load` would read one by one.

        Raises:
            Unreadable: a fact of one of them is of a newer version; nothing was taken in.
        """
        unknown = [scope for scope in scopes if not self.knows(scope)]
        if unknown:
            loaded = await self._log.load_each(*unknown)
            for scope, facts in zip(unknown, loaded.facts, strict=True):
                self.loaded(scope, facts)

    def knows(self, scope: str) -> bool:
        """Whether `load` would read nothing."""
        return scope in self._known and scope not in self._to_be_read

    async def _catch_up(self, scope: str, state: S, sequence: int) -> bool:
        """Read what came behind that which is remembered; whether there was anything, else it is forgotten.

        There is nothing where a replica lags, or where all of it has left the log.
        """
        facts = await self._log.load(scope, after=sequence) if self._catches_up else []
        for recorded in facts:
            state = self._evolve(state, recorded)
        if not facts:
            self.forget(scope)
            return False
        if scope not in self._known or self._known[scope][1] < facts[-1].sequence:
            self._remember(scope, state, facts[-1].sequence)
        self._to_be_read.discard(scope)
        return True

    def loaded(self, scope: str, facts: Iterable[Recorded[Message]], *, upto: int = 0) -> None:
        """Take in all facts of a scope, as they were read from the log just now, unless newer ones were learned meanwhile.

        `upto`: the last sequence of the log that they account for, where that is known.
        """
        state, sequence = self._fold(facts)
        if scope not in self._known or self._known[scope][1] <= sequence:
            self._remember(scope, state, sequence, upto=upto)
        self._to_be_read.discard(scope)

    def accounts_for(self, scope: str, sequence: int) -> bool:
        """Whether what is remembered of a scope holds all that was stored in it up to a sequence of the log."""
        known = self._known.get(scope)
        return known is not None and max(known[1], self._upto.get(scope, 0)) >= sequence

    def learn(self, scope: str, recorded: Recorded[Message], *, after: int) -> None:
        """Take in a fact that is known to follow `after` (0: that begins the scope, or tells all by itself).

        Later facts may exist; the guard tells. From then on only reading helps, until somebody has read.
        """
        state, sequence = self._known.get(scope, (self._initial, 0))
        if sequence >= recorded.sequence or scope in self._to_be_read:
            return
        if after in (0, sequence):
            self._remember(scope, self._evolve(state if after else self._initial, recorded), recorded.sequence)
        elif scope in self._known:
            self._to_be_read.add(scope)  # something lies between that a guard would only refuse us for

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
                raise StaleRead.of(scope)
        for fact in facts:
            known = await self.append(scope, fact, behind=known)
        return facts

    async def append(self, scope: str, fact: Message, *, behind: tuple[S, int]) -> tuple[S, int]:
        """Append a fact behind what it was decided on, whatever was learned since; the state after it, and its sequence.

        Raises:
            SequenceConflict: the scope has moved; what came behind that which is remembered of it is read the next time.
        """
        state, sequence = behind
        try:
            stored = await self._log.append(fact, expect=sequence)
        except SequenceConflict:
            self._to_be_read.add(scope)
            raise
        self._to_be_read.discard(scope)
        recorded = Recorded(fact, subjects.subject_of(fact), stored, UNTOLD)
        return self._remember(scope, self._evolve(state, recorded), stored)

    async def is_newest(self, scope: str, sequence: int) -> bool:
        """Whether nothing is stored behind `sequence`; if something is, it is read the next time."""
        tail = await self._log.tail(scope)
        if tail == sequence:
            return True
        if tail > sequence:
            self._to_be_read.add(scope)
        else:
            self.forget(scope)
        return False

    def forget(self, scope: str) -> None:
        """Read anew the next time."""
        self._known.pop(scope, None)
        self._upto.pop(scope, None)
        self._to_be_read.add(scope)

    def _fold(self, facts: Iterable[Recorded[Message]]) -> tuple[S, int]:
        state, sequence = self._initial, 0
        for recorded in facts:
            state, sequence = self._evolve(state, recorded), recorded.sequence
        return state, sequence

    def _remember(self, scope: str, state: S, sequence: int, *, upto: int = 0) -> tuple[S, int]:
        self._known[scope] = state, sequence
        self._known.move_to_end(scope)
        if upto:
            self._upto[scope] = upto
        if len(self._known) > self._capacity:
            oldest, _ = self._known.popitem(last=False)
            self._upto.pop(oldest, None)
        return state, sequence
