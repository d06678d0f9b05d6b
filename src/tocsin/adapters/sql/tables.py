"""The tables of the history, by the names that hip-62 gives them (Execution History, Dead Letter Handling).

Beyond its columns stand those that `ports.ExecutionRow` adds, and `attempt_history`, since a dead letter is kept "with full
error and attempt history" (hip-62, Retry Policy). The types are the nearest that every database has, with three exceptions
to its text, each so that no fact that the log holds can be one that a database refuses:

- `duration_ms` is a BIGINT: an INTEGER of milliseconds ends after 24 days;
- `dag_state` and `input` are JSON, not JSONB, which refuses the escape of NUL; a NUL in a text becomes U+FFFD;
- the `id` of a dead letter is a text, and its `execution_id` may be absent: a message that nobody could read has neither.
"""

from datetime import UTC, datetime
from typing import Final

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Dialect,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    TypeDecorator,
    Uuid,
    false,
)
from typing_extensions import override


class UtcTime(TypeDecorator[datetime]):
    """An aware instant in UTC, also where the database knows no zones. A time without one is taken to be UTC."""

    impl = DateTime(timezone=True)
    cache_ok = True

    @override
    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """To the database."""
        return _utc(value)

    @override
    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """From the database."""
        return _utc(value)


class PlainText(TypeDecorator[str]):
    """A text that every database takes."""

    impl = Text
    cache_ok = True

    @override
    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """To the database."""
        return value.replace("\0", "\ufffd") if value is not None else None


def _utc(value: datetime | None) -> datetime | None:
    if value is None:
        return None
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


metadata: Final = MetaData()

executions: Final = Table(
    "scheduler_executions",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("job_name", PlainText, nullable=False),
    Column("execution_id", PlainText, nullable=False, unique=True),
    Column("trigger", PlainText, nullable=False),
    Column("status", PlainText, nullable=False),
    Column("scheduled_time", UtcTime, nullable=False),
    Column("started_at", UtcTime, nullable=False),
    Column("completed_at", UtcTime),
    Column("duration_ms", BigInteger),
    Column("attempt", Integer, nullable=False, server_default="1"),
    Column("worker", PlainText),
    Column("error", PlainText),
    Column("dag_state", JSON),
    Index("scheduler_executions_newest", "scheduled_time"),
    Index("scheduler_executions_of_job", "job_name", "scheduled_time"),
    Index("scheduler_executions_by_status", "status", "scheduled_time"),
)

dead_letters: Final = Table(
    "scheduler_dead_letters",
    metadata,
    Column("id", PlainText, primary_key=True),
    Column("job_name", PlainText, nullable=False),
    Column("execution_id", PlainText),
    Column("attempts", Integer, nullable=False),
    Column("last_error", PlainText),
    Column("input", JSON),
    Column("attempt_history", JSON),
    Column("first_attempt", UtcTime, nullable=False),
    Column("last_attempt", UtcTime, nullable=False),
    Column("resolved", Boolean, nullable=False, server_default=false()),
    Index("scheduler_dead_letters_newest", "last_attempt"),
)

offsets: Final = Table(
    "scheduler_offsets",
    metadata,
    # A place counts in the streams of one installation only: those of another begin at 1 again.
    Column("installation", Text, primary_key=True),
    Column("stream", Text, primary_key=True),
    Column("sequence", BigInteger, nullable=False),
)
