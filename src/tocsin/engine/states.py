"""The states that decisions see: cached folds of scopes, and readings of one wave.

A cached state may be outdated. Then the guard of an append refuses the append, and the state is read again. No decision
relies on the cache alone.
"""

import asyncio
from collections import OrderedDict, defaultdict
from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Final, Generic, TypeVar

from .. import subjects
from ..domain.events import Message, Recorded
from ..ports import StaleRead
from ..subjects import DecodeError
from .kinds import TAIL
from .step import Known, Missing, Reading, Ref, Scope, Sources

T = TypeVar("T")

CAPACITY: Final = 10_000
UNKNOWN_TIME: Final = datetime.min.replace(tzinfo=UTC)
"""Time of an event appended by this process: the answer to an append has the sequence but not the log's time."""


class StateStore:
    """The states of one process, which its stages share."""

    def __init__(self, sources: Sources, *, capacity: int = CAPACITY) -> None:
        """`capacity`: states of each kind that stay cached."""
        self.sources = sources
        self._capacity = capacity
        self._folds: dict[Scope[Any], Folds[Any]] = {}
        self._lasting: dict[Reading[Any, Any], OrderedDict[Any, Any]] = {}

    def view(self) -> "View":
        """Return the states for one wave."""
        return View(self)

    def clear(self) -> None:
        """Forget every state, as a restart does."""
        self._folds.clear()
        self._lasting.clear()

    def folds(self, kind: Scope[T]) -> "Folds[T]":
        """Return the cached states of a kind of scope."""
        folds = self._folds.get(kind)
        if folds is None:
            folds = self._folds[kind] = Folds(kind, self.sources, capacity=self._capacity)
        return folds

    def learn(self, known: Iterable[Known]) -> None:
        """Cache events that inputs report, oldest first."""
        for report in sorted(known, key=lambda report: report.event.sequence):
            if isinstance(report.ref.kind, Scope):
                self.folds(report.ref.kind).learn(report.ref.key, report.event, after=report.after)

    def lasting(self, kind: Reading[Any, T], key: object) -> T:
        """Return a reading that never changes; `LookupError`: it is not cached."""
        cached = self._lasting[kind]
        value: T = cached[key]
        cached.move_to_end(key)
        return value

    def keep(self, kind: Reading[Any, T], key: object, value: T) -> None:
        """Cache a reading that never changes."""
        cached = self._lasting.setdefault(kind, OrderedDict())
        cached[key] = value
        if len(cached) > self._capacity:
            cached.popitem(last=False)


class View:
    """The states as one wave of decisions sees them (`step.States`)."""

    def __init__(self, store: StateStore) -> None:
        self._store = store
        self._readings: dict[Ref[Any], Any] = {}
        self._errors: dict[Ref[Any], Exception] = {}
        self.touched: list[Ref[Any]] = []
        """References that the current decision looked at; the engine clears it before each."""
        self.sent: set[str] = set()
        """Ids of what earlier steps of the current input sent."""
        self.changed: set[Ref[Any]] = set()
        """Scopes to which earlier steps of the current input appended."""
        self._guesses: set[Ref[Any]] = set()
        self._refreshed: set[Ref[Any]] = set()

    def __call__(self, ref: Ref[T], /) -> T:
        """Return a state, or raise `Missing`."""
        self.touched.append(ref)
        if self._errors and ref in self._errors:
            raise self._errors[ref]
        kind = ref.kind
        if isinstance(kind, Scope):
            return self._store.folds(kind).get(ref)[0]
        if ref in self._readings:
            reading: T = self._readings[ref]
            return reading
        if kind.is_lasting:
            try:
                return self._store.lasting(kind, ref.key)
            except LookupError:
                pass
        raise Missing(ref)

    def at(self, ref: Ref[Any], /) -> int:
        """Return the last sequence that the state of a scope includes."""
        self.touched.append(ref)
        return self.known(ref)[1]

    def guess(self, ref: Ref[T], /) -> T:
        """Return the cached state of a scope, or else the initial state."""
        self.touched.append(ref)
        kind = ref.kind
        if not isinstance(kind, Scope):
            raise TypeError(f"{kind.name} is not the state of a scope")
        self._guesses.add(ref)
        return self._store.folds(kind).guess(ref)[0]

    def up_to(self, ref: Ref[T], sequence: int, /) -> T:
        """Return the state of a scope that includes all its events up to a sequence of the stream."""
        self.touched.append(ref)
        kind = ref.kind
        if not isinstance(kind, Scope):
            raise TypeError(f"{kind.name} is not the state of a scope")
        folds = self._store.folds(kind)
        if not folds.covers(ref.key, sequence):
            if ref not in self._refreshed:
                self._refreshed.add(ref)
                folds.refresh(ref.key)
            _, at = folds.get(ref)
            if not folds.covers(ref.key, sequence):  # the read says nothing of a scope without events
                if self(TAIL(ref.key)) > at:
                    raise StaleRead.of(ref.key)
                folds.cover(ref.key, sequence)
        return folds.get(ref)[0]

    def has_changed(self, ref: Ref[Any], /) -> bool:
        """Return whether an earlier step of the current input appended to a scope."""
        return ref in self.changed

    def is_unread(self, ref: Ref[Any], /) -> bool:
        """Return whether nothing of a scope is cached, and no guard on it failed."""
        self.touched.append(ref)
        kind = ref.kind
        return isinstance(kind, Scope) and self._store.folds(kind).is_unread(ref.key)

    def is_sent(self, message_id: str, /) -> bool:
        """Return whether an earlier step of the current input sent a message."""
        return message_id in self.sent

    async def read(self, refs: Collection[Ref[Any]]) -> None:
        """Read states, those of one kind together.

        An unreadable event fails only the decisions that look at it.

        Raises:
            LogUnavailable: the log did not answer.
            StaleRead: a lagging replica answered.
        """
        kinds: dict[Any, list[Ref[Any]]] = defaultdict(list)
        for ref in refs:
            kinds[ref.kind].append(ref)
        await asyncio.gather(*(self._read_kind(kind, of_kind) for kind, of_kind in kinds.items()))

    async def _read_kind(self, kind: Any, refs: Sequence[Ref[Any]]) -> None:  # noqa: ANN401 - of any kind
        try:
            await self._read_all(kind, refs)
        except DecodeError as error:
            if len(refs) == 1:
                self._errors[refs[0]] = error
                return
            for ref in refs:  # find the unreadable ones
                await self._read_kind(kind, [ref])

    async def _read_all(self, kind: Any, refs: Sequence[Ref[Any]]) -> None:  # noqa: ANN401 - of any kind
        if isinstance(kind, Scope):
            await self._store.folds(kind).read([ref.key for ref in refs])
            return
        values = await kind.read(self._store.sources, [ref.key for ref in refs])
        for ref in refs:
            self._readings[ref] = values[ref.key]
            if kind.is_lasting:
                self._store.keep(kind, ref.key, values[ref.key])

    def forget(self, refs: Iterable[Ref[Any]]) -> None:
        """Read states anew: the decisions on them were outdated."""
        for ref in refs:
            kind = ref.kind
            if isinstance(kind, Scope):
                self._store.folds(kind).mark_outdated(ref.key)
            self._readings.pop(ref, None)

    def expire(self) -> None:
        """End the wave: what was read, and not folded, is read anew."""
        self._readings.clear()
        self._errors.clear()
        self._guesses.clear()
        self._refreshed.clear()

    def stored(
        self, ref: Ref[Any], state: object, at: int, events: Sequence[Message], sequences: Sequence[int]
    ) -> None:
        """Fold events that were just appended after the sequence `at` to a state."""
        kind = ref.kind
        if isinstance(kind, Scope):
            self._store.folds(kind).append(ref.key, state, at, events, sequences)

    def known(self, ref: Ref[T]) -> tuple[T, int]:
        """Return a cached state and the sequence that it includes."""
        kind = ref.kind
        if not isinstance(kind, Scope):
            raise TypeError(f"{kind.name} is not the state of a scope")
        folds = self._store.folds(kind)
        return folds.guess(ref) if ref in self._guesses else folds.get(ref)

    def confirm(self, ref: Ref[Any], tail: int) -> bool:
        """Return whether a state includes the newest event; if not, it is read anew."""
        kind = ref.kind
        if not isinstance(kind, Scope):
            raise TypeError(f"{kind.name} is not the state of a scope")
        return self._store.folds(kind).confirm(ref.key, tail)


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

    def covers(self, scope: str, sequence: int) -> bool:
        """Return whether a cached state includes all events of its scope up to a sequence of the stream."""
        known = self._known.get(scope)
        if known is None or scope in self._outdated:
            return False
        return max(known[1], self._upto.get(scope, 0)) >= sequence

    def cover(self, scope: str, sequence: int) -> None:
        """Record that a cached state includes all events of its scope up to a sequence of the stream."""
        self._upto[scope] = max(self._upto.get(scope, 0), sequence)

    def guess(self, ref: Ref[Any]) -> tuple[T, int]:
        """Return a state and its last sequence, or the initial state if the scope is not known to have events.

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
        """Read scopes that are not cached whole, and of outdated ones the newer events.

        Raises:
            DecodeError: an event of one of them is unreadable.
            LogUnavailable: the log did not answer.
        """
        cached = {scope for scope in scopes if self._kind.catches_up and scope in self._known}
        streams = defaultdict[Any, list[str]](list)
        for scope in scopes:
            if scope not in cached or scope in self._aging:
                streams[subjects.stream_of(scope)].append(scope)
        conflicts = [scope for scope in cached if scope not in self._aging]
        await asyncio.gather(*map(self._load, streams.values()), *map(self._catch_up, conflicts))

    async def _load(self, scopes: Sequence[str]) -> None:
        """Read scopes whole, and of those to refresh the newer events."""
        after = {scope: self._known[scope][1] for scope in scopes if scope in self._aging and scope in self._known}
        loaded = await self._log.load_each(*scopes, after=after)
        for scope, events in zip(scopes, loaded.facts, strict=True):
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
            self._upto[scope] = loaded.upto
            self._outdated.discard(scope)
            self._aging.discard(scope)

    async def _catch_up(self, scope: str) -> None:
        """Fold the events after a cached state.

        If there are none, the replica lags or the events were archived, and the next read is of the whole scope.
        """
        state, sequence = self._known[scope]
        events = await self._log.load(scope, after=sequence)
        for recorded in events:
            state, sequence = self._kind.evolve(state, recorded), recorded.sequence
        if not events:
            self._known.pop(scope, None)
        elif scope in self._known and self._known[scope][1] < sequence:
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
        folded: Any = state
        for event, sequence in zip(events, sequences, strict=False):
            recorded: Recorded[Message] = Recorded(event, subjects.subject_of(event), sequence, UNKNOWN_TIME)
            folded, at = self._kind.evolve(folded, recorded), sequence
        if scope not in self._known or self._known[scope][1] < at:
            self._remember(scope, folded, at)
            self._outdated.discard(scope)

    def confirm(self, scope: str, tail: int) -> bool:
        """Return whether a state includes the newest event of its scope; if not, it is read anew."""
        known = self._known.get(scope)
        if known is not None and scope not in self._outdated and known[1] == tail:
            return True
        if known is None or known[1] > tail:
            self._known.pop(scope, None)  # a lagging replica was read, or the scope was archived
        else:
            self._outdated.add(scope)
        return False

    def refresh(self, scope: str) -> None:
        """Read the newer events of a scope, if there are any, before the next decision on it."""
        self._outdated.add(scope)
        self._aging.add(scope)

    def mark_outdated(self, scope: str) -> None:
        """Read a scope before the next decision on it: its guard failed."""
        self._outdated.add(scope)
        self._aging.discard(scope)

    def _remember(self, scope: str, state: T, sequence: int) -> None:
        self._known[scope] = state, sequence
        self._known.move_to_end(scope)
        if len(self._known) > self._capacity:
            oldest, _ = self._known.popitem(last=False)
            self._outdated.discard(oldest)
            self._aging.discard(oldest)
            self._upto.pop(oldest, None)


def stale(ref: Ref[Any]) -> StaleRead:
    """Return the error of a decision on a state that must be older than the log."""
    return StaleRead.of(str(ref.key))
