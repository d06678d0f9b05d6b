"""What executors outside are told, and answer (hip-62, Integration with MQ)."""

from datetime import datetime
from typing import Literal

from pydantic import ConfigDict, Field, JsonValue

from .failure import Failure
from .message import Input, Message, Sequence
from .trigger import TriggerKind


class EnvelopeData(Message):
    """The task, as hip-62 writes it, and what an answer may repeat."""

    job_name: str
    execution_id: str
    function: str
    input: Input = {}
    args: tuple[JsonValue, ...] = ()
    attempt: int
    timeout: float
    step: str
    token: str
    scheduled_time: datetime
    trigger: TriggerKind
    fence: Sequence | None = None
    upstream: dict[str, JsonValue] = {}
    upstream_left_out: tuple[str, ...] = ()
    metadata: dict[str, JsonValue] = {}


class Envelope(Message):
    """The MQ envelope on `mq.scheduled.<job>`."""

    model_config = ConfigDict(serialize_by_alias=True, validate_by_name=True, validate_by_alias=True)

    schema_: Literal["hanzo.mq.v1"] = Field(default="hanzo.mq.v1", alias="schema")
    id: str
    type: Literal["scheduler.execute"] = "scheduler.execute"
    source: Literal["scheduler"] = "scheduler"
    timestamp: datetime
    data: EnvelopeData


class Completion(Message):
    """An answer on `mq.scheduler.complete.<job>.<execution_id>`.

    Everything may be left out: without a status it failed if it has an error, without a step the one in flight is meant,
    without an attempt the current one. A token, where given, must be the task's.
    """

    status: Literal["completed", "success", "succeeded", "ok", "failed", "failure", "error"] | None = None
    step: str | None = None
    attempt: int | None = None
    token: str | None = None
    result: JsonValue = None
    error: Failure | str | None = None

    @property
    def has_failed(self) -> bool:
        """Whether it says that the attempt failed."""
        return self.status in {"failed", "failure", "error"} or (self.status is None and self.error is not None)
