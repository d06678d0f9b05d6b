"""One batch of facts, in one transaction: the place in the stream first, then one row for each execution that changed.

The place is moved by compare-and-set, so whoever moves it owns the batch; a second recorder waits there for the first one
and then finds the place moved. On SQLite it is the first statement for one more reason: a transaction that begins with a
write never fails half-way because another one wrote in between.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import islice
from typing import Final

from sqlalchemy import Connection, Table, select, update
from sqlalchemy.dialects import postgresql, sqlite

from ...domain import history
from ...domain.events import ExecutionFact, Message, Recorded
from ...domain.history import ExecutionRecord
from ...ports import SequenceConflict
from ...subjects import Stream
from .rows import dead_letter_values, execution_record, execution_values
from .tables import dead_letters, executions, offsets

CHUNK: Final = 500
"""Executions asked for at once; databases limit the parameters of a statement."""

_KEYS: Final = {executions: "execution_id", dead_letters: "id"}


def record(
    connection: Connection,
    *,
    installation: str,
    stream: Stream,
    messages: Sequence[Recorded[Message]],
    after: int,
    upto: int,
) -> None:
    """Fold messages into the rows and move the place in an installation's stream from `after` to `upto`.

    Raises:
        SequenceConflict: the place is elsewhere; nothing is to be committed.
    """
    _move(connection, installation, stream, after, upto)
    touched = {recorded.message.execution_id for recorded in messages if isinstance(recorded.message, ExecutionFact)}
    changed = history.fold(_known(connection, touched), messages)
    _write(connection, executions, [execution_values(execution) for execution in changed.values()])
    _write(connection, dead_letters, [dead_letter_values(letter) for letter in history.dead_letters(messages).values()])
    if resolved := history.resolved(messages):
        connection.execute(update(dead_letters).where(dead_letters.c.id.in_(resolved)).values(resolved=True))


def _move(connection: Connection, installation: str, stream: Stream, after: int, upto: int) -> None:
    # What is returned tells, not the count of rows, which not every driver gives for an insert.
    where = {"installation": installation, "stream": stream.value}
    here = (offsets.c.installation == installation, offsets.c.stream == stream.value)
    step = update(offsets).where(*here, offsets.c.sequence == after).values(sequence=upto).returning(offsets.c.sequence)
    is_moved = connection.execute(step).first() is not None
    if not is_moved and not after:
        insert = _insert(connection.dialect.name, offsets).values(**where, sequence=upto)
        first = insert.on_conflict_do_nothing(index_elements=[*where]).returning(offsets.c.sequence)
        is_moved = connection.execute(first).first() is not None
    if not is_moved:
        raise SequenceConflict(f"the history's place in {stream.value} is not {after} any more")


def _known(connection: Connection, execution_ids: Iterable[str]) -> dict[str, ExecutionRecord]:
    known: dict[str, ExecutionRecord] = {}
    rest = iter(execution_ids)
    while chunk := list(islice(rest, CHUNK)):
        for row in connection.execute(select(executions).where(executions.c.execution_id.in_(chunk))):
            known[row.execution_id] = execution_record(row)
    return known


def _write(connection: Connection, table: Table, rows: list[dict[str, object]]) -> None:
    if rows:
        connection.execute(_upsert(connection.dialect.name, table, tuple(rows[0])), rows)


@lru_cache
def _upsert(dialect: str, table: Table, columns: tuple[str, ...]) -> sqlite.Insert | postgresql.Insert:
    """Insert rows of these columns; where the row is there already, set all of them but its keys."""
    insert, key = _insert(dialect, table), _KEYS[table]
    changing = {name: insert.excluded[name] for name in columns if name not in {"id", key}}
    return insert.on_conflict_do_update(index_elements=[key], set_=changing)


def _insert(dialect: str, table: Table) -> sqlite.Insert | postgresql.Insert:
    return postgresql.insert(table) if dialect == "postgresql" else sqlite.insert(table)
