"""Conversion of records to rows and back, and of rows to the port's rows."""

import re
from collections.abc import Sequence
from dataclasses import asdict, fields
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

_RECOVERIES: Final = tuple(f"recoveries_{outcome}" for outcome in Recoveries._fields)
REQUEST: Final = (
    *("id", "job_name", "trigger", "scheduled_time", "tags", "created_by", "replay_of", "definition"),
    *("shard", "occurrence_id", "start_delay_ms", "queue", "execution_id"),
)
"""The columns of the request, which never change."""

PROGRESS: Final = (
    *("started_at", "completed_at", "status", "duration_ms", "attempt", "error", "dag_state", "worker", "error_type"),
    *("traceback", "reason", "result", "agent", "job_state", "was_handed_over"),
    *_RECOVERIES,
)
"""The columns of the progress."""


def execution_values(record: ExecutionRecord, encoding: Encoding) -> Values:
    """Return the columns `PROGRESS` and `REQUEST`.

    The same log gives the same row, including its `id`.
    """
    columns = {"id": uuid_of(record.execution_id), **_progress(record), **rows.request_columns(record)}
    return encoding.values(columns, (*PROGRESS, *REQUEST))


def progress_values(record: ExecutionRecord, encoding: Encoding) -> Values:
    """Return the columns `PROGRESS`, and the execution's id at the end."""
    return (*encoding.values(_progress(record), PROGRESS), record.execution_id)


def _progress(record: ExecutionRecord) -> dict[str, Any]:
    duration = record.duration_ms
    return {
        **rows.progress_columns(record),
        "duration_ms": None if duration is None else min(duration, MAX_INTEGER),
        "job_state": record.job_state,
        **dict(zip(_RECOVERIES, record.recoveries, strict=True)),
    }


def execution_record(row: Row) -> ExecutionRecord:
    """Return the record of an execution from its row."""
    columns = row._asdict() | {"tags": tuple(row.tags or ())}
    return ExecutionRecord(
        job=row.job_name,
        steps={name: _step_record(step) for name, step in row.dag_state.items()},
        recoveries=Recoveries(*(columns[name] for name in _RECOVERIES)),
        **{name: columns[name] for name in _OF_RECORD},
    )


def execution_row(row: Row) -> ExecutionRow:
    """Return the port's row of an execution."""
    columns = _shown(row) | {"tags": tuple(row.tags or ())}
    return ExecutionRow(**{name: columns[name] for name in _OF_ROW})


def execution_head(row: SqlRow[*tuple[Any, ...]]) -> ExecutionHead:
    """Return the short row of an execution."""
    return ExecutionHead(**_shown(row))


def _shown(row: Row) -> dict[str, Any]:
    """Return the columns of an execution, with its exact duration."""
    started_at = row.started_at if row.status == "running" or row.duration_ms is not None else None
    return row._asdict() | {"started_at": started_at, "duration_ms": _duration_ms(row)}


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


_OF_ROW: Final = [field.name for field in fields(ExecutionRow)]
_OF_RECORD: Final = [field.name for field in fields(ExecutionRecord) if field.name in {*PROGRESS, *REQUEST}]

TAG: Final = ("tag", "scheduled_time", "execution_id")


def tag_values(record: ExecutionRecord, encoding: Encoding) -> Sequence[Values]:
    """Return the rows that find an execution by its tags."""
    at = encoding.time(record.scheduled_time)
    return [(plain(tag), at, record.execution_id) for tag in dict.fromkeys(record.tags)]


LAST_RUN: Final = ("job_name", "execution_id", "status", "ended_at", "duration_ms", "error", "reason", "definition")


def last_run_values(job: str, run: LastRun, encoding: Encoding) -> Values:
    """Return the columns of the last run of a job."""
    texts = {"job_name": job, "error": plain(run.error), "reason": plain(run.reason)}
    return encoding.values(asdict(run) | texts, LAST_RUN)


# --- dead letters ----------------------------------------------------------------------------------------------------

DEAD_LETTER: Final = (
    *("id", "job_name", "execution_id", "attempts", "last_error", "input", "first_attempt", "last_attempt"),
    *("letter_id", "attempt_history", "definition", "error_pattern"),
)
"""The columns of `dead_letter_values`: all except `resolved`, which a later fact sets."""

_OF_LETTER: Final = (
    *("job_name", "execution_id", "attempts", "last_error", "input", "first_attempt", "last_attempt", "resolved"),
    "definition",
)


def dead_letter_values(record: DeadLetterRecord, key: str, encoding: Encoding) -> Values:
    """Return the columns of a dead letter; `key`: see `LetterKeys`."""
    columns = rows.dead_letter_columns(record)
    own = {"id": uuid_of(key), "letter_id": key, "error_pattern": error_pattern(columns["last_error"] or "")}
    return encoding.values(columns | own, DEAD_LETTER)


def dead_letter_row(row: Row) -> DeadLetterRow:
    """Return the port's row of a dead letter."""
    columns = row._asdict()
    return DeadLetterRow(id=letter_id_of(row.letter_id), **{name: columns[name] for name in _OF_LETTER})


# --- jobs ------------------------------------------------------------------------------------------------------------

JOB_TIME: Final = ("next_run_time", "last_scheduled_time", "decided_until")
"""The columns that a time fact may change."""

JOB_IN_TIME: Final = (
    *JOB_TIME,
    *("job_uuid", "job_name", "state", "created_at", "created_by", "changed_at", "paused", "anchor"),
)
"""`JOB_TIME`, and the columns that every row needs."""

JOB: Final = (*JOB_IN_TIME, "schedule_type", "cron_expression", "timezone", "description", "retention", "definition")
"""All columns of a job."""


_OF_JOB: Final = [field.name for field in fields(JobRow) if field.name in JOB]


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
    columns = row._asdict()
    return JobRow(job_id=row.job_uuid, **{name: columns[name] for name in _OF_JOB})


def uuid_of(name: str) -> str:
    """Return hip-62's key.

    The name itself if it is a canonical UUID, else a UUID derived from it.
    """
    return name if _UUID.fullmatch(name) else str(uuid5(_NAMESPACE, name))
