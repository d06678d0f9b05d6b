"""Cached folds of scopes.

A cached state may be outdated. Then the guard of an append refuses the append, and the state is read again. No decision
relies on the cache alone.
"""

import asyncio
from collections import OrderedDict, defaultdict
from collections.abc import Sequence
from typing import Any, Final, Generic, TypeVar

from .. import subjects
from ..domain.events import Message, Recorded
from .fold import UNKNOWN_TIME
from .step import Missing, Ref, Scope, Sources

T = TypeVar("T")

CAPACITY: Final = 10_000


class Folds(Generic[T]):
    """Folded states by scope, each with the sequence that it includes."""

    def __init__(self, kind: Scope[T], sources: Sources, *, capacity: int = CAPACITY) -> None:
        self._kind = kind
        self._log = sources.log
        self._capacity = capacity
        self._known: OrderedDict[str, tuple[T, int]] = OrderedDict()
        self._outdated: set[str] = set()
        self._aging: set[str] = set()
        """Scopes to read on although no conflict was seen."""
        self._upto: dict[str, int] = {}
        """The last sequence of the stream that the read of a scope covered."""

    def get(self, ref: Ref[Any]) -> tuple[T, int]:
        """Return a state and its last sequence.

        Raises:
            Missing: it is not cached, or outdated.
        """
        known = self._known.get(ref.key)
        if known is None or ref.key in self._outdated:
            raise Missing(ref)
        self._known.move_to_end(ref.key)
        return known

    def is_current(self, scope: str) -> bool:
        """Return whether a state is cached, and not outdated."""
        return scope in self._known and scope not in self._outdated

    def covers(self, scope: str, sequence: int) -> bool:
        """Return whether a cached state includes all events up to a sequence of the stream."""
        known = self._known.get(scope)
        if known is None or scope in self._outdated:
            return False
        return max(known[1], self._upto.get(scope, 0)) >= sequence

    def cover(self, scope: str, sequence: int) -> None:
        """Record that a cached state includes all events up to a sequence of the stream."""
        self._upto[scope] = max(self._upto.get(scope, 0), sequence)

    def guess(self, ref: Ref[Any]) -> tuple[T, int]:
        """Return a cached state and its last sequence, or else the initial state.

        Raises:
            Missing: the cached state is outdated, or an earlier guess was wrong.
        """
        if ref.key in self._known or ref.key in self._outdated:
            return self.get(ref)
        return self._kind.initial, 0

    def is_unread(self, scope: str) -> bool:
        """Return whether nothing of a scope is cached, and it is not outdated."""
        return scope not in self._known and scope not in self._outdated

    async def read(self, scopes: Sequence[str]) -> None:
        """Read whole scopes that are not cached, and the newer events of outdated scopes.

        Raises:
            DecodeError: an event of one of them is unreadable.
            LogUnavailable: the log did not answer.
        """
        # Another decision of this process may have read them since this decision missed them.
        scopes = [scope for scope in scopes if not self.is_current(scope)]
        # A dictionary, because a set has no order, and the reads must have one.
        cached = dict.fromkeys(scope for scope in scopes if scope in self._known)
        streams = defaultdict[Any, list[str]](list)
        for scope in scopes:
            if scope not in cached or scope in self._aging:
                streams[subjects.stream_of(scope)].append(scope)
        conflicts = [scope for scope in cached if scope not in self._aging]
        await asyncio.gather(*map(self._load, streams.values()), *map(self._catch_up, conflicts))

    async def _load(self, scopes: Sequence[str]) -> None:
        """Read scopes whole, and of those to refresh the newer events."""
        after = {scope: self._known[scope][1] for scope in scopes if scope in self._aging and scope in self._known}
        facts = await self._log.load_each(*scopes, after=after)
        for scope, events in zip(scopes, facts.facts, strict=True):
            state, sequence = self._kind.initial, 0
            if scope in after:
                if scope not in self._known or self._known[scope][1] < after[scope]:
                    continue  # read again meanwhile
                state, sequence = self._known[scope]
            for recorded in events:
                if recorded.sequence > sequence:
                    state, sequence = self._kind.evolve(state, recorded), recorded.sequence
            if scope not in self._known or self._known[scope][1] <= sequence:
                self._remember(scope, state, sequence)
            self._upto[scope] = facts.upto
            self._outdated.discard(scope)
            self._aging.discard(scope)

    async def _catch_up(self, scope: str) -> None:
        """Fold the events after a cached state.

        If there are none, the replica lags or the events were archived, and the next read is of the whole scope.
        """
        if scope not in self._known:  # another decision dropped it before this task began
            await self._load([scope])
            return
        state, sequence = self._known[scope]
        events = await self._log.load(scope, after=sequence)
        for recorded in events:
            state, sequence = self._kind.evolve(state, recorded), recorded.sequence
        if not events:
            self._drop(scope)
            return
        if scope in self._known and self._known[scope][1] < sequence:
            self._remember(scope, state, sequence)
        self._outdated.discard(scope)

    def learn(self, scope: str, recorded: Recorded[Message], *, after: int) -> None:
        """Cache an event that directly follows the sequence `after`.

        If the cached state ends at another sequence, events are missing, and the state is read. Later events may exist;
        the guard of the next append finds them.
        """
        state, sequence = self._known.get(scope, (self._kind.initial, 0))
        if sequence >= recorded.sequence or scope in self._outdated:
            return
        if after in (0, sequence):
            state = self._kind.evolve(state if after else self._kind.initial, recorded)
            self._remember(scope, state, recorded.sequence)
        elif scope in self._known:
            self._outdated.add(scope)

    def append(self, scope: str, state: object, at: int, events: Sequence[Message], sequences: Sequence[int]) -> None:
        """Fold events that this process just appended to a state."""
        folded_state: Any = state
        for event, sequence in zip(events, sequences, strict=False):
            recorded: Recorded[Message] = Recorded(event, subjects.subject_of(event), sequence, UNKNOWN_TIME)
            folded_state, at = self._kind.evolve(folded_state, recorded), sequence
        if scope not in self._known or self._known[scope][1] < at:
            self._remember(scope, folded_state, at)
            self._outdated.discard(scope)

    def confirm(self, scope: str, tail: int) -> bool:
        """Return whether a state includes the newest event; if not, read it again."""
        known = self._known.get(scope)
        if known is not None and scope not in self._outdated and known[1] == tail:
            return True
        if known is None or known[1] > tail:
            self._drop(scope)  # a lagging replica was read, or the scope was archived
        else:
            self._outdated.add(scope)
        return False

    def refresh(self, scope: str) -> None:
        """Read the newer events of a scope before the next decision on it."""
        self._outdated.add(scope)
        self._aging.add(scope)

    def mark_outdated(self, scope: str) -> None:
        """Read a scope before the next decision on it: its guard failed."""
        if len(self._outdated) > 2 * self._capacity:  # scopes without a cached state: to forget one costs a conflict
            self._outdated &= self._known.keys()
            self._aging &= self._known.keys()
        self._outdated.add(scope)
        self._aging.discard(scope)

    def _drop(self, scope: str) -> None:
        """Remove a state.

        The scope stays outdated, because a guess would take it for an empty one.
        """
        self._known.pop(scope, None)
        self._upto.pop(scope, None)
        self._aging.discard(scope)
        self._outdated.add(scope)

    def _remember(self, scope: str, state: T, sequence: int) -> None:
        self._known[scope] = state, sequence
        self._known.move_to_end(scope)
        if len(self._known) > self._capacity:
            oldest, _ = self._known.popitem(last=False)
            self._outdated.discard(oldest)
            self._aging.discard(oldest)
            self._upto.pop(oldest, None)
