"""Records to rows and back, and rows as the port shows them."""

from datetime import datetime
from typing import Any, Final, TypeAlias
from uuid import UUID, uuid5

from sqlalchemy import Row as SqlRow

from ...domain.history import DeadLetterRecord, ExecutionRecord, StepRecord
from ...ports import DeadLetterRow, ExecutionRow

Row: TypeAlias = SqlRow[Any]
Values: TypeAlias = dict[str, object]

_NAMESPACE: Final = UUID("7c1f0d3e-5a55-5b8e-9a3c-2f6a4d0b9e61")


def execution_values(record: ExecutionRecord) -> Values:
    """The columns of an execution. What the log tells the same gives the same row, its `id` included."""
    return {
        "id": _uuid(record.execution_id),
        "job_name": record.job,
        "execution_id": record.execution_id,
        "trigger": record.trigger,
        "status": record.status,
        "scheduled_time": record.scheduled_time,
        "started_at": record.started_at,
        "completed_at": record.completed_at,
        "duration_ms": record.duration_ms,
        "attempt": record.attempt,
        "worker": record.worker,
        "error": record.error,
        "dag_state": {name: _step_values(step) for name, step in record.steps.items()},
    }


def execution_record(row: Row) -> ExecutionRecord:
    """The record that a row was written from."""
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
    )


def execution_row(row: Row) -> ExecutionRow:
    """An execution as the port shows it."""
    return ExecutionRow(
        job_name=row.job_name,
        execution_id=row.execution_id,
        trigger=row.trigger,
        status=row.status,
        scheduled_time=row.scheduled_time,
        started_at=row.started_at,
        completed_at=row.completed_at,
        duration_ms=row.duration_ms,
        attempt=row.attempt,
        worker=row.worker,
        error=row.error,
        dag_state=row.dag_state,
    )


def dead_letter_values(record: DeadLetterRecord) -> Values:
    """The columns of a dead letter, but for `resolved`, which a later fact says."""
    return {
        "id": record.id,
        "job_name": record.job,
        "execution_id": record.execution_id,
        "attempts": len(record.attempts),
        "last_error": record.last_error,
        "input": record.input,
        "attempt_history": [attempt.model_dump(mode="json") for attempt in record.attempts],
        "first_attempt": record.first_attempt,
        "last_attempt": record.last_attempt,
    }


def dead_letter_row(row: Row) -> DeadLetterRow:
    """A dead letter as the port shows it."""
    return DeadLetterRow(
        id=row.id,
        job_name=row.job_name,
        execution_id=row.execution_id,
        attempts=row.attempts,
        last_error=row.last_error,
        input=row.input,
        first_attempt=row.first_attempt,
        last_attempt=row.last_attempt,
        resolved=row.resolved,
    )


def _step_values(step: StepRecord) -> Values:
    return {
        "status": step.status,
        "attempt": step.attempt,
        "started_at": step.started_at and step.started_at.isoformat(),
        "ended_at": step.ended_at and step.ended_at.isoformat(),
        "error": step.error,
    }


def _step_record(step: dict[str, Any]) -> StepRecord:
    return StepRecord(
        status=step["status"],
        attempt=step["attempt"],
        started_at=_time(step["started_at"]),
        ended_at=_time(step["ended_at"]),
        error=step["error"],
    )


def _time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None


def _uuid(execution_id: str) -> UUID:
    """hip-62's key: the execution's own id, unless somebody made up one that is no UUID or an unusual spelling of one."""
    try:
        own = UUID(execution_id)
    except ValueError:
        own = None
    return own if own is not None and str(own) == execution_id else uuid5(_NAMESPACE, execution_id)
