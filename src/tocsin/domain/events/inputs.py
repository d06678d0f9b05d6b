"""Inputs: requests and reports.

A stage decides on each input, and only the decision is an event.
"""

from datetime import datetime
from typing import Final, Literal, Self

from pydantic import AwareDatetime, Field, JsonValue, model_validator

from ..definition import JobDefinition
from .message import (
    Actor,
    CheckedMessage,
    Failure,
    Input,
    Json,
    OwnMessage,
    Sequence,
    StartRate,
    TriggerSource,
    VersionedMessage,
    constant,
)
from .plan import StepMeta, Workflow
from .triggers import EventReference
from .uniqueness import UniqueRule

_SHARED_NAMES: Final = frozenset({"priority", "traceparent"})
"""Names of fields that the input of a job often has too."""


class EventOrigin(CheckedMessage):
    """The event that requests an execution, as the event listener found it."""

    source: tuple[str, ...]
    """The identity of its source among those of the job. With the idempotency key it names one execution."""
    subject: str
    """The subject of the event."""
    refusal_code: str | None = None
    """The code of the reason why the event has no condition, key or input; absent: it starts an execution."""
    refusal: str | None = None
    """The text of this reason."""
    event: EventReference | None = None
    """The place of the event."""
    key: str | None = None
    """The key of the event, if several events start one execution; absent: it is the idempotency key, or the event has no key."""


class Trigger(CheckedMessage):
    """A request to run a job now. All fields are optional.

    Clients publish this on `cron.trigger.<job>`; the API stores it too. An object with none of these fields is the input
    itself: `{"day": "2026-02-11"}` means `{"input": {"day": "2026-02-11"}}`. An object with one of them is never an input. `priority`
    and `traceparent` do not count, because inputs often have them: they need another field beside them, such as `input`.
    """

    v: Literal[1] = 1
    type: Literal["trigger"] = "trigger"
    """The type of the input."""
    trigger: TriggerSource = "event"
    """The cause of the request."""
    input: Input | None = None
    """Keys that override the input of the definition."""
    args: tuple[JsonValue, ...] | None = None
    """Positional arguments that replace those of the definition."""
    by: Actor | None = None
    """The identity that made the request."""
    reason: str | None = None
    """The reason that the caller gave."""
    idempotency_key: str | None = Field(default=None, min_length=1, max_length=255)
    """Triggers of a job with one key make one execution, until 24 hours after its end.

    Without a key, the log itself drops a message that repeats a `Nats-Msg-Id` within two minutes.
    """
    priority: int | None = Field(default=None, ge=-100, le=100, strict=True)
    """The priority of the execution's tasks, in place of the job's. A program outside may lower it, and not raise it."""
    backfill: str | None = Field(default=None, min_length=1, max_length=255)
    """The name of the backfill; with `scheduled_time` it identifies one execution."""
    scheduled_time: AwareDatetime | None = None
    """The past instant for which the backfill runs the job."""
    traceparent: str | None = None
    """The trace that the execution continues (W3C Trace Context). A header of this name wins; a value that is not valid is ignored."""
    event_trigger: EventOrigin | None = None
    """The event for which the event listener requests this. That of a program outside is ignored."""

    @model_validator(mode="before")
    @classmethod
    def _takes_bare_input(cls, body: object) -> object:
        if not isinstance(body, dict) or not body:
            return body
        if (cls.model_fields.keys() - _SHARED_NAMES).isdisjoint(body):
            is_empty = body.keys() <= _SHARED_NAMES and all(value is None for value in body.values())
            return {} if is_empty else {"input": body}
        if any(body.get(name) is not None for name in _SHARED_NAMES) and body.get("input") is None:
            body = {**body, "input": {}}  # so that what is written of it has a second field too
        if isinstance(body.get("traceparent"), str | None):
            return body
        return {**body, "traceparent": None}  # a wrong trace context costs the trace alone

    @model_validator(mode="after")
    def _backfill_has_instant(self) -> Self:
        if (self.backfill is None) != (self.scheduled_time is None):
            raise ValueError("`backfill` and `scheduled_time` belong together: give both or neither")
        return self


class Enqueued(CheckedMessage):
    """A request to run an unregistered job once (ojs-core, PUSH).

    The API stores this with the id of the execution.
    """

    v: Literal[1] = 1
    type: Literal["enqueued"] = "enqueued"
    """The type of the input."""
    execution_id: str
    definition: JobDefinition
    """The definition to run; its overlap policy must be `allow`."""
    start_at: datetime | None = None
    """The time (UTC) before which no task is dispatched."""
    expires_at: datetime | None = None
    """The time (UTC) from which on no task is dispatched any more."""
    by: Actor | None = None
    """The identity that made the request."""
    traceparent: str | None = None
    """The trace that the execution continues (W3C Trace Context); a value that is not valid is ignored."""
    unique: UniqueRule | None = None
    """The rule of a unique job; absent: the job is not unique."""
    workflow: Workflow | None = None
    """The workflow that decides when a step of the definition is ready; absent: the dependencies of the steps do."""
    step_meta: tuple[StepMeta, ...] = ()
    """Metadata of single steps of a workflow."""
    rate: StartRate | None = None
    """The rate at which its tasks and others start; absent: unlimited."""

    @model_validator(mode="after")
    def _needs_no_lock(self) -> Self:
        if self.definition.overlap_policy != "allow":
            raise ValueError("`definition.overlap_policy` must be `allow`: an unregistered job has no lock")
        return self


class CancelRequest(CheckedMessage):
    """A request to cancel an execution. All fields are optional.

    Clients publish this on `cron.cancel.<job>.<execution>`.
    """

    v: Literal[1] = 1
    type: Literal["cancel"] = "cancel"
    """The type of the input."""
    by: Actor | None = None
    """The identity that made the request."""
    reason: str | None = None
    """The reason that the caller gave."""


class ProposedEvent(OwnMessage, frozen=True, kw_only=True):
    """An event that a request proposes."""

    subject: str
    body: str
    """The fields, as JSON."""


class ChangeRequest(VersionedMessage, frozen=True, kw_only=True):
    """A decision of an operator or a program, for the registrar to store.

    The registrar stores exactly these events, unless a scope has changed since.
    """

    type: Literal["change"] = constant("change")
    """The type of the input."""
    about: str
    """The second token of the scopes: the job, the queue or the agent."""
    id: str
    """The id of the request."""
    events: tuple[ProposedEvent, ...]
    """The events, in order."""
    expect: dict[str, Sequence]
    """The number of the newest event of each scope when the events were decided; 0: it had none."""
    since: datetime
    """The time (UTC) at which they were decided."""
    proof: str
    """The proof that a process with the key of the installation proposes them."""


class Report(VersionedMessage, frozen=True, kw_only=True):
    """The outcome of one attempt, as its worker reports it.

    A worker stores this, and the MQ bridge and the API store it for executors outside.
    """

    type: Literal["report"] = constant("report")
    """The type of the input."""
    job: str
    execution_id: str
    outcome: Literal["completed", "failed", "extended"]
    """The outcome of the attempt; `extended`: it goes on, and a heartbeat extends its lease."""
    step: str
    attempt: int
    token: str
    """The token of the task."""
    delivery: int | None = None
    """The delivery number of the claim; absent: the current one."""
    result: Json = None
    """The result of a successful attempt."""
    error: Failure | None = None
    """The error of a failed attempt."""
    lease: float | None = None
    """Seconds from this heartbeat until the lease ends, for the outcome `extended`."""
    worker: str | None = None
    """The name of the worker."""
    claim: Sequence | None = None
    """The sequence of the `started` event of this claim."""
    proof: str | None = None
    """The secret that proves that the report is of the worker of `claim`, or of a stage; without it, no stage decides on the report."""
    traceparent: str | None = None
    """The trace context of the task, for log lines alone; absent: the task has none, or a stage made the report."""
