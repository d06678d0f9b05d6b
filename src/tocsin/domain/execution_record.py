"""The record of an execution, a row of the history, and last runs of jobs."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import msgspec

from .events import JobState

Status: TypeAlias = Literal["pending", "running", "completed", "failed", "cancelled", "skipped"]

Phase: TypeAlias = Literal["active", "retryable", "scheduled"]

UNKNOWN_TRIGGER: Final = "unknown"
"""The trigger of an execution without a readable event that names it."""

MAX_TEXT: Final = 500
"""Characters of the error or the reason of a last run."""
_MILLISECOND: Final = timedelta(milliseconds=1)
OPEN: Final = frozenset({"pending", "running"})
"""The statuses of executions and steps that are not over."""
_ENDS: Final[Mapping[Status, JobState]] = {"completed": "completed", "failed": "discarded", "cancelled": "cancelled"}


class StepRecord(msgspec.Struct, gc=False):
    """One step: its first start, its last end, and its last failure."""

    status: Status = "pending"
    attempt: int = 0
    started_at: datetime | None = None
    ended_at: datetime | None = None
    error: str | None = None
    worker: str | None = None
    result: Any = None
    phase: Phase | None = None
    """What an open step waits for, or that a worker has it; None: a worker may take it, or it is over."""

    @property
    def duration_ms(self) -> int | None:
        """The time from the first start to the last end, if there are both."""
        if self.started_at is None or self.ended_at is None:
            return None
        return round((self.ended_at - self.started_at).total_seconds() * 1_000)


class Recoveries(NamedTuple):
    """The number of recoveries of an execution, by their outcome."""

    tried: int = 0
    successful: int = 0
    """Those after which a worker had the execution."""
    failed: int = 0
    """Those after which the execution was lost again, or failed."""
    abandoned: int = 0
    """1: it was lost for good."""


NEVER_LOST: Final = Recoveries()


class ExecutionRecord(msgspec.Struct, gc=False):
    """One execution.

    `started_at` is always present (hip-62): until a step starts it is the time of the admission, and before that the
    time of the first event. `attempt` is the highest of any step, `worker` the last to claim a step, and `error` the
    last failure ("Type: message"), even if a later attempt succeeded. `reason` belongs to a skip or a cancellation,
    `created_by` is the identity that requested the execution, `replay_of` the dead letter that it replays, and `result`
    the result of its last step.
    """

    job: str
    execution_id: str
    trigger: str
    scheduled_time: datetime
    started_at: datetime
    completed_at: datetime | None = None
    status: Status = "pending"
    attempt: int = 1
    worker: str | None = None
    error: str | None = None
    steps: dict[str, StepRecord] = {}
    error_type: str | None = None
    traceback: str | None = None
    reason: str | None = None
    result: Any = None
    tags: tuple[str, ...] = ()
    created_by: str | None = None
    replay_of: str | None = None
    definition: int | None = None
    """The sequence of its definition; 0: the job was not registered; None: unknown, or its trigger was refused."""
    agent: str | None = None
    """The id of the agent's process that claimed a step last; None: no step was claimed, or the worker is no agent."""
    shard: str | None = None
    occurrence_id: str | None = None
    """The id under which it was fanned out; None: it stands for itself."""
    start_delay_ms: int | None = None
    """The milliseconds by which its job's jitter delayed its start; None: none."""
    queue: str | None = None
    """The queue of its first step; None: it is unknown."""
    was_handed_over: bool = False
    """Whether a worker claimed a step, or reported on it."""
    recoveries: Recoveries = NEVER_LOST

    @property
    def is_recovering(self) -> bool:
        """Return whether it was lost, and no worker has had it since."""
        tried, successful, failed, _ = self.recoveries
        return self.completed_at is None and tried > successful + failed

    @property
    def job_state(self) -> JobState | None:
        """Return its state as a job of the Open Job Spec; None: it was skipped."""
        if self.status not in OPEN:
            return _ENDS.get(self.status)
        phases = [step.phase for step in self.steps.values() if step.status in OPEN]
        if "active" in phases:
            return "active"
        return "retryable" if "retryable" in phases else "scheduled" if "scheduled" in phases else "available"

    @property
    def has_started(self) -> bool:
        """Return whether a worker claimed a step."""
        for step in self.steps.values():  # noqa: SIM110 - `any` takes four times as long, and each event is read
            if step.started_at is not None:
                return True
        return False

    @property
    def shown_start(self) -> datetime | None:
        """Return the time of the first start; None: no worker has started a step."""
        return self.started_at if self.has_started or self.status == "running" else None

    @property
    def duration_ms(self) -> int | None:
        """Return the milliseconds from the first start to the end; None without both."""
        if self.completed_at is None or not self.has_started:
            return None
        return max(0, (self.completed_at - self.started_at) // _MILLISECOND)


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
    """Return the last run of each job with executions that a batch ends.

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
            error=run.error and run.error[:MAX_TEXT],
            reason=run.reason and run.reason[:MAX_TEXT],
            definition=run.definition or 0,
        )
        for job, (ended_at, run) in last.items()
    }
