"""Events of unique keys: which executions of an unregistered job have a key."""

from datetime import datetime
from typing import Annotated, Final, Literal, TypeAlias

from pydantic import Field

from .execution import ExecutionFact
from .message import CheckedMessage, OwnMessage, Sequence, VersionedMessage, constant

JobState: TypeAlias = Literal[
    "scheduled", "available", "pending", "active", "retryable", "completed", "cancelled", "discarded"
]
"""A state of a job of the Open Job Spec (ojs-core §6)."""
OnConflict: TypeAlias = Literal["reject", "replace", "replace_except_schedule", "ignore"]
UNIQUE_KEY: Final = r"^[0-9a-f]{64}$"
OPEN_STATES: Final[tuple[JobState, ...]] = ("available", "active", "scheduled", "retryable", "pending")
ENDED_STATES: Final[frozenset[JobState]] = frozenset({"completed", "cancelled", "discarded"})


WaitOutcome: TypeAlias = Literal["met", "dependency_missing", "dependency_failed", "queue_full"]


class DependencyRun(OwnMessage, frozen=True, kw_only=True):
    """The run of another job that decided on a dependency."""

    job: str
    since: datetime
    """The beginning (UTC) of the window, which itself does not belong to it."""
    execution_id: str | None = None
    """The last run in the window; absent: there was none."""
    ended: Literal["completed", "failed", "cancelled"] | None = None
    """The end of that run; absent: it had not ended."""
    hidden: bool = False
    """Whether the viewers of the job did not let the execution's job learn of its runs. Then no run is named."""


class DependenciesSettled(ExecutionFact, frozen=True, kw_only=True):
    """An execution waits for other jobs no longer.

    The dependency keeper stores this when the last run of each job has ended as wanted, or when the time is over. The lock
    keeper then admits or skips the execution.
    """

    type: Literal["dependencies-settled"] = constant("dependencies-settled")
    outcome: WaitOutcome
    """`met`: it may run. `dependency_failed`: the last run of a job failed. `dependency_missing`: a job did not run to its end, or is hidden.
    `queue_full`: as many executions of its job as may wait did so already."""
    runs: tuple[DependencyRun, ...] = ()
    """The last run of each job, in the order of the definition; none with `queue_full`."""


class UniqueRule(CheckedMessage):
    """The rule of a unique job (ojs-unique-jobs §2): no other job may have its key."""

    key: Annotated[str, Field(pattern=UNIQUE_KEY)]
    """The SHA-256 of the dimensions, in hexadecimal digits."""
    states: tuple[JobState, ...] = OPEN_STATES
    """The states in which an earlier job with the key is a duplicate."""
    period: float | None = None
    """Seconds after which an earlier job with the key is no duplicate any more; absent: no limit."""
    on_conflict: OnConflict = "reject"
    """The strategy for a new job that is a duplicate."""


class KeyHolder(OwnMessage, frozen=True, kw_only=True):
    """An execution that took a key."""

    execution_id: str
    taken: Sequence
    """The sequence of the event by which it took the key."""
    enqueued_at: datetime
    """The time (UTC) at which the job was enqueued."""
    start_at: datetime | None = None
    """The time (UTC) before which no task is dispatched; absent: at once."""
    replaces: tuple[str, ...] = ()
    """The executions that are cancelled for it."""


class UniqueFact(VersionedMessage, frozen=True, kw_only=True):
    """An event about a unique key."""

    job: str
    key: str
    """The key."""


class KeyTaken(UniqueFact, frozen=True, kw_only=True):
    """An execution took a unique key, and begins.

    The planner stores this before the first event of the execution. Of several jobs that are enqueued at the same time, the guard of
    the key lets one take it. The event names the earlier executions that may still count, so the newest event is the whole state.
    """

    type: Literal["taken"] = constant("taken")
    execution_id: str
    enqueued_at: datetime
    """The time (UTC) at which the job was enqueued."""
    start_at: datetime | None = None
    """The time (UTC) before which no task is dispatched; under `replace_except_schedule` that of the replaced job."""
    states: tuple[JobState, ...] = OPEN_STATES
    """The states in which an earlier execution was a duplicate."""
    period: float | None = None
    """Seconds after which an earlier execution was no duplicate any more; absent: no limit."""
    replaces: tuple[str, ...] = ()
    """The executions that are cancelled before it begins."""
    others: tuple[KeyHolder, ...] = ()
    """Earlier executions with the key that are open, or count after their end."""
