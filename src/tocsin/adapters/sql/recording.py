"""One batch of facts, in one transaction: the place in the stream first, then one row for each thing that changed.

The place is moved by compare-and-set, so whoever moves it owns the batch; a second recorder waits there for the first one
and then finds the place moved. Whoever moved it the last time, too, knows the rows of what is still going on without
reading them: nobody else has written any since. What it remembers is dropped with the first transaction that fails.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Final, Generic, TypeVar

from sqlalchemy import Column, Connection, Table, select, update
from sqlalchemy.dialects import postgresql, sqlite

from ...domain import history, job_record
from ...domain.events import ExecutionFact, LedgerFact, Message, Recorded
from ...domain.history import ExecutionRecord
from ...domain.job_record import JobRecord
from ...ports import SequenceConflict
from ...subjects import Stream
from . import rows
from .encoding import Encoding
from .tables import dead_letters, execution_tags, executions, jobs, offsets

CHUNK: Final = 500
"""Rows asked for at once; databases limit the parameters of a statement."""

OPEN_EXECUTIONS: Final = 20_000
JOBS: Final = 100_000
"""How many records of what is still going on are kept in memory."""

R = TypeVar("R", ExecutionRecord, JobRecord)


@dataclass(slots=True)
class _Memory(Generic[R]):
    """The records as they are stored, for as long as nobody else stores any."""

    table: Table
    key: Column[Any]
    read: Callable[[rows.Row], R]
    capacity: int
    records: OrderedDict[str, R] = field(default_factory=OrderedDict)

    def known(self, connection: Connection, names: Iterable[str]) -> dict[str, R]:
        """Those of some names, as far as there are any."""
        found, missing = dict[str, R](), list[str]()
        for name in names:
            if (record := self.records.get(name)) is None:
                missing.append(name)
            else:
                found[name] = record
        for chunk in _chunks(missing):
            for row in connection.execute(select(self.table).where(self.key.in_(chunk))):
                record = self.read(row)
                found[getattr(row, self.key.name)] = record
        return found

    def keep(self, records: Mapping[str, R], *, is_over: Callable[[R], bool]) -> None:
        """Remember what has just been stored, unless it is over."""
        for name, record in records.items():
            if is_over(record):
                self.records.pop(name, None)
            else:
                self.records[name] = record
                self.records.move_to_end(name)
        while len(self.records) > self.capacity:
            self.records.popitem(last=False)


class Recording:
    """Records the streams of one installation, one batch of each at a time."""

    def __init__(self, installation: str, dialect: str) -> None:
        self._installation = installation
        self._encoding = Encoding(dialect)
        self._places: dict[Stream, int] = {}
        self._executions = _Memory(executions, executions.c.execution_id, rows.execution_record, OPEN_EXECUTIONS)
        self._jobs = _Memory(jobs, jobs.c.job_name, rows.job_record, JOBS)
        encoding = self._encoding
        self._execution = encoding.upsert(executions, rows.EXECUTION, "execution_id")
        self._tag = encoding.insert(execution_tags, rows.TAG)
        self._letter = encoding.upsert(dead_letters, rows.DEAD_LETTER, "letter_id")
        self._job = encoding.upsert(jobs, rows.JOB, "job_name")
        self._job_in_time = encoding.upsert(jobs, rows.JOB_IN_TIME, "job_name")

    def record(
        self, connection: Connection, *, stream: Stream, messages: Sequence[Recorded[Message]], after: int, upto: int
    ) -> None:
        """Fold messages into the rows and move the place in the stream from `after` to `upto`.

        Raises:
            SequenceConflict: the place is elsewhere; nothing is to be committed.
        """
        self._move(connection, stream, after, upto)
        if self._places.pop(stream, None) != after:
            self.forget(stream)
        if stream is Stream.LEDGER:
            self._record_jobs(connection, messages)
        else:
            self._record_executions(connection, messages)

    def committed(self, stream: Stream, upto: int) -> None:
        """What was recorded is stored: what is remembered of it holds for whoever goes on from there."""
        self._places[stream] = upto

    def forget(self, stream: Stream) -> None:
        """Remember nothing of a stream."""
        self._places.pop(stream, None)
        (self._jobs if stream is Stream.LEDGER else self._executions).records.clear()

    def _record_executions(self, connection: Connection, messages: Sequence[Recorded[Message]]) -> None:
        names = {one.message.execution_id for one in messages if isinstance(one.message, ExecutionFact)}
        known = self._executions.known(connection, names)
        changed = history.fold(known, messages)
        encoding = self._encoding
        self._write(connection, self._execution, [rows.execution_values(one, encoding) for one in changed.values()])
        self._write(connection, self._tag, list(self._tags(known, changed)))
        letters = history.dead_letters(messages).values()
        self._write(connection, self._letter, [rows.dead_letter_values(one, encoding) for one in letters])
        if resolved := history.resolved(messages):
            connection.execute(update(dead_letters).where(dead_letters.c.letter_id.in_(resolved)).values(resolved=True))
        self._executions.keep(changed, is_over=lambda record: record.completed_at is not None)

    def _tags(
        self, known: Mapping[str, ExecutionRecord], changed: Mapping[str, ExecutionRecord]
    ) -> Iterator[rows.Values]:
        for name, record in changed.items():
            before = known.get(name)
            if record.tags and (before is None or before.tags != record.tags):
                yield from rows.tag_values(record, self._encoding)

    def _record_jobs(self, connection: Connection, messages: Sequence[Recorded[Message]]) -> None:
        names = {one.message.job for one in messages if isinstance(one.message, LedgerFact)}
        changed = job_record.fold(self._jobs.known(connection, names), messages)
        encoding = self._encoding
        whole = [rows.job_values(one, one.definition, encoding) for one in changed.values() if one.definition]
        in_time = [rows.job_in_time_values(one, encoding) for one in changed.values() if not one.definition]
        self._write(connection, self._job, whole)
        self._write(connection, self._job_in_time, in_time)
        light = {name: replace(one, definition=None) for name, one in changed.items()}
        self._jobs.keep(light, is_over=lambda record: record.deleted)

    def _move(self, connection: Connection, stream: Stream, after: int, upto: int) -> None:
        # What is returned tells, not the count of rows, which not every driver gives for an insert.
        where = {"installation": self._installation, "stream": stream.value}
        here = (offsets.c.installation == self._installation, offsets.c.stream == stream.value)
        step = update(offsets).where(*here, offsets.c.sequence == after).values(sequence=upto)
        is_moved = connection.execute(step.returning(offsets.c.sequence)).first() is not None
        if not is_moved and not after:
            insert = (sqlite if self._encoding.is_file else postgresql).insert(offsets).values(**where, sequence=upto)
            first = insert.on_conflict_do_nothing(index_elements=[*where]).returning(offsets.c.sequence)
            is_moved = connection.execute(first).first() is not None
        if not is_moved:
            raise SequenceConflict(f"the history's place in {stream.value} is not {after} any more")

    def _write(self, connection: Connection, statement: str, values: list[rows.Values]) -> None:
        if values:
            connection.exec_driver_sql(statement, values)


def _chunks(names: Iterable[str]) -> Iterator[list[str]]:
    rest = iter(names)
    while chunk := list(islice(rest, CHUNK)):
        yield chunk
