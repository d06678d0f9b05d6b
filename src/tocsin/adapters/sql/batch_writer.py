"""Recording of a batch of facts in one SQL transaction.

First the offset, then the changed rows. The offset is moved by compare-and-set, so the transaction that moves it owns
the batch. A second recorder waits there for the first, and then finds the offset moved. The recorder that moved the
offset last knows the rows of open executions without reading them, because no other recorder wrote any since. It drops
this cache with the first transaction that fails.

Of a row, only the columns that change are written: most indexes do not contain these.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import compress
from operator import ne
from typing import Any, TypeAlias

from sqlalchemy import Connection, select, update

from ...domain import dead_letter, history, job_record, totals
from ...domain.dead_letter import Letter, LetterName
from ...domain.events import Message, Recorded
from ...domain.execution_counts import count_changes
from ...domain.execution_record import ExecutionRecord, last_runs
from ...ports import Encoded
from ...subjects import Stream
from ..history.rows import LetterKeys, RecorderCache, offset_conflict
from . import rows
from .counts import CountsWriter
from .engine import Encoding, read_rows, write_rows
from .events import EventsWriter
from .tables import dead_letters, execution_tags, executions, jobs, offsets
from .tables import last_runs as last_runs_table
from .totals import TotalsWriter

Mask: TypeAlias = tuple[bool, ...]
"""Whether a row is new, and which of `rows.EXECUTION` are written."""


class BatchWriter:
    """Recorder of an installation's streams, with one batch of each stream at a time."""

    def __init__(self, installation: str, dialect: str) -> None:
        self._installation = installation
        self._encoding = Encoding(dialect)
        self.cache = RecorderCache()
        encoding = self._encoding
        place = "installation", "stream"
        # Use the returned row: not every driver counts the rows of an insert.
        self._step = f"{encoding.update(offsets, ('sequence',), *place, 'sequence')} RETURNING sequence"
        self._first = f"{encoding.insert(offsets, (*place, 'sequence'))} RETURNING sequence"
        self._plans = dict[Mask, tuple[str, Sequence[tuple[int, Callable[[Any], object] | None]]]]()
        self._tag = encoding.insert(execution_tags, rows.TAG)
        self._letter = encoding.upsert(dead_letters, rows.DEAD_LETTER, "letter_id")
        self._job = encoding.upsert(jobs, rows.JOB, "job_name")
        self._job_in_time = encoding.upsert(jobs, rows.JOB_IN_TIME, "job_name")
        self._job_time = encoding.update(jobs, rows.JOB_TIME, "job_name")
        self._last_run = encoding.upsert(last_runs_table, rows.LAST_RUN, "job_name")
        self._totals = TotalsWriter(encoding)
        self._counts = CountsWriter(encoding)
        self._events = EventsWriter(encoding, installation)

    def record(
        self,
        connection: Connection,
        stream: Stream,
        messages: Sequence[Recorded[Message]],
        *,
        after: int,
        upto: int,
        opens: bool = True,
        encoded: Sequence[Encoded] = (),
        reads_all: bool = False,
    ) -> None:
        """Fold messages into the rows, and move the offset from `after` to `upto` (see `ports.History`).

        Without `reads_all`, expect no rows of executions that begin with these messages.

        Raises:
            IntegrityError: an execution that was expected to be new has a row; call it again with `reads_all`.
            SequenceConflict: the offset is different; the transaction must not be committed.
        """
        self._move(connection, stream, after, upto)
        self.cache.begin(stream, after)
        if stream is Stream.LEDGER:
            self._record_jobs(connection, messages)
            self._events.write_ledgers(connection, encoded)
        else:
            changed = self._record_executions(connection, messages, opens=opens, reads_all=reads_all)
            self._events.write_executions(connection, encoded, None if opens else changed)

    def _record_executions(
        self, connection: Connection, messages: Sequence[Recorded[Message]], *, opens: bool, reads_all: bool
    ) -> Collection[str]:
        """Record executions, and return their ids."""
        begins = history.executions_of(messages)
        known, missing = self.cache.executions.recall(begins)
        # Without `opens`, nothing would be inserted, and so no conflict would show a row that was expected wrongly.
        stored = (name for name in missing if reads_all or not opens or not begins[name])
        for row in read_rows(connection, select(executions), executions.c.execution_id, stored):
            known[row.execution_id] = rows.execution_record(row)
        changed = history.fold(known, messages, opens=opens)
        self._write_executions(connection, known, changed)
        encoding = self._encoding
        tagged = (
            new for name, new in changed.items() if new.tags and (name not in known or known[name].tags != new.tags)
        )
        write_rows(connection, self._tag, [tag for record in tagged for tag in rows.tag_values(record, encoding)])
        self._counts.change(connection, count_changes(known, changed.values()))
        letters = dead_letter.dead_letters(messages)
        self._record_letters(connection, letters, dead_letter.resolved(messages))
        ended = last_runs(known, changed.values())
        write_rows(connection, self._last_run, [rows.last_run_values(*run, encoding) for run in sorted(ended.items())])
        self._totals.add(connection, totals.growth_of_log(known, changed, messages, letters.values()), self.cache)
        self.cache.executions.keep(changed)
        return changed

    def _write_executions(
        self, connection: Connection, known: Mapping[str, ExecutionRecord], changed: Mapping[str, ExecutionRecord]
    ) -> None:
        """Write rows in the order of their ids, because neighbouring rows are faster to write."""
        parts = defaultdict[Mask, list[rows.Values]](list)
        for name in sorted(changed):
            values, before = rows.execution_values(changed[name]), known.get(name)
            stored = rows.NEW_EXECUTION if before is None else rows.execution_values(before)
            parts[before is None, *map(ne, values, stored)].append(values)
        parts.pop((False,) * (1 + len(rows.EXECUTION)), None)  # nothing changes
        for mask, part in parts.items():
            if mask not in self._plans:
                self._plans[mask] = self._plan(mask)
            statement, columns = self._plans[mask]
            of_part = [tuple([encode(row[at]) if encode else row[at] for at, encode in columns]) for row in part]
            write_rows(connection, statement, of_part)

    def _plan(self, mask: Mask) -> tuple[str, Sequence[tuple[int, Callable[[Any], object] | None]]]:
        """Return a statement, and the place and the encoder of each of its values."""
        is_new, *is_written = mask
        places = [place for place in compress(range(len(rows.EXECUTION)), is_written) if place != rows.RECOVERIES]
        names, encoders = [rows.EXECUTION[place] for place in places], rows.execution_encoders(self._encoding)
        columns = [(place, encoders.get(name)) for place, name in zip(places, names, strict=True)]
        if is_new:
            return self._encoding.into(executions, (*names, "id")), [*columns, (rows.ID, rows.uuid_of)]
        return self._encoding.update(executions, names, "execution_id"), [*columns, (rows.ID, None)]

    def _record_letters(
        self, connection: Connection, letters: Mapping[LetterName, Letter], resolved: Collection[LetterName]
    ) -> None:
        if not letters and not resolved:
            return
        letter, candidates = dead_letters.c, LetterKeys.candidates({*letters, *resolved})
        stored = read_rows(connection, select(letter.letter_id, letter.job_name), letter.letter_id, candidates)
        keys = LetterKeys({row.letter_id: row.job_name for row in stored})
        values = [rows.dead_letter_values(letter, keys.of(*name), self._encoding) for name, letter in letters.items()]
        write_rows(connection, self._letter, values)
        for job, letter_id in sorted(resolved):
            conditions = letter.letter_id == keys.of(job, letter_id), letter.job_name == job
            connection.execute(update(dead_letters).where(*conditions).values(resolved=True))

    def _record_jobs(self, connection: Connection, messages: Sequence[Recorded[Message]]) -> None:
        known, missing = self.cache.jobs.recall(job_record.jobs_of(messages))
        for row in read_rows(connection, select(jobs), jobs.c.job_name, missing):
            known[row.job_name] = rows.job_record(row)
        changed = job_record.fold(known, messages)
        encoding = self._encoding
        complete_rows, in_time, time = list[rows.Values](), list[rows.Values](), list[rows.Values]()
        for name, record in changed.items():
            before = known.get(name)
            if record.definition is not None:
                complete_rows.append(rows.job_values(record, record.definition, encoding))
            elif before is None or before.regime != record.regime:
                in_time.append(rows.job_in_time_values(record, encoding))
            else:
                time.append(rows.job_time_values(record, encoding))
        write_rows(connection, self._job, complete_rows)
        write_rows(connection, self._job_in_time, in_time)
        write_rows(connection, self._job_time, time)
        self._counts.record_passed(connection, messages)
        self._totals.add(connection, totals.growth_of_ledger(messages), self.cache)
        self.cache.jobs.keep({name: record.without_definition() for name, record in changed.items()})

    def _move(self, connection: Connection, stream: Stream, after: int, upto: int) -> None:
        place = self._installation, stream.value
        moved = connection.exec_driver_sql(self._step, (upto, *place, after)).first()
        if moved is None and not after:
            moved = connection.exec_driver_sql(self._first, (*place, upto)).first()
        if moved is None:
            raise offset_conflict(stream, after)
