"""The states that decisions see: cached folds of scopes (`folds`), and readings of one wave."""

import asyncio
import math
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, TypeVar

from ..domain.events import Message
from ..ports import StaleRead
from ..subjects import DecodeError
from .folds import CAPACITY, Folds
from .kinds import TAIL
from .step import Known, Missing, Reading, Ref, Scope, Sources

T = TypeVar("T")


class StateStore:
    """The states of one process, which its stages share."""

    def __init__(self, sources: Sources, *, capacity: int = CAPACITY) -> None:
        """`capacity`: states of each kind that stay cached."""
        self.sources = sources
        self._capacity = capacity
        self._folds: dict[Scope[Any], Folds[Any]] = {}
        self._lasting: dict[Reading[Any, Any], OrderedDict[Any, Any]] = {}
        self._absent_until: dict[Reading[Any, Any], dict[Any, float]] = {}
        """The end of readings that are None for a time, by the monotonic clock."""

    def view(self) -> "View":
        """Return the states for one wave."""
        return View(self)

    def clear(self) -> None:
        """Forget every state, as a restart does."""
        self._folds.clear()
        self._lasting.clear()
        self._absent_until.clear()

    def folds(self, kind: Scope[T]) -> Folds[T]:
        """Return the cached states of a kind of scope."""
        folds = self._folds.get(kind)
        if folds is None:
            folds = self._folds[kind] = Folds(kind, self.sources, capacity=self._capacity)
        return folds

    def is_unread(self, ref: Ref[Any]) -> bool:
        """Return whether nothing of a scope is cached, and no guard on it failed."""
        return isinstance(ref.kind, Scope) and self.folds(ref.kind).is_unread(ref.key)

    def learn(self, reports: Iterable[Known]) -> None:
        """Cache events that inputs report, oldest first."""
        for report in sorted(reports, key=lambda report: report.event.sequence):
            if isinstance(report.ref.kind, Scope):
                self.folds(report.ref.kind).learn(report.ref.key, report.event, after=report.after)

    def lasting(self, kind: Reading[Any, T], key: object) -> T:
        """Return a reading that never changes; `LookupError`: it is not cached."""
        if self._absent_until:
            self._end_absence(kind, key)
        readings = self._lasting[kind]
        value: T = readings[key]
        readings.move_to_end(key)
        return value

    def has_lasting(self, kind: Reading[Any, Any], key: object) -> bool:
        """Return whether a reading that never changes is cached."""
        if self._absent_until:
            self._end_absence(kind, key)
        return key in self._lasting.get(kind, ())

    def keep(self, kind: Reading[Any, T], key: object, value: T) -> None:
        """Cache a reading that never changes."""
        readings = self._lasting.setdefault(kind, OrderedDict())
        readings[key] = value
        absences = self._absent_until.get(kind, {})
        absences.pop(key, None)
        if value is None and kind.absent_for_s is not None:
            self._absent_until.setdefault(kind, absences)[key] = self.sources.clock.monotonic() + kind.absent_for_s
        if len(readings) > self._capacity:
            absences.pop(readings.popitem(last=False)[0], None)

    def _end_absence(self, kind: Reading[Any, Any], key: object) -> None:
        absences = self._absent_until.get(kind, {})
        if absences.get(key, math.inf) <= self.sources.clock.monotonic():
            del absences[key]
            self._lasting[kind].pop(key, None)


class View:
    """The states as one wave of decisions sees them (`step.States`)."""

    def __init__(self, store: StateStore) -> None:
        self._store = store
        self._readings: dict[Ref[Any], Any] = {}
        self._errors: dict[Ref[Any], Exception] = {}
        self._entries: dict[Ref[Any], tuple[bytes, int]] = {}
        """KV entries that the current wave stored."""
        self.touched: list[Ref[Any]] = []
        """References that the current decision looked at; the engine clears it before each."""
        self.expected: list[Callable[[], Iterable[Ref[Any]]]] = []
        """Functions that return what the current decision may look at; the engine clears it before each."""
        self.sent: set[str] = set()
        """Ids of what earlier steps of the current input sent."""
        self.changed: set[Ref[Any]] = set()
        """Scopes to which earlier steps of the current input appended."""
        self.is_repeated = False
        self._guesses: set[Ref[Any]] = set()
        self._refreshed: set[Ref[Any]] = set()
        self._fresh: set[Ref[Any]] = set()

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

    def expect(self, refs: Callable[[], Iterable[Ref[Any]]], /) -> None:
        """Name states to read with a state that the current decision misses."""
        self.expected.append(refs)

    def missing_of_expected(self) -> list[Ref[Any]]:
        """Return the expected states that are not read yet."""
        return [ref for refs in self.expected for ref in refs() if self._is_missing(ref)]

    def _is_missing(self, ref: Ref[Any]) -> bool:
        if ref in self._errors or ref in self._readings:
            return False
        kind = ref.kind
        if isinstance(kind, Scope):
            return not self._store.folds(kind).is_current(ref.key)
        return not (kind.is_lasting and self._store.has_lasting(kind, ref.key))

    def at(self, ref: Ref[Any], /) -> int:
        """Return the last sequence that the state of a scope includes."""
        self.touched.append(ref)
        return self.known(ref)[1]

    def guess(self, ref: Ref[T], /) -> T:
        """Return the cached state of a scope, or else the initial state."""
        self.touched.append(ref)
        self._guesses.add(ref)
        return self._folds(ref).guess(ref)[0]

    def up_to(self, ref: Ref[T], sequence: int, /) -> T:
        """Return the state of a scope with all events up to a sequence."""
        self.touched.append(ref)
        folds = self._folds(ref)
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

    def fresh(self, ref: Ref[T], /, *others: Ref[Any]) -> T:
        """Return the state of a scope, and read it and `others` once in this wave."""
        for scope in (ref, *others):
            if scope not in self._fresh:
                self._fresh.add(scope)
                self._folds(scope).refresh(scope.key)
        self.expect(lambda: others)
        return self(ref)

    def has_changed(self, ref: Ref[Any], /) -> bool:
        """Return whether an earlier step of the current input appended to a scope."""
        return ref in self.changed

    def is_unread(self, ref: Ref[Any], /) -> bool:
        """Return whether nothing of a scope is cached, and no guard on it failed."""
        self.touched.append(ref)
        return self._store.is_unread(ref)

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
        self._fresh.update(refs)
        await asyncio.gather(*(self._read_kind(kind, of_kind) for kind, of_kind in kinds.items()))

    async def _read_kind(self, kind: Any, refs: Sequence[Ref[Any]]) -> None:  # noqa: ANN401 - of any kind
        try:
            await self._read_all(kind, refs)
        except DecodeError as error:
            if len(refs) == 1:
                self._errors[refs[0]] = error
                return
            for ref in refs:  # find the unreadable states
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
        """Read states again before the next decision: the decisions on them were outdated."""
        for ref in refs:
            kind = ref.kind
            if isinstance(kind, Scope):
                self._store.folds(kind).mark_outdated(ref.key)
            self._readings.pop(ref, None)
            self._entries.pop(ref, None)

    def expire(self) -> None:
        """End the wave: forget its readings, except the KV entries that it stored."""
        self._readings, self._entries = self._entries, {}
        self._errors.clear()
        self._guesses.clear()
        self._refreshed.clear()
        self._fresh.clear()

    def put(self, ref: Ref[tuple[bytes, int] | None], value: bytes, revision: int) -> None:
        """Know a KV entry that was just stored until the next wave ends."""
        self._entries[ref] = value, revision

    def stored(
        self, ref: Ref[Any], state: object, at: int, events: Sequence[Message], sequences: Sequence[int]
    ) -> None:
        """Fold events that were just appended after the sequence `at` to a state."""
        kind = ref.kind
        if isinstance(kind, Scope):
            self._store.folds(kind).append(ref.key, state, at, events, sequences)

    def known(self, ref: Ref[T]) -> tuple[T, int]:
        """Return a cached state and the sequence that it includes."""
        folds = self._folds(ref)
        return folds.guess(ref) if ref in self._guesses else folds.get(ref)

    def confirm(self, ref: Ref[Any], tail: int) -> bool:
        """Return whether a state includes the newest event; if not, read it again."""
        return self._folds(ref).confirm(ref.key, tail)

    def _folds(self, ref: Ref[T]) -> Folds[T]:
        kind = ref.kind
        if not isinstance(kind, Scope):
            raise TypeError(f"{kind.name} is not the state of a scope")
        return self._store.folds(kind)
