"""The last run of each job that ended.

The history keeps it beside its rows, so that it outlives them and is read at once.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from .execution_record import ExecutionRecord, Status

MAX_TEXT: Final = 500
"""Characters of an error or a reason."""


@dataclass(frozen=True, slots=True)
class LastRun:
    """The execution of a job that ended or was skipped last."""

    execution_id: str
    status: Status
    ended_at: datetime
    duration_ms: int | None
    """The time from its first start to its end; None: no worker started it."""
    error: str | None
    """The beginning of its last error, also if a later attempt succeeded."""
    reason: str | None
    """The reason for a skip or a cancellation."""
    definition: int


def last_runs(before: Mapping[str, ExecutionRecord], after: Iterable[ExecutionRecord]) -> dict[str, LastRun]:
    """Return the last run of each job of which a batch ends executions.

    `before` holds the earlier records by id. Executions without a definition are left out, so that names from outside are not kept.
    """
    last: dict[str, tuple[datetime, ExecutionRecord]] = {}
    for record in after:
        ended_at, old = record.completed_at, before.get(record.execution_id)
        if ended_at is None or not record.definition or (old is not None and old.completed_at is not None):
            continue
        ended_at = ended_at if ended_at.tzinfo else ended_at.replace(tzinfo=UTC)
        if record.job not in last or last[record.job][0] <= ended_at:
            last[record.job] = ended_at, record
    return {
        job: LastRun(
            execution_id=run.execution_id,
            status=run.status,
            ended_at=ended_at,
            duration_ms=run.duration_ms,
            error=_shortened(run.error),
            reason=_shortened(run.reason),
            definition=run.definition or 0,
        )
        for job, (ended_at, run) in last.items()
    }


def _shortened(text: str | None) -> str | None:
    return None if text is None else text[:MAX_TEXT]
