"""Messages exchanged with MQ executors: task envelopes and completions (hip-62, Integration with MQ)."""

from datetime import datetime
from typing import Literal

from pydantic import Field, JsonValue

from .message import CheckedMessage, Json, OwnMessage, Sequence, TriggerKind, constant


class EnvelopeData(OwnMessage, frozen=True, kw_only=True):
    """The task in the form of hip-62, with the fields that a completion may repeat."""

    job_name: str
    """The name of the job."""
    execution_id: str
    function: str
    """The function to run."""
    input: dict[str, Json] = constant({})
    """The input of the function."""
    args: tuple[Json, ...] = constant(())
    """The positional arguments of the function."""
    attempt: int
    timeout: int
    """Seconds that the attempt may take, rounded up."""
    step: str
    token: str
    """The secret that a completion may repeat."""
    scheduled_time: datetime
    trigger: TriggerKind
    fence: Sequence
    """A fencing token, which rises with each attempt of a task of the job. A message that is delivered again has the same token."""
    queue: str = constant("default")
    """The queue of the task."""
    tags: tuple[str, ...] = constant(())
    """The labels of the job."""
    upstream: dict[str, Json] = constant({})
    """The results of the steps that this step depends on, by step."""
    upstream_left_out: tuple[str, ...] = constant(())
    """The steps whose results are left out because the task would be too large."""
    metadata: dict[str, Json] = constant({})
    """Metadata of the job."""
    traceparent: str | None = None
    """The trace context of the attempt (W3C Trace Context); absent: no trace is made."""


class Envelope(OwnMessage, frozen=True, kw_only=True):
    """The envelope of a task on `mq.scheduled.<job>`.

    The MQ bridge stores this for each task of a bridged queue.
    """

    schema_: Literal["hanzo.mq.v1"] = constant("hanzo.mq.v1", name="schema")
    """The format of the envelope."""
    id: str
    """The id of the task: `task_<execution_id>_<step>_<attempt>`."""
    type: Literal["scheduler.execute"] = constant("scheduler.execute")
    """The type of the message."""
    source: Literal["scheduler"] = constant("scheduler")
    """The sender of the message."""
    timestamp: datetime
    """The time (UTC) at which the task was dispatched."""
    data: EnvelopeData
    """The task."""


class MqCancelData(OwnMessage, frozen=True, kw_only=True):
    """The execution that needs no more work."""

    job_name: str
    """The name of the job."""
    execution_id: str
    steps: tuple[str, ...] = ()
    """The steps that an executor may be working on."""
    status: Literal["cancelled", "failed"]
    """How the execution ended."""
    reason: str | None = None
    """Why it ended."""


class MqCancel(OwnMessage, frozen=True, kw_only=True):
    """The notice on `mq.scheduler.cancel.<job>.<execution_id>` that executors may stop.

    The MQ bridge stores this when an execution ends whose tasks are handed over and not answered. It is removed after
    some minutes. An answer that comes later changes nothing.
    """

    schema_: Literal["hanzo.mq.v1"] = constant("hanzo.mq.v1", name="schema")
    """The format of the envelope."""
    id: str
    """The id of the notice: `cancel_<execution_id>`."""
    type: Literal["scheduler.cancel"] = constant("scheduler.cancel")
    """The type of the message."""
    source: Literal["scheduler"] = constant("scheduler")
    """The sender of the message."""
    timestamp: datetime
    """The time (UTC) at which the execution ended."""
    data: MqCancelData
    """The execution."""


class Completion(CheckedMessage):
    """The answer of an MQ executor: these fields, or an envelope with them in `data`.

    Executors publish this on `mq.scheduler.complete.<job>.<execution_id>`. Any JSON object can be read, so that an answer
    that makes no sense becomes a dead letter with the reason (`mq_answer.read`). An answer needs a recognized `status`,
    or an `error`; it is never taken for a success without a status.
    """

    schema_: JsonValue = Field(default=None, alias="schema", json_schema_extra={"const": "hanzo.mq.v1"})
    """The format of the envelope, if there is one."""
    source: JsonValue = Field(default=None, json_schema_extra={"type": "string"})
    """The name of the executor in an envelope; recorded if there is no `worker`."""
    data: JsonValue = Field(default=None, json_schema_extra={"type": "object"})
    """The answer inside an envelope."""
    status: JsonValue = Field(default=None, json_schema_extra={"type": "string"})
    """The outcome in any case: `completed`, `complete`, `success`, `succeeded`, `successful`, `ok`, `done`; or `failed`,
    `fail`, `failure`, `error`, `errored`, `timeout`, `timed_out`, `cancelled`, `canceled`, `aborted`; or, before the
    outcome, `started`, `running`, `in_progress`, `progress`. Absent: failed if there is an error; otherwise the answer
    does not count.
    """
    job_name: JsonValue = Field(default=None, json_schema_extra={"type": "string"})
    """The name of the job, if the subject does not name it."""
    execution_id: JsonValue = Field(default=None, json_schema_extra={"type": "string"})
    """The id of the execution, if the subject does not name it."""
    step: JsonValue = Field(default=None, json_schema_extra={"type": "string"})
    """The name of the step; absent: the running step."""
    attempt: JsonValue = Field(default=None, json_schema_extra={"type": "integer"})
    """The number of the attempt; absent: the current one."""
    token: JsonValue = Field(default=None, json_schema_extra={"type": "string"})
    """The token of the task; if present it must match."""
    result: JsonValue = None
    """The result of a successful attempt, at most 65,536 bytes."""
    error: JsonValue = None
    """The error of a failed attempt: a text, or an object with `type`, `message` and other fields of a failure. It contradicts a
    successful status."""
    worker: JsonValue = Field(default=None, json_schema_extra={"type": "string"})
    """The name of the executor, shown with the execution."""
    progress: JsonValue = Field(default=None, json_schema_extra={"type": "number"})
    """The part of the work that is done, from 0 to 1, beside a status that is no outcome; shown with the step."""
    message: JsonValue = Field(default=None, json_schema_extra={"type": "string"})
    """What the executor does now, beside `progress`."""
    success: JsonValue = None
    """A value other than true contradicts a successful status; it is no status by itself."""
    exit_code: JsonValue = None
    """A number other than 0 contradicts a successful status; it is no status by itself."""
