"""The read model of what has happened."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from pydantic import JsonValue

from ..domain.errors import TocsinError
from ..domain.events import Message, Recorded
from ..subjects import Stream
from .queries import EVERY_DEAD_LETTER, EVERY_EXECUTION, DeadLetterQuery, ExecutionQuery, Page


@dataclass(frozen=True, slots=True)
class ExecutionRow:
    """One execution as the history shows it (hip-62, Execution History)."""

    job_name: str
    execution_id: str
    trigger: str
    status: str  # pending | running | completed | failed | cancelled | skipped
    scheduled_time: datetime
    started_at: datetime | None
    completed_at: datetime | None
    duration_ms: int | None
    attempt: int
    worker: str | None
    error: str | None
    dag_state: dict[str, object]  # step -> {status, attempt, started_at, ended_at, error, worker, result}
    error_type: str | None = None
    traceback: str | None = None
    reason: str | None = None
    """Why it was skipped or cancelled."""
    result: JsonValue = None
    tags: tuple[str, ...] = ()
    created_by: str | None = None
    """Who asked for it; None: its schedule."""
    replay_of: str | None = None
    """The dead letter that it replays."""


@dataclass(frozen=True, slots=True)
class DeadLetterRow:
    """One dead letter as the history shows it (hip-62, Dead Letter Handling)."""

    id: str
    job_name: str
    execution_id: str | None
    attempts: int
    last_error: str | None
    input: dict[str, object]
    first_attempt: datetime
    last_attempt: datetime
    resolved: bool


@dataclass(frozen=True, slots=True)
class JobRow:
    """One job as the history shows it, deleted ones too (scratchbird §9.2)."""

    job_id: str
    job_name: str
    state: str  # ENABLED | DISABLED | PAUSED | DELETED
    schedule_type: str | None  # ONE_TIME | RECURRING
    next_run_time: datetime | None
    last_scheduled_time: datetime | None
    created_at: datetime
    created_by: str | None
    definition: dict[str, object] | None


class HistoryUnavailable(TocsinError):
    """The database of the history cannot be used as the settings name it; the text says why, and what would be right."""

    code = "history-unavailable"


class History(Protocol):
    """The read model of what has happened. It keeps its own place in each stream, moved with the rows or not at all."""

    async def offset(self, stream: Stream) -> int:
        """The last sequence of a stream that is folded in (0: none)."""
        ...

    async def record(self, stream: Stream, messages: Sequence[Recorded[Message]], *, after: int, upto: int) -> None:
        """Fold messages in and move the place from `after` to `upto`, in one transaction.

        Raises:
            SequenceConflict: the place is not at `after` any more: another recorder was faster.
        """
        ...

    async def executions(self, query: ExecutionQuery = EVERY_EXECUTION) -> Page[ExecutionRow]:
        """A page of the executions that a query asks for."""
        ...

    async def count(self, query: ExecutionQuery = EVERY_EXECUTION) -> int:
        """How many executions a query asks for, whatever its cursor and limit."""
        ...

    async def execution(self, execution_id: str) -> ExecutionRow | None:
        """One execution."""
        ...

    async def dead_letters(self, query: DeadLetterQuery = EVERY_DEAD_LETTER) -> Page[DeadLetterRow]:
        """A page of the dead letters that a query asks for."""
        ...

    async def jobs(self) -> Sequence[JobRow]:
        """Every job, deleted ones too, by name."""
        ...

    async def expire(self, now: datetime, *, after: timedelta) -> int:
        """Forget some executions and resolved dead letters that have been over for too long at `now` (UTC); how many.

        Too long is `after`, or what the job's own definition says. Ask again until none is left.
        """
        ...

    async def forget(self) -> None:
        """Forget everything, the places in this installation's streams too: it is to be recorded anew, from the first fact."""
        ...
