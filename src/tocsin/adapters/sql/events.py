"""The events of executions, dead letters and ledgers, as the log stored them.

An execution has one row for each transaction that recorded its events, with these events as one JSON text: most executions have one row
or two, and a long execution never has its events written again. A body goes from the commit into the row without being decoded. A ledger
has a row for each event, since its newest events and the events of a time are read.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import product
from typing import Any, Final, TypeAlias

import msgspec
from sqlalchemy import BigInteger, Connection, Select, case, delete, func, literal, select, tuple_
from sqlalchemy.dialects import postgresql, sqlite

from ... import subjects
from ...domain import ids
from ...ports import Encoded, KeptEvent, KeptEvents, KeptPart
from ...subjects import Stream
from .engine import CHUNK, Encoding, write_rows
from .tables import dead_letters, execution_events, executions, ledger_events, offsets, removed_events

MAX_ROW_EVENTS: Final = 256
"""The greatest number of events in a row."""

_EVENTS: Final = execution_events.c
_LEDGER: Final = ledger_events.c
_REMOVED: Final = removed_events.c
_TIME: Final = ("due", "passed")
"""The events of a ledger that leave; definitions stay."""
OPENINGS: Final = frozenset({"planned", "admitted", "skipped", "fanned-out"})
"""The kinds of the first event of an execution."""
MARGIN: Final = timedelta(minutes=1)
"""The time by which the time in the id of an execution may be after its first event."""
JobOfStream: TypeAlias = tuple[str, str, str]
Removal: TypeAlias = tuple[datetime, int]
"""The time (UTC) and the number up to which events were removed, or left out."""

_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(list[KeptEvent]).decode


class EventsWriter:
    """Writes the events of an installation."""

    def __init__(self, encoding: Encoding, installation: str) -> None:
        self._encoding = encoding
        self._installation = installation
        columns = ("execution_id", "installation", "job_name", "time", "number", "events")
        self._execution = encoding.into(execution_events, columns)
        columns = ("job_name", "event", "number", "installation", "time", "body")
        self._ledger = encoding.into(ledger_events, columns)

    def write_executions(
        self, connection: Connection, encoded: Sequence[Encoded], only: Collection[str] | None = None
    ) -> None:
        """Write the events of dead letters, and of executions in `only` (None: of all)."""
        if not encoded:
            return
        events = defaultdict[tuple[str, str], list[tuple[Any, ...]]](list)
        left_out = dict[JobOfStream, Removal]()
        for event in encoded:
            kind, job, id_, _ = event.subject.split(".", 3)
            if only is not None and id_ not in only and kind == "execution":
                left_out[subjects.name(job), self._installation, Stream.LOG.value] = event.time, event.sequence
            else:
                events[id_, job].append((event.sequence, event.subject, event.time, msgspec.Raw(event.body)))
        # All rows have the time of the newest event, so that their order is that of the transactions.
        time = self._encoding.time(encoded[-1].time)
        names = {job: subjects.name(job) for job in {job for _, job in events}}
        rows = [
            # SQLite's driver looks for an adapter of `bytes`.
            (id_, self._installation, names[job], time, part[-1][0], bytearray(_encode(part)))
            for (id_, job), of_id in events.items()
            for part in (of_id[start : start + MAX_ROW_EVENTS] for start in range(0, len(of_id), MAX_ROW_EVENTS))
        ]
        write_rows(connection, self._execution, rows)
        _note_removed(connection, left_out)

    def write_ledgers(self, connection: Connection, encoded: Sequence[Encoded]) -> None:
        installation, time = self._installation, self._encoding.time
        rows = []
        for event in encoded:
            _, job, kind = event.subject.split(".", 2)
            row = subjects.name(job), kind, event.sequence, installation, time(event.time), bytes(event.body)
            rows.append(row)
        write_rows(connection, self._ledger, rows)


def events(
    connection: Connection,
    part: KeptPart,
    *,
    installation: str,
    after: int = 0,
    since: datetime | None = None,
    limit: int | None = None,
) -> KeptEvents:
    """Return events of a part (see `EventHistory.events`)."""
    upto = offset(connection, installation=installation, stream=part.stream)
    removed = _removed(connection, installation, part)
    if part.stream is Stream.LEDGER:
        found = _ledger(connection, part, installation, after, since, limit)
        return KeptEvents(found, _upto(found, upto), _is_later(removed, after, since))
    found = _executions(connection, part, installation, after, since, limit)
    is_whole = _is_later(removed, after, since)
    if part.id is not None:
        row = connection.execute(_of_part(part, installation).limit(1)).first()
        is_whole = _has_all(part.id, None if row is None else _decode(row.events)[0], removed)
    return KeptEvents(found, _upto(found, upto), is_whole)


def newest(connection: Connection, part: KeptPart, *, installation: str) -> KeptEvents:
    """Return the newest event of each subject (see `EventHistory.newest`)."""
    if part.stream is not Stream.LEDGER:
        kept = events(connection, part, installation=installation)
        by_subject = {event.subject: event for event in kept.events}
        return kept._replace(events=sorted(by_subject.values(), key=_sequence))
    upto = offset(connection, installation=installation, stream=part.stream)
    found = sorted(_newest_of_ledger(connection, part, installation), key=_sequence)
    is_whole = _removed(connection, installation, part._replace(filters=("ledger.*.defined",))) is None
    return KeptEvents(found, _upto(found, upto), is_whole)


def forget_executions(connection: Connection, ids: Collection[str]) -> None:
    """Delete the events of executions and dead letters that have no row any more."""
    ids = sorted(ids)
    for column in (executions.c.execution_id, dead_letters.c.letter_id):
        kept = set(connection.execute(select(column).where(column.in_(ids))).scalars())
        ids = [id_ for id_ in ids if id_ not in kept]
    gone = _EVENTS.execution_id.in_(ids)
    of_job = _EVENTS.job_name, _EVENTS.installation
    newest = select(*of_job, func.max(_EVENTS.time), func.max(_EVENTS.number)).where(gone).group_by(*of_job)
    removed = {(job, log, Stream.LOG.value): (time, number) for job, log, time, number in connection.execute(newest)}
    _note_removed(connection, removed)
    connection.execute(delete(execution_events).where(gone))


def forget_times(connection: Connection, jobs: Iterable[str], before: datetime) -> None:
    """Delete decisions on the time of some jobs before a time, except the newest."""
    installations = set(connection.execute(select(offsets.c.installation)).scalars())
    removed = dict[JobOfStream, Removal]()
    for job, installation, kind in product(sorted(jobs), sorted(installations), _TIME):
        of_kind = _LEDGER.job_name == job, _LEDGER.event == kind, _LEDGER.installation == installation
        newest_first = select(_LEDGER.number).where(*of_kind).order_by(_LEDGER.number.desc())
        old = _LEDGER.time < before, _LEDGER.number < newest_first.limit(1).scalar_subquery()
        if (number := connection.execute(newest_first.where(*old).limit(1)).scalar()) is not None:
            connection.execute(delete(ledger_events).where(*of_kind, *old))
            _, other = removed.get((job, installation, Stream.LEDGER.value), (before, 0))
            removed[job, installation, Stream.LEDGER.value] = before, max(number, other)
    _note_removed(connection, removed)


def _note_removed(connection: Connection, removed: Mapping[JobOfStream, Removal]) -> None:
    """Note the times and numbers up to which events are not kept."""
    if not removed:
        return
    insert = (sqlite if connection.dialect.name == "sqlite" else postgresql).insert(removed_events)
    later = {
        name: case((insert.excluded[name] > _REMOVED[name], insert.excluded[name]), else_=_REMOVED[name])
        for name in ("upto", "number")
    }
    key = _REMOVED.job_name, _REMOVED.installation, _REMOVED.stream
    rows = [
        {"job_name": job, "installation": installation, "stream": stream, "upto": time, "number": number}
        for (job, installation, stream), (time, number) in removed.items()
    ]
    connection.execute(insert.on_conflict_do_update(index_elements=key, set_=later), rows)


def _removed(connection: Connection, installation: str, part: KeptPart) -> Removal | None:
    """Return the time and number up to which a part may lack events; None: none."""
    upto = select(func.max(_REMOVED.upto), func.max(_REMOVED.number)).where(_REMOVED.installation == installation)
    if part.job is not None:
        if part.kind == "ledger" and not (_kinds(part) or {*_TIME}) & {*_TIME}:
            return None
        upto = upto.where(_REMOVED.job_name == subjects.name(part.job))
    time, number = connection.execute(upto.where(_REMOVED.stream == part.stream.value)).one()
    return None if time is None else (time, number)


def _is_later(removed: Removal | None, after: int, since: datetime | None) -> bool:
    return removed is None or after >= removed[1] or (since is not None and since > removed[0])


def _has_all(id_: str, first: KeptEvent | None, removed: Removal | None) -> bool:
    """Return whether all events of an execution and its dead letter are kept.

    `first`: the first event that is kept; None: no event is kept.
    """
    if first is not None:
        kind, _, _, event, *_ = first.subject.split(".")
        return kind == "dead-letter" or event in OPENINGS
    at = ids.time_of(id_)
    return removed is None or (at is not None and at != ids.KEYED and at - MARGIN > removed[0])


def offset(connection: Connection, *, installation: str, stream: Stream) -> int:
    """Return the last recorded sequence of an installation's stream, or 0."""
    where = offsets.c.installation == installation, offsets.c.stream == stream.value
    return connection.execute(select(offsets.c.sequence).where(*where)).scalar() or 0


def _upto(found: Sequence[KeptEvent], upto: int) -> int:
    """Return the place of the transaction that stored the last event: `upto` was read before."""
    return max(upto, found[-1].sequence) if found else upto


def _of_part(part: KeptPart, installation: str) -> Select[Any]:
    """Return the rows of an execution or a whole job, in the order of transactions."""
    conditions = [_EVENTS.installation == installation]
    if part.id is not None:
        conditions.append(_EVENTS.execution_id == part.id)
    if part.job is not None:
        conditions.append(_EVENTS.job_name == subjects.name(part.job))
    return (
        select(_EVENTS.time, _EVENTS.number, _EVENTS.events).where(*conditions).order_by(_EVENTS.time, _EVENTS.number)
    )


def _rows(connection: Connection, statement: Select[Any]) -> Iterator[Any]:
    """Yield rows in portions: a driver may read all rows before the first."""
    rows = connection.execute(statement.limit(CHUNK)).all()
    while rows:
        yield from rows
        place = tuple_(literal(rows[-1].time, _EVENTS.time.type), literal(rows[-1].number, BigInteger))
        following = statement.where(tuple_(_EVENTS.time, _EVENTS.number) > place).limit(CHUNK)
        rows = connection.execute(following).all() if len(rows) == CHUNK else []


def _executions(
    connection: Connection,
    part: KeptPart,
    installation: str,
    after: int,
    since: datetime | None,
    limit: int | None,
) -> list[KeptEvent]:
    statement = _of_part(part, installation).where(_EVENTS.number > after)
    if since is not None:
        statement = statement.where(_EVENTS.time >= since)
    takes, found, time = subjects.any_of(part.filters), list[KeptEvent](), None
    for row in _rows(connection, statement):
        if limit is not None and len(found) >= limit and row.time != time:
            break  # rows of one time may be those of one transaction, whose events alternate
        time = row.time
        for event in _decode(row.events):
            if event.sequence > after and (since is None or event.time >= since) and takes(event.subject):
                found.append(event)
    found.sort(key=_sequence)
    return found


def _ledger(
    connection: Connection,
    part: KeptPart,
    installation: str,
    after: int,
    since: datetime | None,
    limit: int | None,
) -> list[KeptEvent]:
    statement = _of_ledger(part, installation).where(_LEDGER.number > after)
    if since is not None:
        statement = statement.where(_LEDGER.time >= since)
    if (kinds := _kinds(part)) is not None:
        statement = statement.where(_LEDGER.event.in_(kinds))
    rows = connection.execute(statement.order_by(_LEDGER.number).limit(limit))
    return [_ledger_event(part, row) for row in rows]


def _newest_of_ledger(connection: Connection, part: KeptPart, installation: str) -> Iterator[KeptEvent]:
    kinds = _kinds(part)
    statement = _of_ledger(part, installation)
    kind = ""
    while True:
        following = select(_LEDGER.event).where(_LEDGER.job_name == subjects.name(part.job or ""), _LEDGER.event > kind)
        kind = connection.execute(following.order_by(_LEDGER.event).limit(1)).scalar() or ""
        if not kind:
            return
        if kinds is None or kind in kinds:
            of_kind = statement.where(_LEDGER.event == kind).order_by(_LEDGER.number.desc()).limit(1)
            yield from (_ledger_event(part, row) for row in connection.execute(of_kind))


def _of_ledger(part: KeptPart, installation: str) -> Select[Any]:
    of_job = _LEDGER.job_name == subjects.name(part.job or ""), _LEDGER.installation == installation
    return select(_LEDGER.event, _LEDGER.number, _LEDGER.time, _LEDGER.body).where(*of_job)


def _kinds(part: KeptPart) -> frozenset[str] | None:
    """Return the kinds of events that the filters of a ledger name; None: all."""
    if part.kind != "ledger":
        return None
    kinds = frozenset(filter_.split(".", 2)[2] for filter_ in part.filters)
    return None if kinds & {">", "*"} else kinds


def _ledger_event(part: KeptPart, row: Any) -> KeptEvent:  # noqa: ANN401 - a row
    return KeptEvent(row.number, f"ledger.{part.job}.{row.event}", row.time, msgspec.Raw(row.body))


def _sequence(event: KeptEvent) -> int:
    return event.sequence
