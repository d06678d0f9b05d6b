"""The steps of an execution: from the task to what became of it, while the execution goes on."""

from datetime import datetime
from typing import Literal, TypeAlias

from pydantic import JsonValue

from .execution import ExecutionFact
from .failure import Failure
from .message import Input, Sequence
from .trigger import TriggerKind


class Dispatched(ExecutionFact):
    """The task: the intent to run one attempt of one step, and at the same time the message that executors take.

    `upstream` holds the results of the steps that it depends on; those that would have made the task too large for a
    message are named in `upstream_left_out`. A task of an execution that was found lost and recovered says so, with the
    instant that it was scheduled for and when it was recovered (cloacina, recovery context).
    """

    type: Literal["dispatched"] = "dispatched"
    step: str
    attempt: int
    max_attempts: int
    function: str
    queue: str = "default"
    input: Input = {}
    args: tuple[JsonValue, ...] = ()
    upstream: dict[str, JsonValue] = {}
    upstream_left_out: tuple[str, ...] = ()
    timeout: float
    scheduled_time: datetime
    trigger: TriggerKind
    fence: Sequence | None = None
    token: str
    meta: dict[str, JsonValue] = {}
    is_recovery: bool = False
    original_scheduled_time: datetime | None = None
    recovery_attempt_time: datetime | None = None


class Started(ExecutionFact):
    """An executor claimed an attempt; `delivery` tells this holder from any other.

    With a `lease` the claim stands for so many seconds beyond the newest sign of life, and then the task is for another;
    without, its queue watches over that.
    """

    type: Literal["started"] = "started"
    step: str
    attempt: int
    delivery: int
    worker: str
    lease: float | None = None


ReleasedReason: TypeAlias = Literal["lease_over", "handed_back"]


class Released(ExecutionFact):
    """A claim is given up before its attempt came to an end: the same attempt is dispatched anew, and is for another."""

    type: Literal["released"] = "released"
    step: str
    attempt: int
    delivery: int
    task: Sequence
    """The sequence of the task that was claimed."""
    reason: ReleasedReason


class RetryScheduled(ExecutionFact):
    """An attempt failed and the next one will be dispatched at `next_attempt_at`."""

    type: Literal["retry-scheduled"] = "retry-scheduled"
    step: str
    attempt: int
    error: Failure
    delay: float
    next_attempt_at: datetime


class Advanced(ExecutionFact):
    """A step completed and the execution goes on."""

    type: Literal["advanced"] = "advanced"
    step: str
    attempt: int
    result: JsonValue = None


ExhaustedReason: TypeAlias = Literal["attempts", "non_retryable"]


class Exhausted(ExecutionFact):
    """A step will not be tried again, while other steps are still running."""

    type: Literal["exhausted"] = "exhausted"
    step: str
    attempt: int
    error: Failure
    reason: ExhaustedReason
