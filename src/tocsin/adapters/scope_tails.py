"""The newest events of scopes, of the fold or of a snapshot and later events.

A process without stages reads the newest snapshot that a commit names. It has a row for each scope except the scopes that left the fold.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from .. import subjects
from ..domain.commit import CommitEvent
from ..domain.events import Message, Recorded
from ..domain.log_events import SUBJECTS, NamedSnapshot, decode
from ..domain.queue import Queue
from ..engine.fold import KINDS, STANDING, Fold
from ..engine.snapshot_rows import Row, recorded_of
from ..engine.snapshots import Place, Snapshots, UnreadableSnapshot
from .scope_reads import Reader

STAYS: Final = STANDING | {"ledger", "queue"}
"""The first tokens of scopes that do not leave the fold: one without a row has no event."""
BROKEN: Final = "broken"
"""The kind of the row of a scope that a fold could not apply an event to."""
_NAMED: Final = SUBJECTS[NamedSnapshot]
_KEY: Final = len('{"key":"')
MAX_PARTS: Final = 64
"""Parts of a snapshot that are kept in memory, about 16 MiB."""


class _BrokenScope(Exception):
    """A scope has no events that make its state."""


class _Base:
    """The known log up to a number: a snapshot, or no event."""

    def __init__(self, place: Place | None = None) -> None:
        self.number = 0 if place is None else place.head.log.number
        self.place = place
        self.parts: dict[str, dict[str, int]] = {}
        """The parts with the rows of scopes, by kind and scope."""
        self.read: dict[int, list[bytes]] = {}
        """The rows of some parts."""


class ScopeTails:
    """Finds the newest events of scopes for a process without stages."""

    def __init__(self, reader: Reader, snapshots: Snapshots) -> None:
        self._reader, self._past = reader, reader.past
        self._snapshots = snapshots
        self.base: _Base | None = None
        self._unreadable: set[str] = set()
        """The digests of snapshots that were damaged, or half replaced."""

    async def standing(self, scope: str, upto: int) -> list[Recorded[Message]] | None:
        """Return the newest events of a scope that does not leave the fold, oldest first.

        None: this version cannot read an event.
        """
        number, events = await self.newest_events((scope,), upto)
        async for one in self._past(subjects.any_of((scope,)), after=number, upto=upto):
            try:
                message = subjects.decode(one.subject, bytes(one.body))
            except subjects.DecodeError:
                return None
            events.append(Recorded(message, one.subject, one.sequence, one.time))
        return events

    async def newest_of(self, filter_: str, upto: int) -> int:
        """Return the number of the newest event of a filter over scopes that stay."""
        number, events = await self.newest_events((filter_,), upto)
        newest = max(map(_number, events), default=0)
        async for one in self._past(subjects.any_of((filter_,)), after=number, upto=upto):
            newest = one.sequence
        return newest

    async def newest_events(self, filters: Sequence[str], upto: int) -> tuple[int, list[Recorded[Message]]]:
        """Return a number, and the events up to it that filters take.

        They are the newest event of each subject, oldest first, of scopes that stay. If a scope is broken, the number is 0: the scope needs
        all events. `upto`: the number of the newest event that this process has read.
        """
        while True:
            base = self.base = self.base or await self._find(upto)
            try:
                return base.number, await self._events(base, filters)
            except UnreadableSnapshot:  # a newer snapshot gets its place, or its writer died
                self._unreadable.update(() if base.place is None else (base.place.digest,))
                self.base = None
            except (_BrokenScope, subjects.DecodeError):
                return 0, []

    async def _find(self, upto: int) -> _Base:
        """Return the newest snapshot that a commit names; without one, the log's beginning."""
        for place in await self._snapshots.places():
            number = place.head.log.number
            if place.digest in self._unreadable:
                continue
            if number <= upto and (place.digest in self._reader.fold.snapshots or await self._is_named(place, upto)):
                return _Base(place)
        return _Base()

    async def _is_named(self, place: Place, upto: int) -> bool:
        async for one in self._past(lambda subject: subject == _NAMED, after=place.head.log.number, upto=upto):
            change = decode(CommitEvent(one.subject, "", "", msgspec.Raw(one.body)))
            if isinstance(change, NamedSnapshot) and change.digest == place.digest:
                return True
        return False

    async def _events(self, base: _Base, filters: Sequence[str]) -> list[Recorded[Message]]:
        takes, newest = subjects.any_of(filters), dict[str, Recorded[Message]]()
        scopes = [subjects.guard_of(filter_) or filter_ for filter_ in filters]
        if base.place is not None and any("*" in scope for scope in scopes):
            kinds = {kind for scope in scopes for kind in _kinds(scope)} - {BROKEN}
            parts = [part for part, (kind, _) in enumerate(base.place.head.parts) if kind in kinds]
            rows = [_decode_row(row) for part in parts for row in await self._snapshots.rows(base.place, part)]
        else:
            found = [await self._row(base, scope) for scope in scopes]
            if any(kind == BROKEN for kind, _ in found):
                raise _BrokenScope
            rows = [row for _, row in found if row is not None]
        for event in (event for row in rows for event in row.events if takes(event.subject)):
            newest[event.subject] = recorded_of(event)
        return sorted(newest.values(), key=_number)

    async def _row(self, base: _Base, scope: str) -> tuple[str, Row | None]:
        """Return the row of a scope, and its kind; None: the snapshot has none."""
        if base.place is None:
            return "", None
        prefix = b'{"key":"%s"' % scope.encode()
        for kind in _kinds(scope):
            if kind not in base.parts:
                base.parts[kind] = await self._parts(base, base.place, kind)
            if (part := base.parts[kind].get(scope)) is not None:
                rows = await self._rows(base, base.place, part)
                return kind, _decode_row(next(row for row in rows if row.startswith(prefix)))
        return "", None

    async def _parts(self, base: _Base, place: Place, kind: str) -> dict[str, int]:
        parts = dict[str, int]()
        for part, (of, _) in enumerate(place.head.parts):
            if of == kind:
                keys = (row[_KEY : row.index(b'"', _KEY)].decode() for row in await self._rows(base, place, part))
                parts.update(dict.fromkeys(keys, part))
        return parts

    async def _rows(self, base: _Base, place: Place, part: int) -> list[bytes]:
        if part not in base.read:
            rows = base.read[part] = await self._snapshots.rows(place, part)
            if len(base.read) > MAX_PARTS:
                del base.read[next(iter(base.read))]
            return rows
        return base.read[part]


def _number(recorded: Recorded[Message]) -> int:
    return recorded.sequence


def _kinds(scope: str) -> tuple[str, ...]:
    first = scope.partition(".")[0]
    return first if first in KINDS else "standing", BROKEN, "other"


_decode_row: Final = msgspec.json.Decoder(Row).decode


def stays(scope: str) -> bool:
    """Return whether a subject is a scope that does not leave the fold, without wildcards."""
    return scope.partition(".")[0] in STAYS and "*" not in scope and subjects.guard_of(scope) == scope


def are_in_fold(filters: Sequence[str]) -> bool:
    """Return whether a fold has all events that filters take and that make states."""
    return {filter_.partition(".")[0] for filter_ in filters} <= STAYS


def are_open(filters: Sequence[str]) -> bool:
    """Return whether a fold has all events of the filters, except events of ended executions."""
    return {filter_.partition(".")[0] for filter_ in filters} <= STAYS | {"execution"}


def newest_events(fold: Fold, filters: Sequence[str]) -> list[Recorded[Message]]:
    """Return the newest event of each subject of scopes that stay, oldest first."""
    takes = subjects.any_of(filters)
    newest = dict[str, Recorded[Message]]()
    for scope in dict.fromkeys(subjects.guard_of(filter_) or filter_ for filter_ in filters):
        for recorded in _events_of(fold, scope):
            if takes(recorded.subject):
                newest[recorded.subject] = recorded
    return sorted(newest.values(), key=_number)


def _events_of(fold: Fold, scope: str) -> Iterator[Recorded[Message]]:
    """Yield the events of a scope, each scope's oldest first.

    With wildcards, yield the events of all scopes with the same first token.
    """
    first = scope.partition(".")[0] + "."
    if "*" in scope or (scope not in fold.standing and scope.startswith(f"{first}>")):
        of_kind = {"queue.": fold.states, "execution.": fold.events}.get(first, {})
        tables: tuple[Mapping[str, object], ...] = (fold.standing, fold.ledgers, of_kind)
        for one in (one for table in tables for one in table if one.startswith(first)):
            yield from _events_of(fold, one)
    elif scope in fold.standing:
        yield from fold.standing[scope].values()
    elif (tail := fold.ledgers.get(scope)) is not None:
        events = {one.sequence: one for one in (*tail.changes, tail.due, tail.time) if one is not None}
        yield from (events[number] for number in sorted(events))
    elif scope in fold.events and scope not in fold.departures.partial:
        yield from fold.events[scope]
    elif isinstance(queue := fold.states.get(scope), Queue):
        yield from queue.events
