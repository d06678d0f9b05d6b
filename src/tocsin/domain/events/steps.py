"""Events of the steps of an execution: tasks, claims, retries and results."""

from datetime import datetime
from typing import Literal, TypeAlias

from pydantic import JsonValue

from .execution import ExecutionFact, ExhaustedReason
from .message import Failure, Input, Sequence, TriggerKind


class Dispatched(ExecutionFact):
    """One attempt of a step was dispatched.

    The DAG advancer stores this, and it is also the task that a worker receives.
    """

    type: Literal["dispatched"] = "dispatched"
    """The type of the event."""
    step: str
    """The name of the step."""
    attempt: int
    """The number of the attempt, counted from 1."""
    max_attempts: int
    """The number of attempts that the retry policy allows."""
    function: str
    """The function that the worker runs."""
    queue: str = "default"
    """The queue that delivers the task."""
    input: Input = {}
    """The input of the function."""
    args: tuple[JsonValue, ...] = ()
    """The positional arguments of the function."""
    upstream: dict[str, JsonValue] = {}
    """The results of the steps that this step depends on, by step."""
    upstream_left_out: tuple[str, ...] = ()
    """The steps whose results are left out because the task would be too large."""
    timeout: float
    """Seconds that the attempt may take."""
    scheduled_time: datetime
    """The instant (UTC) of the occurrence, or the time at which the trigger was stored."""
    trigger: TriggerKind
    """The cause of the execution."""
    fence: Sequence | None = None
    """The fencing token of the execution's lock; absent: the job uses no lock."""
    token: str
    """The secret that a report on this attempt must carry."""
    meta: dict[str, JsonValue] = {}
    """Metadata of the job.

    For an occurrence, also the job's name and the scheduled time (ojs-cron §6.3).
    """
    is_recovery: bool = False
    """True: the execution was lost and recovered (cloacina, recovery context)."""
    original_scheduled_time: datetime | None = None
    """After a recovery: the instant (UTC) of the occurrence."""
    recovery_attempt_time: datetime | None = None
    """After a recovery: the time (UTC) of that recovery."""


class Started(ExecutionFact):
    """A worker claimed an attempt.

    The worker, or the API for it, stores this before the function runs.
    """

    type: Literal["started"] = "started"
    """The type of the event."""
    step: str
    """The name of the step."""
    attempt: int
    """The number of the attempt, counted from 1."""
    delivery: int
    """The number of the delivery, counted from 1; it distinguishes this claim from any other."""
    worker: str
    """The name of the worker."""
    lease: float | None = None
    """Seconds after the last heartbeat until the claim expires.

    Absent: the queue itself delivers the task again.
    """


ReleasedReason: TypeAlias = Literal["lease_over", "handed_back"]


class Released(ExecutionFact):
    """A claim ended before its attempt did.

    The DAG advancer then dispatches the same attempt again. The lease keeper stores this when the visibility lease has
    expired (`lease_over`), and the API when the worker hands the task back (`handed_back`).
    """

    type: Literal["released"] = "released"
    """The type of the event."""
    step: str
    """The name of the step."""
    attempt: int
    """The number of the attempt, counted from 1."""
    delivery: int
    """The delivery number of the claim that ended."""
    task: Sequence
    """The sequence of the task that was claimed."""
    reason: ReleasedReason
    """The reason why the claim ended."""


class RetryScheduled(ExecutionFact):
    """An attempt failed and will be retried.

    The retrier stores this on the report of the failure.
    """

    type: Literal["retry-scheduled"] = "retry-scheduled"
    """The type of the event."""
    step: str
    """The name of the step."""
    attempt: int
    """The number of the attempt that failed, counted from 1."""
    error: Failure
    """The reported error."""
    delay: float
    """Seconds between the failure and the next attempt."""
    next_attempt_at: datetime
    """The time (UTC) at which the next attempt is dispatched."""


class Advanced(ExecutionFact):
    """A step completed and the execution continues.

    The DAG advancer stores this on the report of success.
    """

    type: Literal["advanced"] = "advanced"
    """The type of the event."""
    step: str
    """The name of the step."""
    attempt: int
    """The number of the attempt that succeeded, counted from 1."""
    result: JsonValue = None
    """The result that the worker reported."""


class Exhausted(ExecutionFact):
    """A step failed for good while other steps still run.

    The retrier stores this on the report of the failure.
    """

    type: Literal["exhausted"] = "exhausted"
    """The type of the event."""
    step: str
    """The name of the step."""
    attempt: int
    """The number of the last attempt, counted from 1."""
    error: Failure
    """The error of the last attempt."""
    reason: ExhaustedReason
    """The reason why no attempt follows.

    `attempts`: none is left. `non_retryable`: the error forbids a retry.
    """
