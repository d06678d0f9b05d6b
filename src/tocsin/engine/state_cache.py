"""A cache of folded entities by scope and sequence, which saves reads of the log.

A cached state may be outdated. Then the guard of an append refuses the append, and the state is read again. No decision
relies on the cache alone.
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
UNKNOWN_TIME: Final = datetime.min.replace(tzinfo=UTC)
"""Time of an event appended by this process: the answer to an append has the sequence but not the log's time."""


class StateCache(Generic[S]):
    """The cached states of one kind of entity, each with the sequence that it includes."""

    def __init__(
        self,
        log: EventLog,
        initial: S,
        evolve: Callable[[S, Recorded[Message]], S],
        *,
        capacity: int = CAPACITY,
    ) -> None:
        """Keep the states of at most `capacity` entities."""
        self._log = log
        self._initial = initial
        self._evolve = evolve
        self._capacity = capacity
        self._known: OrderedDict[str, tuple[S, int]] = OrderedDict()
        self._upto: dict[str, int] = {}
        self._outdated: set[str] = set()

    async def load(self, scope: str) -> tuple[S, int]:
        """Return an entity's state and last sequence, from the cache or else from the log."""
        known = self._known.get(scope)
        if known is not None and scope not in self._outdated:
            self._known.move_to_end(scope)
            return known
        if known is None or not await self._catch_up(scope, *known):
            self.fill(scope, await self._log.load(scope))
        return self._known[scope]

    async def recall(self, scopes: Collection[str]) -> None:
        """Read in one request the scopes that are not cached.

        Raises:
            DecodeError: an event of one of them is unreadable; nothing was cached.
        """
        unknown = [scope for scope in scopes if not self.knows(scope)]
        if unknown:
            loaded = await self._log.load_each(*unknown)
            for scope, events in zip(unknown, loaded.facts, strict=True):
                self.fill(scope, events)

    def knows(self, scope: str) -> bool:
        """Return whether `load` would answer from the cache."""
        return scope in self._known and scope not in self._outdated

    async def refresh(self, scopes: Collection[str]) -> None:
        """Read the new events of cached scopes, and all events of the others."""
        after = {scope: self._known[scope][1] for scope in scopes if scope in self._known}
        loaded = await self._log.load_each(*scopes, after=after)
        for scope, events in zip(scopes, loaded.facts, strict=True):
            if scope not in after:
                self.fill(scope, events, upto=loaded.upto)
            elif self._known.get(scope, (None, 0))[1] >= after[scope]:  # otherwise it was read again meanwhile
                state, sequence = self._known[scope]
                for recorded in events:
                    if recorded.sequence > sequence:
                        state, sequence = self._evolve(state, recorded), recorded.sequence
                self._remember(scope, state, sequence, upto=loaded.upto)
                self._outdated.discard(scope)

    async def _catch_up(self, scope: str, state: S, sequence: int) -> bool:
        """Read the events after a cached state; return whether there were any.

        If there are none, the replica lags or the events were archived, and the scope is removed from the cache.
        """
        events = await self._log.load(scope, after=sequence)
        for recorded in events:
            state = self._evolve(state, recorded)
        if not events:
            self.forget(scope)
            return False
        if scope not in self._known or self._known[scope][1] < events[-1].sequence:
            self._remember(scope, state, events[-1].sequence)
        self._outdated.discard(scope)
        return True

    def fill(self, scope: str, events: Iterable[Recorded[Message]], *, upto: int = 0) -> None:
        """Cache all events of a scope, just read, unless newer events are cached.

        `upto`: the last sequence of the log that the read covers, if known.
        """
        state, sequence = self._fold(events)
        if scope not in self._known or self._known[scope][1] <= sequence:
            self._remember(scope, state, sequence, upto=upto)
        self._outdated.discard(scope)

    def accounts_for(self, scope: str, sequence: int) -> bool:
        """Return whether the cached state includes all events up to a sequence of the log."""
        known = self._known.get(scope)
        return known is not None and max(known[1], self._upto.get(scope, 0)) >= sequence

    def learn(self, scope: str, recorded: Recorded[Message], *, after: int) -> None:
        """Cache an event that directly follows the sequence `after`.

        0: the event begins the scope, or holds the whole state. If the cached state ends at another sequence, it is marked
        as outdated, and the next `load` reads it. Later events may exist; the guard of the next append finds them.
        """
        state, sequence = self._known.get(scope, (self._initial, 0))
        if sequence >= recorded.sequence or scope in self._outdated:
            return
        if after in (0, sequence):
            self._remember(scope, self._evolve(state if after else self._initial, recorded), recorded.sequence)
        elif scope in self._known:
            self._outdated.add(scope)  # events are missing, for which a guard would refuse the next append

    async def decide(self, scope: str, decide: Callable[[S], Sequence[Message]]) -> Sequence[Message]:
        """Append the events that `decide` returns for an entity, in order, and return them.

        If `decide` returns no events, no guard checks the state, and it may come from the cache or a lagging replica. So
        the state is compared with the tail of the scope first.

        Raises:
            SequenceConflict: another writer appended to the scope; decide again.
            StaleRead: a lagging replica was read.
        """
        known = await self.load(scope)
        events = decide(known[0])
        if not events and not await self.is_newest(scope, known[1]):
            known = await self.load(scope)
            events = decide(known[0])
            if not events and not await self.is_newest(scope, known[1]):
                raise StaleRead.of(scope)
        for event in events:
            known = await self.append(scope, event, known=known)
        return events

    async def append(self, scope: str, event: Message, *, known: tuple[S, int]) -> tuple[S, int]:
        """Append an event decided on a known state; return the state and sequence after it.

        Raises:
            SequenceConflict: another writer appended to the scope; the next `load` reads its event.
        """
        state, sequence = known
        try:
            stored = await self._log.append(event, expect=sequence)
        except SequenceConflict:
            if scope in self._known and self._known[scope][1] <= sequence:  # else it has grown meanwhile
                self._outdated.add(scope)
            raise
        self._outdated.discard(scope)
        recorded = Recorded(event, subjects.subject_of(event), stored, UNKNOWN_TIME)
        return self._remember(scope, self._evolve(state, recorded), stored)

    async def is_newest(self, scope: str, sequence: int) -> bool:
        """Return whether `sequence` is the last in a scope; if not, mark it as outdated."""
        tail = await self._log.tail(scope)
        if tail == sequence:
            return True
        if tail < sequence:
            self.forget(scope)
        elif scope in self._known and self._known[scope][1] < tail:  # else it has grown meanwhile
            self._outdated.add(scope)
        return False

    def forget(self, scope: str) -> None:
        """Remove a scope from the cache; the next `load` reads it."""
        self._known.pop(scope, None)
        self._upto.pop(scope, None)
        self._outdated.add(scope)

    def _fold(self, events: Iterable[Recorded[Message]]) -> tuple[S, int]:
        state, sequence = self._initial, 0
        for recorded in events:
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
