"""The ledgers of many jobs as bytes, in parts of bounded size.

A snapshot is a cache of the fold. It has what `Ledgers` keeps and nothing else, so a ledger that was restored and then
folded further equals the ledger that was folded from the beginning. A row is read by its position, and `FORMAT` names all
positions: a snapshot with another `FORMAT` cannot be read.
"""

from dataclasses import fields
from datetime import datetime
from hashlib import sha256
from operator import attrgetter
from typing import Annotated, Final

import msgspec

from ..definition import CatchUp, OnCompletion
from ..errors import TocsinError
from ..schedule import Blackout, DayRules, DstPolicy, NamedDays
from .memory import Ledgers, Plain
from .state import KnownDefinition, Ledger, Regime, without_definitions
from .timetables import Timetable, shared

REVISION: Final = 1
"""Raise it if the same events fold into other states than before, or if a field has another type or meaning."""

_Number = Annotated[int, msgspec.Meta(ge=0)]
_Time = Annotated[datetime, msgspec.Meta(tz=True)]
_ROW_BYTES: Final = 80
"""The size of a row without the name of its job, at most."""
_TIMETABLE_BYTES: Final = 120
"""The size of a timetable without its schedule, at most."""


_RANGE_BYTES: Final = 22
"""The size of a range of dates, at most."""


class UnreadableSnapshot(TocsinError, ValueError):
    """A snapshot is damaged, of another version, or of other ledgers."""

    code = "snapshot-unreadable"


class _PlainRow(msgspec.Struct, array_like=True, frozen=True, gc=False, forbid_unknown_fields=True):
    """A usual ledger (`memory.Plain`)."""

    job: str
    sequence: _Number
    definition: _Number
    previous: _Number
    since: _Time
    timetable: _Number
    """Its position in the timetables of the part."""
    watermark: _Time | None
    last_fired: _Time | bool | None
    """True: it is the watermark, as after every instant that fires."""
    created_at: _Time | None
    anchor: _Time | None


class _RegimeRow(msgspec.Struct, array_like=True, frozen=True, gc=False, forbid_unknown_fields=True):
    since: _Time
    definition: _Number
    paused: bool
    fact: _Number
    previous: _Number


class _DefinitionRow(msgspec.Struct, array_like=True, frozen=True, gc=False, forbid_unknown_fields=True):
    sequence: _Number
    since: _Time
    timetable: _Number
    created_at: _Time | None
    anchor: _Time | None


class _OtherRow(msgspec.Struct, array_like=True, frozen=True, gc=False, forbid_unknown_fields=True):
    """Any other ledger."""

    job: str
    sequence: _Number
    regimes: tuple[_RegimeRow, ...]
    definitions: tuple[_DefinitionRow, ...]
    watermark: _Time | None
    last_fired: _Time | None


class _TimetableRow(msgspec.Struct, array_like=True, frozen=True, gc=False, forbid_unknown_fields=True):
    """The fields of `Timetable`, in its order."""

    schedule: str | None
    timezone: str
    dst: DstPolicy | None
    enabled: bool
    catch_up: CatchUp
    catch_up_limit: int
    catch_up_max_age: float
    starting_deadline: float | None
    on_completion: OnCompletion
    is_divided: bool
    days: DayRules | None


class _Part(msgspec.Struct, array_like=True, gc=False, forbid_unknown_fields=True):
    timetables: list[_TimetableRow]
    plain: list[_PlainRow]
    others: list[_OtherRow]


_fields_of: Final = attrgetter(*(field.name for field in fields(Timetable)))
_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(_Part).decode


def _format() -> str:
    structs = (_Part, _PlainRow, _OtherRow, _RegimeRow, _DefinitionRow, _TimetableRow)
    shape = [f"{struct.__name__}({', '.join(struct.__struct_fields__)})" for struct in structs]
    values = (DayRules, NamedDays, Blackout)
    shape += [f"{value.__name__}({', '.join(field.name for field in fields(value))})" for value in values]
    return f"{REVISION}-{sha256('; '.join(shape).encode()).hexdigest()[:16]}"


FORMAT: Final = _format()
"""The format of parts: `REVISION`, and a digest of the names of all fields."""


class PartBuilder:
    """Collects ledgers for a part."""

    def __init__(self) -> None:
        self._part = _Part([], [], [])
        self._positions: dict[int, int] = {}
        """Positions of timetables by identity; equal timetables are usually one object."""
        self._kept: list[Timetable] = []
        """The timetables, so that no other object gets their identities."""
        self.size = 0
        """The approximate size of the part, in bytes."""
        self.newest = 0
        """The last sequence of all ledgers in the part."""

    def add(self, ledgers: Ledgers, job: str) -> None:
        """Add a job's ledger."""
        self.size += _ROW_BYTES + len(job)
        if (plain := ledgers.plain(job)) is not None:
            self._part.plain.append(self._plain_row(job, plain))
            self.newest = max(self.newest, plain.sequence)
            return
        state, sequence = ledgers[job]
        row = self._other_row(job, without_definitions(state), sequence)
        self._part.others.append(row)
        self.size += _ROW_BYTES * (len(row.regimes) + len(row.definitions))
        self.newest = max(self.newest, sequence)

    def encode(self) -> bytes:
        """Return the part."""
        return _encode(self._part)

    def _plain_row(self, job: str, plain: Plain) -> _PlainRow:
        watermark, last_fired = plain.watermark, plain.last_fired
        return _PlainRow(
            job,
            plain.sequence,
            plain.definition,
            plain.previous,
            plain.since,
            self._position(plain.timetable),
            watermark,
            True if last_fired is not None and last_fired == watermark else last_fired,
            plain.created_at,
            plain.anchor,
        )

    def _other_row(self, job: str, state: Ledger, sequence: int) -> _OtherRow:
        regimes = (_RegimeRow(r.since, r.definition, r.paused, r.fact, r.previous) for r in state.regimes)
        definitions = (
            _DefinitionRow(number, known.since, self._position(known.timetable), known.created_at, known.anchor)
            for number, known in state.definitions.items()
        )
        return _OtherRow(job, sequence, tuple(regimes), tuple(definitions), state.watermark, state.last_fired)

    def _position(self, timetable: Timetable) -> int:
        position = self._positions.get(id(timetable))
        if position is None:
            position = self._positions[id(timetable)] = len(self._part.timetables)
            self._part.timetables.append(_TimetableRow(*_fields_of(timetable)))
            self._kept.append(timetable)
            self.size += _TIMETABLE_BYTES + len(timetable.schedule or "") + _size(timetable.days)
        return position


def _size(days: DayRules | None) -> int:
    if days is None:
        return 0
    ranges = sum(len(calendar.days) + 2 for calendar in (*days.exclude, *days.only))
    return _RANGE_BYTES * ranges + _TIMETABLE_BYTES * len(days.blackout)


def restore(part: bytes, ledgers: Ledgers, *, upto: int) -> None:
    """Put the ledgers of a part into `ledgers`.

    Raises:
        UnreadableSnapshot: the part does not have this format, or a ledger in it is newer than the sequence `upto`.
    """
    try:
        decoded = _decode(part)
        timetables = [shared(*msgspec.structs.astuple(row)) for row in decoded.timetables]
        for plain in decoded.plain:
            ledgers.put_plain(plain.job, _plain_of(plain, timetables, upto))
        for other in decoded.others:
            _check(other.sequence, upto)
            ledgers.put(other.job, _ledger_of(other, timetables), other.sequence)
    except (msgspec.MsgspecError, ValueError, IndexError, RecursionError) as error:
        raise UnreadableSnapshot(f"a part of the snapshot of the ledgers cannot be read: {error}") from error


def _plain_of(row: _PlainRow, timetables: list[Timetable], upto: int) -> Plain:
    _check(row.sequence, upto)
    last_fired = row.last_fired
    if isinstance(last_fired, bool):
        last_fired = row.watermark if last_fired else None
    return Plain(
        row.sequence,
        # One object for equal numbers: half of a million jobs have no event after their definition.
        row.sequence if row.definition == row.sequence else row.definition,
        row.previous,
        row.since,
        timetables[row.timetable],
        row.watermark,
        last_fired,
        row.created_at,
        row.anchor,
    )


def _ledger_of(row: _OtherRow, timetables: list[Timetable]) -> Ledger:
    regimes = tuple(Regime(r.since, r.definition, r.paused, r.fact, r.previous) for r in row.regimes)
    definitions = {
        d.sequence: KnownDefinition(d.since, timetables[d.timetable], None, d.created_at, anchor=d.anchor)
        for d in row.definitions
    }
    return Ledger(row.job, regimes, definitions, row.watermark, row.last_fired)


def _check(sequence: int, upto: int) -> None:
    if sequence > upto:
        raise ValueError(f"a ledger has sequence {sequence}, and the snapshot ends at {upto}")
