"""What readers ask: the newest executions and dead letters, one execution, the place in a stream."""

from collections.abc import Sequence

from sqlalchemy import ColumnElement, Connection, func, not_, select

from ...ports import DeadLetterRow, ExecutionRow
from ...subjects import Stream
from . import tables
from .rows import dead_letter_row, execution_row


def offset(connection: Connection, *, installation: str, stream: Stream) -> int:
    """The last sequence of an installation's stream that is folded in (0: none)."""
    offsets = tables.offsets
    here = (offsets.c.installation == installation, offsets.c.stream == stream.value)
    return connection.execute(select(offsets.c.sequence).where(*here)).scalar() or 0


def executions(connection: Connection, *, job: str | None, status: str | None, limit: int) -> Sequence[ExecutionRow]:
    """Executions, those of the latest scheduled time first."""
    table = tables.executions
    wanted = _equal((table.c.job_name, job), (table.c.status, status))
    newest = (table.c.scheduled_time.desc(), table.c.execution_id.desc())
    query = select(table).where(*wanted).order_by(*newest).limit(limit)
    return [execution_row(row) for row in connection.execute(query)]


def count(connection: Connection, *, job: str | None, status: str | None) -> int:
    """How many executions match."""
    table = tables.executions
    wanted = _equal((table.c.job_name, job), (table.c.status, status))
    return connection.execute(select(func.count()).select_from(table).where(*wanted)).scalar_one()


def execution(connection: Connection, *, execution_id: str) -> ExecutionRow | None:
    """One execution, if the history knows it."""
    table = tables.executions
    row = connection.execute(select(table).where(table.c.execution_id == execution_id)).one_or_none()
    return None if row is None else execution_row(row)


def dead_letters(connection: Connection, *, job: str | None, unresolved: bool, limit: int) -> Sequence[DeadLetterRow]:
    """Dead letters, those of the latest last attempt first."""
    table = tables.dead_letters
    wanted = _equal((table.c.job_name, job))
    if unresolved:
        wanted.append(not_(table.c.resolved))
    newest = (table.c.last_attempt.desc(), table.c.id.desc())
    query = select(table).where(*wanted).order_by(*newest).limit(limit)
    return [dead_letter_row(row) for row in connection.execute(query)]


def _equal(*filters: tuple[ColumnElement[str], str | None]) -> list[ColumnElement[bool]]:
    return [column == value for column, value in filters if value is not None]
