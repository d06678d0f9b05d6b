"""Base classes and shared parts of all events and inputs."""

from collections.abc import Reversible
from datetime import datetime
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Generic, Literal, Self, TypeAlias, TypeVar, cast

import msgspec
from pydantic import ConfigDict, Field, JsonValue
from typing_extensions import override

from .. import json_codec
from ..documented_model import DocumentedModel
from ..identity import IdentityKind
from ..text import utc_text

if TYPE_CHECKING:
    from pydantic import GetJsonSchemaHandler
    from pydantic.json_schema import JsonSchemaValue
    from pydantic_core import CoreSchema

Input: TypeAlias = dict[str, JsonValue]
"""The named arguments of a function."""
Sequence: TypeAlias = Annotated[int, Field(ge=0)]
"""The position of a message in its stream."""

TriggerKind: TypeAlias = Literal["cron", "manual", "api", "event", "replay", "recovery", "backfill"]
"""The cause of an execution."""
TriggerSource: TypeAlias = Literal["manual", "api", "event", "replay", "recovery", "backfill"]
"""The trigger kinds that a trigger message may name; `cron` belongs to the scheduler alone."""
ReleasedReason: TypeAlias = Literal["lease_over", "handed_back"]
"""Why a claim ended before its attempt did."""
OCCURRENCES: Final = frozenset({"cron", "backfill"})
"""Triggers of executions for an instant that the schedule names; a replay may be one too."""
COMPENSATING_TRIGGERS: Final = frozenset({"replay", "backfill"})
"""Triggers by which an operator runs work that was missed or that failed."""


_DESCRIPTIONS: Final = {
    "v": "The version of the format.",
    "type": "The type of the event.",
    "job": "The name of the job.",
    "execution_id": "The id of the execution.",
    "step": "The name of the step.",
    "attempt": "The number of the attempt, counted from 1.",
    "trigger": "The cause of the execution.",
    "scheduled_time": "The instant (UTC) of the occurrence, or the time at which the trigger was stored.",
    "cron_name": "The name of the job.",
    "cron_expression": "The schedule of the job as written.",
    "timezone": "The IANA time zone of the schedule.",
}
"""The descriptions of fields that have no docstring, because they mean the same in every message."""


class Message(DocumentedModel):
    """A message: immutable, and open to fields that a newer version adds."""

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)

    IS_SHARED: ClassVar[bool] = False
    """True: many messages repeat the same part; equal bodies are read as one object, and each object is encoded once."""
    WRITES_DEFAULTS: ClassVar[bool] = False
    """True: the body contains fields that have their default, for readers that do not know Tocsin's schemas."""

    @classmethod
    @override
    def __get_pydantic_json_schema__(cls, schema: "CoreSchema", handler: "GetJsonSchemaHandler") -> "JsonSchemaValue":
        reference = super().__get_pydantic_json_schema__(schema, handler)
        for name, written in handler.resolve_ref_schema(reference).get("properties", {}).items():
            if name in _DESCRIPTIONS:
                written.setdefault("description", _DESCRIPTIONS[name])
        return reference

    def encode(self) -> bytes:
        """Return the message body: JSON without absent fields, and without fields that have their default."""
        return json_codec.written(self)

    @classmethod
    def trusted(cls, **values: Any) -> Self:  # noqa: ANN401 - the fields of any message
        """Build a message from values that were validated before, without validating them again.

        `model_construct` does the same, but takes four times as long. Pass every field whose default is a collection:
        defaults are shared. Every field counts as given, as in a message that was read.
        """
        defaults, fields = _defaults(cls)
        return json_codec.filled(cls, {**defaults, **values}, fields)

    def changed(self, **values: Any) -> Self:  # noqa: ANN401 - as in `trusted`
        """Return a copy with other values, as `trusted` does."""
        return json_codec.filled(type(self), {**vars(self), **values}, _defaults(type(self))[1])


class VersionedMessage(Message):
    """A message that names the version of its format."""

    v: Literal[1] = 1


class ReadableMessage(Message):
    """A message for readers that do not know Tocsin's schemas."""

    WRITES_DEFAULTS: ClassVar[bool] = True


M = TypeVar("M", bound=Message)
M_co = TypeVar("M_co", bound=Message, covariant=True)


@cache
def _defaults(model: type[Message]) -> tuple[dict[str, object], set[str]]:
    """Return the defaults of optional fields, and the names of all fields.

    pydantic copies the names before it changes them.
    """
    fields = model.model_fields
    optional = ((name, field) for name, field in fields.items() if not field.is_required())
    return {name: field.get_default(call_default_factory=True) for name, field in optional}, {*fields}


class Recorded(msgspec.Struct, Generic[M_co], frozen=True):
    """A message as the log stored it.

    `sequence` is its position in the stream, `time` (UTC) is by the log's clock.
    """

    message: M_co
    subject: str
    sequence: int
    time: datetime
    message_id: str | None = None


def newest_of(facts: Reversible[Recorded[Message]], kind: type[M]) -> Recorded[M] | None:
    """Return the newest event of a type, if any; `facts` are oldest first."""
    newest = next((recorded for recorded in reversed(facts) if isinstance(recorded.message, kind)), None)
    return cast("Recorded[M] | None", newest)


class Foreign(Message):
    """A message in a stream of decisions that no stage, API or operator stored (`subjects.foreign`).

    It is never written, and has no schema. It stands for the stored message where a scope is read: no fold changes by it, but the
    guard of the next append counts its sequence.
    """

    reason: str
    """The reason why no stage can have stored it."""


class Actor(Message):
    """The identity that made a request, recorded for the audit trail (hip-62, Audit Trail)."""

    identity: str
    """The name of the user, token or program."""
    kind: IdentityKind | None = None
    """The door through which the identity came; absent: a stage."""
    source: str | None = None
    """Where the request came from: a network address or the name of a program."""

    @property
    def full_name(self) -> str:
        """Return the name with its kind, if it has one."""
        return self.identity if self.kind is None else f"{self.kind}:{self.identity}"


class Death(Message):
    """The loss of a worker that had a task."""

    agent: str
    """The name of the worker, and the id of its process after a slash if it is an agent."""
    at: datetime
    """The time (UTC) at which it was taken for lost."""
    last_heartbeat: datetime | None = None
    """The time (UTC) at which the agent was heard last; absent: unknown, or the worker is no agent."""

    def __str__(self) -> str:
        heard = "" if self.last_heartbeat is None else f", heard last at {utc_text(self.last_heartbeat, 'seconds')}"
        return f"{self.agent} at {utc_text(self.at, 'seconds')}{heard}"


class Failure(Message):
    """The reason why an attempt or an execution failed."""

    type: str
    """The kind of error, such as the exception class; retry policies match it."""
    message: str = ""
    """The error text for people."""
    traceback: str | None = None
    """The traceback of the handler, if the worker sent one."""
    retryable: bool = True
    """False: the worker forbids a retry."""
    retry_after: float | None = None
    """Seconds before which a retry would fail too; the policy's `max_delay` limits them. None: the policy decides alone."""
    code: str | None = None
    """The error code of the Open Job Spec (ojs-errors)."""
    details: dict[str, JsonValue] | None = None
    """Structured error data from the worker."""
    deaths: tuple[Death, ...] = ()
    """The workers that were lost with a task of the step, if the last of them is the reason; oldest first."""

    @property
    def summary(self) -> str:
        """Return the failure in one line, without its traceback."""
        return f"{self.type}: {self.message}" if self.message else self.type


class StartRate(Message):
    """The rate at which tasks start: a token bucket for each `key`.

    It counts the starts of all tasks with the same fields together.
    """

    key: str
    """The name by which starts are counted together."""
    limit: int
    """The number of tasks that start in each `per`."""
    per: float
    """Seconds."""
    burst: int
    """The number of tasks that may start at once after a pause."""
