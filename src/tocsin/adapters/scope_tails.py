"""The newest events of scopes: those of the fold, or else of a snapshot and of the log after it.

A process without stages knows what was stored since it began. For a scope that it does not know, it reads the log back to the newest snapshot
that a commit names: a snapshot has a row, with the number of its newest event, for each scope but those that left the fold.
"""

import re
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from datetime import datetime
from typing import Final, NamedTuple, Protocol, cast

import msgspec

from .. import subjects
from ..domain.commit import CommitEvent
from ..domain.events import Message, Recorded
from ..domain.log_events import SUBJECTS, NamedSnapshot, decode
from ..domain.queue import Queue
from ..engine.fold import KINDS, STANDING, Fold
from ..engine.scope_numbers import ScopeNumbers
from ..engine.snapshot_rows import Row, recorded_of
from ..engine.snapshots import Place, Snapshots, UnreadableSnapshot

STAYS: Final = STANDING | {"ledger", "queue"}
"""The first tokens of scopes that do not leave the fold: one without a row has no event."""
_NAMED: Final = SUBJECTS[NamedSnapshot]
_ROW: Final = re.compile(rb'\{"key":"([^"\\]+)"(?:,"number":(\d+))?')


class PastEvent(Protocol):
    """An event of a commit."""

    @property
    def event(self) -> CommitEvent:
        """The event, as it stands in the commit."""
        ...

    @property
    def number(self) -> int:
        """Its number."""
        ...

    @property
    def time(self) -> datetime:
        """The time (UTC) of its commit."""
        ...


class ReadPast(Protocol):
    """Reads the log again."""

    def __call__(self, takes: Callable[[str], object], *, after: int, upto: int) -> AsyncIterator[PastEvent]:
        """Yield the events of some subjects after a number, up to a number."""
        ...


class _Base(NamedTuple):
    """What is known of the log up to a number: a snapshot, or that there is nothing."""

    number: int
    place: Place | None


class ScopeTails:
    """Finds the newest events of scopes for one process."""

    def __init__(self, past: ReadPast, fold: Callable[[], Fold], snapshots: Snapshots) -> None:
        """`past` reads what this process has read, or what was stored before it began."""
        self._past = past
        self._fold = fold
        self._snapshots = snapshots
        self._base: _Base | None = None
        self._named: tuple[str, ...] = ()
        """The snapshots that commits had named when the base was looked for."""
        self._rows: dict[str, dict[str, int]] = {}
        """The numbers in the base's rows, by kind and scope."""

    async def known_upto(self, scope: str, expect: int, upto: int) -> int | None:
        """Return a number up to which an event is the newest of a scope that the fold does not have; None: it is not.

        `upto`: the number of the newest event that this process has read.
        """
        fold = self._fold()
        if not isinstance(fold, ScopeNumbers):
            return upto if await self._newest_after(scope, expect, upto) == expect else None
        number, upto = await self._newest(fold, scope, expect)
        return upto if number == expect else None

    async def newest(self, scope: str) -> int:
        """Return the number of the newest event of a scope, for a process without stages; 0: it has none."""
        return (await self._newest(cast("ScopeNumbers", self._fold()), scope, 0))[0]

    async def standing(self, scope: str, upto: int) -> list[Recorded[Message]]:
        """Return the newest events of a standing scope, for a process without stages, oldest first."""
        fold = cast("ScopeNumbers", self._fold())
        while True:
            base, events = await self._basis(fold), list[Recorded[Message]]()
            try:
                if base.place is not None:
                    events = await self._row(base.place, scope)
            except UnreadableSnapshot:
                self._base = None
                continue
            async for one in self._past(subjects.any_of((scope,)), after=base.number, upto=upto):
                message = subjects.decode(one.event.subject, bytes(one.event.body))
                events.append(Recorded(message, one.event.subject, one.number, one.time))
            return events

    async def _newest(self, fold: ScopeNumbers, scope: str, expect: int) -> tuple[int, int]:
        """Return the number of the newest event of a scope (0: there is none), and the number up to which this is known.

        If the newest is below `expect`, the number is only below `expect`.
        """
        while (number := fold.numbers.get(scope)) is None:
            base = await self._basis(fold)
            if base.number < fold.since:  # too many scopes changed since
                upto = fold.since
                return await self._newest_after(scope, expect, upto), upto
            try:
                of_row = await self._number(base, scope)
            except UnreadableSnapshot:  # a newer one has its place
                self._base = None
                continue
            if of_row is None:
                of_row = await self._newest_after(scope, expect, base.number)
            if scope not in fold.numbers:
                return of_row, base.number
        return number, number

    async def _newest_after(self, scope: str, expect: int, upto: int) -> int:
        """Return the number of the newest event of a scope up to a number, unless this is below `expect`."""
        number = max(expect - 1, 0)
        async for one in self._past(subjects.any_of((scope,)), after=number, upto=upto):
            number = one.number
        return number

    # --- the snapshot ----------------------------------------------------------------------------------------------------

    async def _basis(self, fold: ScopeNumbers) -> _Base:
        """Return the newest snapshot after which this process knows all scopes that changed, or the log's beginning."""
        is_late = self._base is not None and self._base.number < fold.since and self._named != fold.snapshots
        if self._base is None or is_late:
            self._rows.clear()
            self._named = fold.snapshots
            self._base = await self._find(fold)
        return self._base

    async def _find(self, fold: ScopeNumbers) -> _Base:
        for place in await self._snapshots.places():
            number = place.head.log.number
            named, numbers = set(fold.snapshots), dict[str, int]()
            if number < fold.since:
                async for one in self._past(lambda _: True, after=number, upto=fold.since):
                    numbers[subjects.guard_of(one.event.subject) or one.event.subject] = one.number
                    if one.event.subject == _NAMED and isinstance(change := decode(one.event), NamedSnapshot):
                        named.add(change.digest)
            if place.digest in named:
                fold.note_earlier(numbers, number)
                return _Base(number, place)
        return _Base(0, None)

    async def _number(self, base: _Base, scope: str) -> int | None:
        """Return the number of the newest event of a scope up to a base; None: the base does not know."""
        first = scope.partition(".")[0]
        if base.place is None:
            return None
        for kind in (first if first in KINDS else "standing", "broken", "other"):
            if kind not in self._rows:
                self._rows[kind] = await self._numbers(base.place, kind)
            if number := self._rows[kind].get(scope):
                return number
        return 0 if first in STAYS else None

    async def _numbers(self, place: Place, kind: str) -> dict[str, int]:
        numbers = dict[str, int]()
        async for rows in self._snapshots.rows(place, kind):
            for match in map(_ROW.match, rows):
                if match is not None:
                    numbers[match[1].decode()] = int(match[2] or 0)
        return numbers

    async def _row(self, place: Place, scope: str) -> list[Recorded[Message]]:
        async for rows in self._snapshots.rows(place, "standing"):
            for row in map(_decode_row, rows):
                if row.key == scope:
                    return list(map(recorded_of, row.events))
        return []


_decode_row: Final = msgspec.json.Decoder(Row).decode


# --- the fold --------------------------------------------------------------------------------------------------------------


def is_standing(scope: str) -> bool:
    """Return whether a scope is a standing one (`fold.STANDING`), without wildcards."""
    return scope.partition(".")[0] in STANDING and "*" not in scope and subjects.guard_of(scope) == scope


def are_in_fold(filters: Sequence[str]) -> bool:
    """Return whether a fold has all events that filters take and that make states."""
    return all(filter_.partition(".")[0] in STAYS for filter_ in filters)


def newest_events(fold: Fold, filters: Sequence[str]) -> list[Recorded[Message]]:
    """Return the events of scopes that stay, as far as states need them, and of each subject only the newest; oldest first."""
    takes = subjects.any_of(filters)
    newest = dict[str, Recorded[Message]]()
    for filter_ in filters:
        for recorded in _events_of(fold, subjects.guard_of(filter_) or filter_):
            if takes(recorded.subject):
                newest[recorded.subject] = recorded
    return sorted(newest.values(), key=lambda recorded: recorded.sequence)


def _events_of(fold: Fold, scope: str) -> Iterator[Recorded[Message]]:
    """Yield the events of a scope, or of all scopes with the same first token if it has wildcards, each oldest first."""
    if "*" in scope:
        first = scope.partition(".")[0] + "."
        tables = (fold.standing, fold.ledgers, fold.states if first == "queue." else {})
        for one in (one for table in tables for one in table if one.startswith(first)):
            yield from _events_of(fold, one)
    elif scope in fold.standing:
        yield from fold.standing[scope].values()
    elif (tail := fold.ledgers.get(scope)) is not None:
        events = {one.sequence: one for one in (*tail.changes, tail.due, tail.time) if one is not None}
        yield from (events[number] for number in sorted(events))
    elif isinstance(queue := fold.states.get(scope), Queue):
        yield from (one for one in (queue.pause, queue.purge) if one is not None)
