"""Messages exchanged with MQ executors: task envelopes and completions (hip-62, Integration with MQ)."""

from datetime import datetime
from typing import ClassVar, Literal

from pydantic import ConfigDict, Field, JsonValue

from .message import Failure, Input, Message, Sequence, TriggerKind


class EnvelopeData(Message):
    """The task in the form of hip-62, with the fields that a completion may repeat."""

    WRITES_DEFAULTS: ClassVar[bool] = True

    job_name: str
    """The name of the job."""
    execution_id: str
    """The id of the execution."""
    function: str
    """The function to run."""
    input: Input = {}
    """The input of the function."""
    args: tuple[JsonValue, ...] = ()
    """The positional arguments of the function."""
    attempt: int
    """The number of the attempt, counted from 1."""
    timeout: float
    """Seconds that the attempt may take."""
    step: str
    """The name of the step."""
    token: str
    """The secret that a completion may repeat."""
    scheduled_time: datetime
    """The instant (UTC) of the occurrence, or the time at which the trigger was stored."""
    trigger: TriggerKind
    """The cause of the execution."""
    fence: Sequence | None = None
    """The fencing token of the execution's lock; absent: the job uses no lock."""
    upstream: dict[str, JsonValue] = {}
    """The results of the steps that this step depends on, by step."""
    upstream_left_out: tuple[str, ...] = ()
    """The steps whose results are left out because the task would be too large."""
    metadata: dict[str, JsonValue] = {}
    """Metadata of the job."""


class Envelope(Message):
    """The envelope of a task on `mq.scheduled.<job>`.

    The MQ bridge stores this for each task of a bridged queue.
    """

    model_config = ConfigDict(serialize_by_alias=True, validate_by_name=True, validate_by_alias=True)
    WRITES_DEFAULTS: ClassVar[bool] = True

    schema_: Literal["hanzo.mq.v1"] = Field(default="hanzo.mq.v1", alias="schema")
    """The format of the envelope."""
    id: str
    """The id of the task: `task_<execution_id>_<step>_<attempt>`."""
    type: Literal["scheduler.execute"] = "scheduler.execute"
    """The type of the message."""
    source: Literal["scheduler"] = "scheduler"
    """The sender of the message."""
    timestamp: datetime
    """The time (UTC) at which the task was dispatched."""
    data: EnvelopeData
    """The task."""


class Completion(Message):
    """The answer of an MQ executor. All fields are optional.

    Executors publish this on `mq.scheduler.complete.<job>.<execution_id>`.
    """

    status: Literal["completed", "success", "succeeded", "ok", "failed", "failure", "error"] | None = None
    """The outcome; absent: failed if there is an error, otherwise completed."""
    step: str | None = None
    """The name of the step; absent: the running step."""
    attempt: int | None = None
    """The number of the attempt; absent: the current one."""
    token: str | None = None
    """The token of the task; if present it must match."""
    result: JsonValue = None
    """The result of a successful attempt."""
    error: Failure | str | None = None
    """The error of a failed attempt."""

    @property
    def has_failed(self) -> bool:
        """Return whether the attempt failed."""
        return self.status in {"failed", "failure", "error"} or (self.status is None and self.error is not None)
