"""Counts, passed spans and durations of a job in a SQL database.

A per-second job has 2.6 million executions in a month. To count them by time takes SQLite seconds, even in an index that
has all columns, so the recorder keeps the ended executions counted.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    and_,
    bindparam,
    case,
    cast,
    delete,
    extract,
    func,
    or_,
    select,
)

from ...domain.events import MISSED_REASONS, Message, Passed, Recorded
from ...domain.execution_counts import (
    ANNOUNCED,
    ANNOUNCEMENTS,
    NO_DEFINITION,
    PERIOD,
    CountKey,
    period_of,
)
from ...ports import Duration, ExecutionCount, PassedSpan
from ...ports.queries import CountQuery
from . import tables
from .engine import Encoding, write_rows

_COUNTS: Final = tables.execution_counts.c
_EXECUTIONS: Final = tables.executions.c
_PASSED: Final = tables.passed.c
_KEY: Final = ("job_name", "period", "definition", "trigger", "status")
_SPAN: Final = ("job_name", "until_time", "start_time", "reason", "total", "definition")
_SECOND: Final = timedelta(seconds=1)


class CountsWriter:
    """Writes counts and passed spans in the transaction of a batch."""

    def __init__(self, encoding: Encoding) -> None:
        self._encoding = encoding
        place = "?" if encoding.is_file else "%s"
        same = " AND ".join(f'"{name}" = {place}' for name in _KEY)
        table = tables.execution_counts.name
        self._add = encoding.add(tables.execution_counts, _KEY)
        self._take = f"UPDATE {table} SET total = total - {place} WHERE {same}"  # noqa: S608 - our own names
        self._remove = f"DELETE FROM {table} WHERE {same} AND total <= 0"  # noqa: S608
        self._passed = encoding.insert(tables.passed, _SPAN)

    def change(self, connection: Connection, changes: Mapping[CountKey, int]) -> None:
        """Change counts; a count of nothing is removed."""
        # In one order, so that no two transactions wait for each other.
        more = [(*key, change) for key, change in sorted(changes.items()) if change > 0]
        less = [(-change, *key) for key, change in sorted(changes.items()) if change < 0]
        write_rows(connection, self._add, more)
        write_rows(connection, self._take, less)
        write_rows(connection, self._remove, [tuple(key) for _, *key in less])

    def record_passed(self, connection: Connection, messages: Sequence[Recorded[Message]]) -> None:
        """Record spans of missed and superseded instants."""
        time = self._encoding.time
        spans = sorted(
            (fact.job, time(fact.until), time(fact.start), fact.reason, fact.count, fact.definition)
            for recorded in messages
            if isinstance(fact := recorded.message, Passed) and fact.reason in MISSED_REASONS and fact.count
        )
        write_rows(connection, self._passed, spans)


def counts(connection: Connection, query: CountQuery) -> Sequence[ExecutionCount]:
    """Count the executions of a job in spans of time."""
    if not query.is_wide:
        return _counted_rows(connection, query)
    periods = query.width // PERIOD
    span = (_COUNTS.period // periods).label("span")
    kept = (
        select(span, _COUNTS.definition, _COUNTS.trigger, _COUNTS.status, func.sum(_COUNTS.total))
        .where(
            _COUNTS.job_name == query.job,
            _COUNTS.period >= period_of(query.since),
            _COUNTS.period < period_of(query.until),
        )
        .group_by(span, _COUNTS.definition, _COUNTS.trigger, _COUNTS.status)
    )
    ended = [_count(row, query.width) for row in connection.execute(kept)]
    return [*ended, *_counted_rows(connection, query, _EXECUTIONS.completed_at.is_(None))]


def _counted_rows(
    connection: Connection, query: CountQuery, *conditions: ColumnElement[bool]
) -> Sequence[ExecutionCount]:
    time = _EXECUTIONS.scheduled_time
    is_file = connection.dialect.name == "sqlite"
    seconds = cast(func.strftime("%s", time) if is_file else func.floor(extract("epoch", time)), BigInteger)
    span = (seconds // int(query.width // _SECOND)).label("span")
    is_announced = and_(_EXECUTIONS.status == "skipped", _EXECUTIONS.reason.in_(sorted(ANNOUNCEMENTS)))
    status = case((is_announced, ANNOUNCED), else_=_EXECUTIONS.status).label("status")
    key = (span, _EXECUTIONS.definition, _EXECUTIONS.trigger, status)
    # PostgreSQL takes parameters of SELECT and GROUP BY for different values, so the groups are those of a subquery.
    inner = (
        select(*key)
        .where(_EXECUTIONS.job_name == query.job, time >= query.since, time < query.until, *conditions)
        .subquery()
    )
    statement = select(*inner.c, func.count()).group_by(*inner.c)
    return [_count(row, query.width) for row in connection.execute(statement)]


def _count(row: Sequence[Any], width: timedelta) -> ExecutionCount:
    span, definition, trigger, status, total = row
    start = datetime(1970, 1, 1, tzinfo=UTC) + span * width
    return ExecutionCount(start, None if definition == NO_DEFINITION else definition, trigger, status, int(total))


def passed(connection: Connection, job: str, since: datetime, until: datetime, *, limit: int) -> Sequence[PassedSpan]:
    """Return the spans of a job that overlap [since, until), oldest first."""
    statement = (
        select(_PASSED.start_time, _PASSED.until_time, _PASSED.reason, _PASSED.total, _PASSED.definition)
        .where(_PASSED.job_name == job, _PASSED.until_time >= since, _PASSED.start_time < until)
        .order_by(_PASSED.until_time, _PASSED.start_time, _PASSED.reason)
        .limit(limit)
    )
    return [PassedSpan(*row) for row in connection.execute(statement)]


def durations(
    connection: Connection, job: str, spans: Sequence[tuple[datetime, datetime]], *, limit: int
) -> Sequence[Sequence[Duration]]:
    """Return the durations of the first executions of each span."""
    time = _EXECUTIONS.scheduled_time
    statement = (
        select(_EXECUTIONS.definition, _EXECUTIONS.duration_ms)
        .where(
            _EXECUTIONS.job_name == bindparam("job"),
            time >= bindparam("start", type_=time.type),
            time < bindparam("end", type_=time.type),
            _EXECUTIONS.duration_ms.is_not(None),
        )
        .order_by(time, _EXECUTIONS.execution_id)
        .limit(limit)
    )
    return [
        [Duration(*row) for row in connection.execute(statement, {"job": job, "start": start, "end": end})]
        for start, end in spans
    ]


COUNTED: Final = (
    *(_EXECUTIONS.job_name.label("job"), _EXECUTIONS.scheduled_time, _EXECUTIONS.completed_at),
    *(_EXECUTIONS.definition, _EXECUTIONS.trigger, _EXECUTIONS.status, _EXECUTIONS.reason),
)
"""The columns that decide where an ended execution is counted."""


def expire_passed(connection: Connection, before: datetime, *conditions: ColumnElement[bool], limit: int) -> int:
    """Remove some spans that ended before a time; return their number."""
    key = (_PASSED.job_name, _PASSED.until_time, _PASSED.start_time, _PASSED.reason)
    old = connection.execute(select(*key).where(_PASSED.until_time < before, *conditions).limit(limit)).all()
    rest = iter(old)
    while chunk := list(islice(rest, 100)):
        same = or_(*(and_(*(column == value for column, value in zip(key, row, strict=True))) for row in chunk))
        connection.execute(delete(tables.passed).where(same))
    return len(old)
