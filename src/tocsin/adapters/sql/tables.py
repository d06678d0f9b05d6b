"""The tables of the history, with the names of hip-62 (Execution History, Dead Letter Handling).

More columns hold what the other documents require, so that SQL shows an operator the same as the command line.
`migrations/` creates the tables. If a type of hip-62 cannot hold a value of the log, the value is
changed, because the recorder must not fail:

- a duration over 24 days, which an INTEGER of milliseconds cannot hold, is stored as the maximum; readers compute it
  from the times;
- U+0000, which neither JSONB nor TEXT can hold, becomes U+FFFD;
- an unreadable message has no execution: `execution_id` of its dead letter is NULL, and `id` is a UUID of the name in
  `letter_id`.
"""

from collections.abc import Collection
from datetime import UTC, datetime
from typing import Any, Final

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    ColumnElement,
    DateTime,
    Dialect,
    Double,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    TypeDecorator,
    Uuid,
    false,
    func,
    not_,
    or_,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.sql.base import ReadOnlyColumnCollection
from typing_extensions import override

from ...domain.namespaces import SEPARATOR
from ...ports.queries import DeadLetterQuery, ExecutionQuery
from ..history.rows import plain

MAX_INTEGER: Final = 2**31 - 1


class UtcTime(TypeDecorator[datetime]):
    """An aware instant in UTC, even if the database has no time zones."""

    impl = DateTime(timezone=True)
    cache_ok = True

    @override
    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        return value if value is None else value.astimezone(UTC)

    @override
    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


UuidText: Final = Text().with_variant(Uuid(as_uuid=False), "postgresql")
"""A UUID in its text form, even if the database has no type for it."""
Json: Final = JSON(none_as_null=True).with_variant(JSONB(none_as_null=True), "postgresql")
Bytewise: Final = Text().with_variant(Text(collation="C"), "postgresql")
"""A text that every database sorts equally, and whose prefixes an index finds."""

metadata: Final = MetaData()

executions: Final = Table(
    "scheduler_executions",
    metadata,
    Column("id", UuidText, primary_key=True),
    Column("job_name", Text, nullable=False),
    Column("execution_id", Bytewise, nullable=False, unique=True),
    Column("trigger", Text, nullable=False),
    Column("started_at", UtcTime, nullable=False),
    Column("completed_at", UtcTime),
    Column("status", Text, nullable=False),
    Column("duration_ms", Integer),
    Column("attempt", Integer, nullable=False, server_default="1"),
    Column("error", Text),
    Column("dag_state", Json),
    Column("scheduled_time", UtcTime, nullable=False),
    Column("worker", Text),
    Column("error_type", Text),
    Column("traceback", Text),
    Column("reason", Text),
    Column("result", Json),
    Column("tags", Json),
    Column("created_by", Text),
    Column("replay_of", Text),
    Column("definition", BigInteger),
    Column("agent", Text),
    Column("shard", Text),
    Column("occurrence_id", Bytewise),
    Column("start_delay_ms", Integer),
    Column("queue", Text),
    Column("job_state", Text),
    Column("was_handed_over", Boolean, nullable=False, server_default=false()),
    Column("recoveries_tried", Integer, nullable=False, server_default="0"),
    Column("recoveries_successful", Integer, nullable=False, server_default="0"),
    Column("recoveries_failed", Integer, nullable=False, server_default="0"),
    Column("recoveries_abandoned", Integer, nullable=False, server_default="0"),
)
_NEWEST: Final = executions.c.scheduled_time, executions.c.execution_id
for _name, _columns, _where in (
    ("newest", _NEWEST, None),
    ("of_job", (executions.c.job_name, *_NEWEST), None),
    ("by_status", (executions.c.status, *_NEWEST), None),
    ("by_trigger", (executions.c.trigger, *_NEWEST), None),
    ("with_error", _NEWEST, "error IS NOT NULL"),
    ("of_occurrence", (executions.c.occurrence_id, *_NEWEST), "occurrence_id IS NOT NULL"),
    ("by_start", (executions.c.started_at, executions.c.execution_id), None),
    (
        "ended",
        (executions.c.status, executions.c.completed_at, executions.c.job_name, executions.c.definition),
        "completed_at IS NOT NULL",
    ),
    ("results", (executions.c.job_name, executions.c.status, *_NEWEST), "completed_at IS NOT NULL"),
    ("by_duration", (executions.c.duration_ms, executions.c.execution_id), "duration_ms IS NOT NULL"),
    (
        "of_queue",
        (executions.c.queue, executions.c.job_state, executions.c.completed_at),
        "queue IS NOT NULL AND job_state IS NOT NULL",
    ),
    ("open", (executions.c.job_name, executions.c.scheduled_time), "completed_at IS NULL"),
    ("running", (executions.c.job_name,), "status = 'running'"),
):
    _part = None if _where is None else text(_where)
    Index(f"scheduler_executions_{_name}", *_columns, sqlite_where=_part, postgresql_where=_part)

execution_tags: Final = Table(
    "scheduler_execution_tags",
    metadata,
    Column("tag", Text, primary_key=True),
    Column("scheduled_time", UtcTime, primary_key=True),
    Column("execution_id", Bytewise, primary_key=True),
    sqlite_with_rowid=False,
)

dead_letters: Final = Table(
    "scheduler_dead_letters",
    metadata,
    Column("id", UuidText, primary_key=True),
    Column("job_name", Text, nullable=False),
    Column("execution_id", Text),
    Column("attempts", Integer, nullable=False),
    Column("last_error", Text),
    Column("input", Json),
    Column("first_attempt", UtcTime, nullable=False),
    Column("last_attempt", UtcTime, nullable=False, server_default=func.current_timestamp()),
    Column("resolved", Boolean, nullable=False, server_default=false()),
    Column("letter_id", Bytewise, nullable=False, unique=True),
    Column("attempt_history", Json),
    Column("definition", BigInteger),
    Column("error_pattern", Bytewise, nullable=False, server_default=""),
)
Index("scheduler_dead_letters_newest", dead_letters.c.last_attempt, dead_letters.c.letter_id)
_GROUP: Final = dead_letters.c.job_name, dead_letters.c.error_pattern
_MEMBER: Final = dead_letters.c.last_attempt, dead_letters.c.letter_id
# Both have every column that groups need, also `resolved`, without which SQLite would read the rows. The second also lists a group.
Index(
    "scheduler_dead_letters_groups",
    *(*_GROUP, dead_letters.c.definition, *_MEMBER, dead_letters.c.first_attempt, dead_letters.c.resolved),
    sqlite_where=text("resolved = 0"),
    postgresql_where=text("NOT resolved"),
)
Index(
    "scheduler_dead_letters_of_group",
    *(*_GROUP, *_MEMBER, dead_letters.c.definition, dead_letters.c.first_attempt),
)

jobs: Final = Table(
    "scheduler_jobs",
    metadata,
    Column("job_uuid", UuidText, primary_key=True),
    Column("job_name", Bytewise, nullable=False, unique=True),
    Column("state", Text, nullable=False),
    Column("schedule_type", Text),
    Column("cron_expression", Text),
    Column("timezone", Text),
    Column("next_run_time", UtcTime),
    Column("last_scheduled_time", UtcTime),
    Column("decided_until", UtcTime),
    Column("description", Text),
    Column("created_at", UtcTime, nullable=False),
    Column("created_by", Text),
    Column("changed_at", UtcTime, nullable=False),
    Column("paused", Boolean, nullable=False),
    Column("retention", Double),  # seconds
    Column("anchor", UtcTime),
    Column("definition", Json),
)

offsets: Final = Table(
    "scheduler_offsets",
    metadata,
    # An offset is valid for the streams of one installation; those of another start at 1.
    Column("installation", Text, primary_key=True),
    Column("stream", Text, primary_key=True),
    Column("sequence", BigInteger, nullable=False),
)

totals: Final = Table(
    "scheduler_totals",
    metadata,
    Column("kind", Text, primary_key=True),
    Column("job_name", Bytewise, primary_key=True),
    Column("label", Text, primary_key=True),
    Column("status", Text, primary_key=True),
    Column("total", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)

last_runs: Final = Table(
    "scheduler_last_runs",
    metadata,
    Column("job_name", Bytewise, primary_key=True),
    Column("execution_id", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("ended_at", UtcTime, nullable=False),
    Column("duration_ms", BigInteger),
    Column("error", Text),
    Column("reason", Text),
    Column("definition", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)

execution_counts: Final = Table(
    "scheduler_execution_counts",
    metadata,
    Column("job_name", Bytewise, primary_key=True),
    Column("period", BigInteger, primary_key=True, autoincrement=False),
    Column("definition", BigInteger, primary_key=True, autoincrement=False),
    Column("trigger", Text, primary_key=True),
    Column("status", Text, primary_key=True),
    Column("total", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)

passed: Final = Table(
    "scheduler_passed",
    metadata,
    Column("job_name", Bytewise, primary_key=True),
    Column("until_time", UtcTime, primary_key=True),
    Column("start_time", UtcTime, primary_key=True),
    Column("reason", Text, primary_key=True),
    Column("total", BigInteger, nullable=False),
    Column("definition", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)
Index("scheduler_passed_oldest", passed.c.until_time)

execution_events: Final = Table(
    "scheduler_execution_events",
    metadata,
    # The events of an execution and its dead letter, of one transaction of the recorder. It has no key: a row is written once, with the place.
    Column("execution_id", Bytewise, nullable=False),
    Column("installation", Text, nullable=False),
    Column("job_name", Bytewise, nullable=False),
    Column("time", UtcTime, nullable=False),
    Column("number", BigInteger, nullable=False),
    Column("events", LargeBinary, nullable=False),
)
Index("scheduler_execution_events_of_execution", execution_events.c.execution_id)
Index("scheduler_execution_events_of_job", execution_events.c.job_name, execution_events.c.time)

ledger_events: Final = Table(
    "scheduler_ledger_events",
    metadata,
    Column("job_name", Bytewise, primary_key=True),
    Column("event", Bytewise, primary_key=True),
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("installation", Text, primary_key=True),
    Column("time", UtcTime, nullable=False),
    Column("body", LargeBinary, nullable=False),
    sqlite_with_rowid=False,
)
Index("scheduler_ledger_events_by_time", ledger_events.c.job_name, ledger_events.c.event, ledger_events.c.time)

removed_events: Final = Table(
    "scheduler_removed_events",
    metadata,
    # Up to which time and number the history does not keep all events of a job, because of a retention or the policy.
    Column("job_name", Bytewise, primary_key=True),
    Column("installation", Text, primary_key=True),
    Column("stream", Text, primary_key=True),
    Column("upto", UtcTime, nullable=False),
    Column("number", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)

_EXECUTIONS: Final = executions.c
_DEAD_LETTERS: Final = dead_letters.c
_LAST: Final = "\U0010ffff"
"""No id continues with this character."""


def execution_conditions(query: ExecutionQuery, time: Column[Any]) -> list[ColumnElement[bool]]:
    """Return the conditions of a list of executions. `time`: the column of their scheduled time."""
    conditions = [
        column == value
        for column, value in (
            (_EXECUTIONS.job_name, query.job),
            (_EXECUTIONS.status, query.status),
            (_EXECUTIONS.trigger, query.trigger),
            (_EXECUTIONS.occurrence_id, query.occurrence),
        )
        if value is not None
    ]
    conditions += within(query.namespaces, _EXECUTIONS.job_name)
    return conditions + _common_conditions(query, time, _EXECUTIONS.error, _EXECUTIONS.execution_id)


def dead_letter_conditions(
    query: DeadLetterQuery, letters: ReadOnlyColumnCollection[str, Column[Any]] = _DEAD_LETTERS
) -> list[ColumnElement[bool]]:
    """Return the conditions of dead letters. `letters`: the columns of an alias."""
    conditions = [] if query.job is None else [letters.job_name == query.job]
    if query.pattern is not None:
        conditions.append(letters.error_pattern == plain(query.pattern))
    if query.unresolved:
        conditions.append(not_(letters.resolved))
    conditions += within(query.namespaces, letters.job_name)
    return conditions + _common_conditions(query, letters.last_attempt, letters.last_error, letters.letter_id)


def within(namespaces: Collection[str] | None, job: Column[Any]) -> list[ColumnElement[bool]]:
    """Return the condition that jobs are in some namespaces; None: all jobs."""
    if namespaces is None:
        return []
    names = (job.startswith(f"{namespace}{SEPARATOR}", autoescape=True) for namespace in namespaces)
    return [or_(false(), *names)]


def _common_conditions(
    query: ExecutionQuery | DeadLetterQuery, time: Column[Any], error: Column[Any], key: Column[Any]
) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = []
    if query.since is not None:
        conditions.append(time >= query.since)
    if query.until is not None:
        conditions.append(time < query.until)
    if query.error is not None:
        conditions += error.is_not(None), error.icontains(query.error, autoescape=True)
    if query.id_prefix is not None:
        # A range instead of LIKE uses the index on every database.
        conditions += key >= query.id_prefix, key < query.id_prefix + _LAST
    return conditions
