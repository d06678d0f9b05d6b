"""Conversion of records to rows and back, and of rows to the port's rows."""

import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Final, TypeAlias
from uuid import UUID, uuid5

from sqlalchemy import Row as SqlRow

from ...domain.dead_letter import DeadLetterRecord
from ...domain.definition import JobDefinition
from ...domain.error_pattern import error_pattern
from ...domain.execution_record import ExecutionRecord, Recoveries, StepRecord
from ...domain.job_record import JobRecord
from ...domain.last_run import LastRun
from ...ports import DeadLetterRow, ExecutionRow, JobRow
from ...ports.summaries import ExecutionHead
from ..history import rows
from ..history.rows import json_text, letter_id_of, plain
from .engine import Encoding
from .tables import MAX_INTEGER

Row: TypeAlias = SqlRow[Any]
Values: TypeAlias = tuple[object, ...]

_NAMESPACE: Final = UUID("7c1f0d3e-5a55-5b8e-9a3c-2f6a4d0b9e61")
_UUID: Final = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_MILLISECOND: Final = timedelta(milliseconds=1)

# --- executions ------------------------------------------------------------------------------------------------------

REQUEST: Final = (
    *("id", "job_name", "trigger", "scheduled_time", "tags", "created_by", "replay_of", "definition"),
    *("shard", "occurrence_id", "start_delay_ms", "queue", "execution_id"),
)
"""The columns of the request, which never change."""

PROGRESS: Final = (
    *("started_at", "completed_at", "status", "duration_ms", "attempt", "error", "dag_state", "worker", "error_type"),
    *("traceback", "reason", "result", "agent", "job_state", "was_handed_over"),
    *(f"recoveries_{outcome}" for outcome in Recoveries._fields),
)
"""The columns of the progress."""


def execution_values(record: ExecutionRecord, encoding: Encoding) -> Values:
    """Return the columns `PROGRESS` and `REQUEST`.

    The same log gives the same row, including its `id`.
    """
    return (
        *progress_values(record, encoding)[:-1],
        uuid_of(record.execution_id),
        record.job,
        record.trigger,
        encoding.time(record.scheduled_time),
        json_text(record.tags) if record.tags else None,
        plain(record.created_by),
        record.replay_of,
        record.definition,
        record.shard,
        record.occurrence_id,
        record.start_delay_ms,
        plain(record.queue),
        record.execution_id,
    )


def progress_values(record: ExecutionRecord, encoding: Encoding) -> Values:
    """Return the columns `PROGRESS`, and the execution's id at the end."""
    duration = record.duration_ms
    return (
        encoding.time(record.started_at),
        encoding.maybe_time(record.completed_at),
        record.status,
        duration if duration is None or duration <= MAX_INTEGER else MAX_INTEGER,
        record.attempt,
        plain(record.error),
        json_text(record.steps),
        plain(record.worker),
        plain(record.error_type),
        plain(record.traceback),
        plain(record.reason),
        None if record.result is None else json_text(record.result),
        plain(record.agent),
        record.job_state,
        record.was_handed_over,
        *record.recoveries,
        record.execution_id,
    )


def execution_record(row: Row) -> ExecutionRecord:
    """Return the record of an execution from its row."""
    return ExecutionRecord(
        job=row.job_name,
        execution_id=row.execution_id,
        trigger=row.trigger,
        scheduled_time=row.scheduled_time,
        started_at=row.started_at,
        completed_at=row.completed_at,
        status=row.status,
        attempt=row.attempt,
        worker=row.worker,
        error=row.error,
        steps={name: _step_record(step) for name, step in row.dag_state.items()},
        error_type=row.error_type,
        traceback=row.traceback,
        reason=row.reason,
        result=row.result,
        tags=tuple(row.tags or ()),
        created_by=row.created_by,
        replay_of=row.replay_of,
        definition=row.definition,
        agent=row.agent,
        shard=row.shard,
        occurrence_id=row.occurrence_id,
        start_delay_ms=row.start_delay_ms,
        queue=row.queue,
        was_handed_over=row.was_handed_over,
        recoveries=Recoveries(*(getattr(row, f"recoveries_{outcome}") for outcome in Recoveries._fields)),
    )


def execution_row(row: Row) -> ExecutionRow:
    """Return the port's row of an execution."""
    return ExecutionRow(
        job_name=row.job_name,
        execution_id=row.execution_id,
        trigger=row.trigger,
        status=row.status,
        scheduled_time=row.scheduled_time,
        started_at=row.started_at if row.status == "running" or row.duration_ms is not None else None,
        completed_at=row.completed_at,
        duration_ms=_duration_ms(row),
        attempt=row.attempt,
        worker=row.worker,
        error=row.error,
        dag_state=row.dag_state,
        error_type=row.error_type,
        traceback=row.traceback,
        reason=row.reason,
        result=row.result,
        tags=tuple(row.tags or ()),
        created_by=row.created_by,
        replay_of=row.replay_of,
        definition=row.definition,
        agent=row.agent,
        shard=row.shard,
        occurrence_id=row.occurrence_id,
        start_delay_ms=row.start_delay_ms,
    )


def execution_head(row: SqlRow[*tuple[Any, ...]]) -> ExecutionHead:
    """Return the short row of an execution."""
    return ExecutionHead(
        job_name=row.job_name,
        execution_id=row.execution_id,
        trigger=row.trigger,
        status=row.status,
        scheduled_time=row.scheduled_time,
        started_at=row.started_at if row.status == "running" or row.duration_ms is not None else None,
        completed_at=row.completed_at,
        duration_ms=_duration_ms(row),
        definition=row.definition,
        error=row.error,
    )


def _duration_ms(row: Row) -> int | None:
    duration: int | None = row.duration_ms
    if duration != MAX_INTEGER:
        return duration
    took: timedelta = row.completed_at - row.started_at
    return took // _MILLISECOND


def _step_record(step: dict[str, Any]) -> StepRecord:
    times = {name: _time(step[name]) for name in ("started_at", "ended_at")}
    return StepRecord(**{**step, **times})


def _time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None


TAG: Final = ("tag", "scheduled_time", "execution_id")


def tag_values(record: ExecutionRecord, encoding: Encoding) -> Sequence[Values]:
    """Return the rows that find an execution by its tags."""
    at = encoding.time(record.scheduled_time)
    return [(plain(tag), at, record.execution_id) for tag in dict.fromkeys(record.tags)]


LAST_RUN: Final = ("job_name", "execution_id", "status", "ended_at", "duration_ms", "error", "reason", "definition")


def last_run_values(job: str, run: LastRun, encoding: Encoding) -> Values:
    """Return the columns of the last run of a job."""
    return (
        job,
        run.execution_id,
        run.status,
        encoding.time(run.ended_at),
        run.duration_ms,
        plain(run.error),
        plain(run.reason),
        run.definition,
    )


# --- dead letters ----------------------------------------------------------------------------------------------------

DEAD_LETTER: Final = (
    *("id", "job_name", "execution_id", "attempts", "last_error", "input", "first_attempt", "last_attempt"),
    *("letter_id", "attempt_history", "definition", "error_pattern"),
)
"""The columns of `dead_letter_values`: all except `resolved`, which a later fact sets."""


def dead_letter_values(record: DeadLetterRecord, key: str, encoding: Encoding) -> Values:
    """Return the columns of a dead letter; `key`: see `LetterKeys`."""
    last_error = plain(record.last_error)
    return (
        uuid_of(key),
        record.job,
        record.execution_id,
        len(record.attempts),
        last_error,
        json_text(record.input),
        encoding.time(record.first_attempt),
        encoding.time(record.last_attempt),
        key,
        json_text(record.attempts),
        record.definition,
        error_pattern(last_error or ""),
    )


def dead_letter_row(row: Row) -> DeadLetterRow:
    """Return the port's row of a dead letter."""
    return DeadLetterRow(
        id=letter_id_of(row.letter_id),
        job_name=row.job_name,
        execution_id=row.execution_id,
        attempts=row.attempts,
        last_error=row.last_error,
        input=row.input,
        first_attempt=row.first_attempt,
        last_attempt=row.last_attempt,
        resolved=row.resolved,
        definition=row.definition,
    )


# --- jobs ------------------------------------------------------------------------------------------------------------

JOB_TIME: Final = ("next_run_time", "last_scheduled_time", "decided_until")
"""The columns that a time fact may change."""

JOB_IN_TIME: Final = (
    *JOB_TIME,
    "job_uuid",
    "job_name",
    "state",
    "created_at",
    "created_by",
    "changed_at",
    "paused",
    "anchor",
)
"""`JOB_TIME`, and the columns that every row needs."""

JOB: Final = (*JOB_IN_TIME, "schedule_type", "cron_expression", "timezone", "description", "retention", "definition")
"""All columns of a job."""


def job_time_values(record: JobRecord, encoding: Encoding) -> Values:
    """Return the columns `JOB_TIME`, and the job's name at the end."""
    times = (record.next_run_time, record.last_scheduled, record.decided_until)
    return (*map(encoding.maybe_time, times), record.job)


def job_in_time_values(record: JobRecord, encoding: Encoding) -> Values:
    """Return the columns `JOB_IN_TIME`."""
    return (
        *job_time_values(record, encoding)[:-1],
        record.id,
        record.job,
        record.state,
        encoding.time(record.created_at),
        plain(record.created_by),
        encoding.time(record.changed_at),
        record.paused,
        encoding.maybe_time(record.anchor),
    )


def job_values(record: JobRecord, definition: JobDefinition, encoding: Encoding) -> Values:
    """Return the columns `JOB`."""
    return (
        *job_in_time_values(record, encoding),
        record.schedule_type,
        definition.schedule,
        definition.timezone,
        plain(definition.description),
        definition.retention,
        json_text(definition.model_dump(mode="json", exclude_none=True)),
    )


def job_record(row: Row) -> JobRecord:
    """Return the record of a job without its definition."""
    return rows.job_record(row._asdict())


def job_row(row: Row) -> JobRow:
    """Return the port's row of a job."""
    return JobRow(
        job_id=row.job_uuid,
        job_name=row.job_name,
        state=row.state,
        schedule_type=row.schedule_type,
        next_run_time=row.next_run_time,
        last_scheduled_time=row.last_scheduled_time,
        created_at=row.created_at,
        created_by=row.created_by,
        definition=row.definition,
    )


def uuid_of(name: str) -> str:
    """Return hip-62's key.

    The name itself if it is a canonical UUID, else a UUID derived from it.
    """
    return name if _UUID.fullmatch(name) else str(uuid5(_NAMESPACE, name))
