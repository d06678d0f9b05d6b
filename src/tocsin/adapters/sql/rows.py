"""Conversion of records to rows and back, and of rows to the port's rows."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields
from datetime import datetime, timedelta
from typing import Any, Final, TypeAlias
from uuid import UUID, uuid5

from msgspec.structs import astuple
from sqlalchemy import Row as SqlRow

from ...domain.dead_letter import Letter
from ...domain.definition import JobDefinition
from ...domain.execution_record import NEVER_LOST, ExecutionRecord, LastRun, Recoveries, StepRecord
from ...domain.job_record import JobRecord
from ...domain.text import error_pattern
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

_RECOVERIES: Final = tuple(f"recoveries_{outcome}" for outcome in Recoveries._fields)
EXECUTION: Final = (*rows.EXECUTION, *_RECOVERIES, "job_state", "duration_ms")
"""The names of `execution_values`: the columns of an execution but for its `id`, and `recoveries`, which has four."""
_DEFAULTS: Final = {"attempt": 1, "was_handed_over": False, "recoveries": NEVER_LOST, "tags": ()}
NEW_EXECUTION: Final = tuple((_DEFAULTS | dict.fromkeys(_RECOVERIES, 0)).get(name) for name in EXECUTION)
"""The values of a row of which no column is written."""
ID: Final = EXECUTION.index("execution_id")
RECOVERIES: Final = EXECUTION.index("recoveries")


def execution_values(record: ExecutionRecord) -> Values:
    """Return the values of a record, not encoded."""
    return (*astuple(record), *record.recoveries, record.job_state, record.duration_ms)


def execution_encoders(encoding: Encoding) -> Mapping[str, Callable[[Any], object]]:
    """Return the encoders of values by column; other columns have the value itself."""
    return {
        **rows.ENCODERS,
        **dict.fromkeys(("started_at", "completed_at", "scheduled_time"), encoding.time),
        "duration_ms": lambda duration: duration and min(duration, MAX_INTEGER),
        "was_handed_over": int if encoding.is_file else bool,  # SQLite's driver looks for an adapter of a `bool`
    }


def execution_record(row: Row) -> ExecutionRecord:
    columns = row._asdict() | {"tags": tuple(row.tags or ())}
    return ExecutionRecord(
        job=row.job_name,
        steps={name: _step_record(step) for name, step in row.dag_state.items()},
        recoveries=Recoveries(*(columns[name] for name in _RECOVERIES)),
        **{name: columns[name] for name in _OF_RECORD},
    )


def execution_row(row: Row) -> ExecutionRow:
    columns = _shown(row) | {"tags": tuple(row.tags or ())}
    return ExecutionRow(**{name: columns[name] for name in _OF_ROW})


def execution_head(row: SqlRow[*tuple[Any, ...]]) -> ExecutionHead:
    return ExecutionHead(**_shown(row))


def _shown(row: Row) -> dict[str, Any]:
    started_at = row.started_at if row.status == "running" or row.duration_ms is not None else None
    duration = row.duration_ms
    if duration == MAX_INTEGER:
        duration = (row.completed_at - row.started_at) // _MILLISECOND
    return row._asdict() | {"started_at": started_at, "duration_ms": duration}


def _step_record(step: dict[str, Any]) -> StepRecord:
    began, ended = (text and datetime.fromisoformat(text) for text in (step["started_at"], step["ended_at"]))
    return StepRecord(**step | {"started_at": began, "ended_at": ended})


_OF_ROW: Final = [field.name for field in fields(ExecutionRow)]
_OF_RECORD: Final = [name for name in ExecutionRecord.__struct_fields__ if name in EXECUTION and name != "recoveries"]

TAG: Final = ("tag", "scheduled_time", "execution_id")


def tag_values(record: ExecutionRecord, encoding: Encoding) -> Sequence[Values]:
    at = encoding.time(record.scheduled_time)
    return [(plain(tag), at, record.execution_id) for tag in dict.fromkeys(record.tags)]


LAST_RUN: Final = ("job_name", "execution_id", "status", "ended_at", "duration_ms", "error", "reason", "definition")


def last_run_values(job: str, run: LastRun, encoding: Encoding) -> Values:
    texts = {"job_name": job, "error": plain(run.error), "reason": plain(run.reason)}
    return encoding.values(asdict(run) | texts, LAST_RUN)


DEAD_LETTER: Final = (
    *("id", "job_name", "execution_id", "attempts", "last_error", "input", "first_attempt", "last_attempt"),
    *("letter_id", "attempt_history", "definition", "error_pattern"),
)
"""The columns of `dead_letter_values`: all except `resolved`, which a later fact sets."""

_OF_LETTER: Final = (
    *("job_name", "execution_id", "attempts", "last_error", "input", "first_attempt", "last_attempt", "resolved"),
    "definition",
)


def dead_letter_values(letter: Letter, key: str, encoding: Encoding) -> Values:
    """Return the columns of a dead letter; `key`: see `LetterKeys`."""
    columns = rows.dead_letter_columns(letter)
    own = {"id": uuid_of(key), "letter_id": key, "error_pattern": error_pattern(columns["last_error"] or "")}
    return encoding.values(columns | own, DEAD_LETTER)


def dead_letter_row(row: Row) -> DeadLetterRow:
    columns = row._asdict()
    return DeadLetterRow(id=letter_id_of(row.letter_id), **{name: columns[name] for name in _OF_LETTER})


JOB_TIME: Final = ("next_run_time", "last_scheduled_time", "decided_until")
"""The columns that a time fact may change."""

JOB_IN_TIME: Final = (
    *JOB_TIME,
    *("job_uuid", "job_name", "state", "created_at", "created_by", "changed_at", "paused", "anchor"),
)
"""`JOB_TIME`, and the columns that every row needs."""

JOB: Final = (*JOB_IN_TIME, "schedule_type", "cron_expression", "timezone", "description", "retention", "definition")

_OF_JOB: Final = [field.name for field in fields(JobRow) if field.name in JOB]


def job_time_values(record: JobRecord, encoding: Encoding) -> Values:
    """Return the columns `JOB_TIME`, and the job's name at the end."""
    times = (record.next_run_time, record.last_scheduled, record.decided_until)
    return (*map(encoding.time, times), record.job)


def job_in_time_values(record: JobRecord, encoding: Encoding) -> Values:
    return (
        *job_time_values(record, encoding)[:-1],
        record.id,
        record.job,
        record.state,
        encoding.time(record.created_at),
        plain(record.created_by),
        encoding.time(record.changed_at),
        record.paused,
        encoding.time(record.anchor),
    )


def job_values(record: JobRecord, definition: JobDefinition, encoding: Encoding) -> Values:
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
    columns = row._asdict()
    return JobRow(job_id=row.job_uuid, **{name: columns[name] for name in _OF_JOB})


def uuid_of(name: str) -> str:
    """Return hip-62's key: a canonical UUID itself, or a UUID derived from another name."""
    return name if _UUID.fullmatch(name) else str(uuid5(_NAMESPACE, name))
