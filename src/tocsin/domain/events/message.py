"""Base classes and shared parts of all events and inputs."""

from collections.abc import Mapping, Reversible
from datetime import datetime
from functools import cache
from inspect import get_annotations
from itertools import islice, repeat
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Final,
    Generic,
    Literal,
    Self,
    TypeAlias,
    TypeVar,
    cast,
    get_args,
)

import msgspec
from msgspec.structs import asdict, force_setattr
from pydantic import Field, GetPydanticSchema, JsonValue, ValidationError, create_model
from pydantic_core import core_schema
from typing_extensions import override

from .. import json_codec
from ..definition.errors import MAX_PROBLEMS, problems
from ..definition.fields import STORED
from ..documented_model import DocumentedModel
from ..errors import TocsinError
from ..identity import IdentityKind
from ..text import utc_text

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler, ValidatorFunctionWrapHandler
    from pydantic.json_schema import JsonSchemaValue
    from pydantic_core import CoreSchema

    Json = JsonValue
else:
    Json = Annotated[Any, GetPydanticSchema(lambda _, handler: handler(JsonValue))]
Input: TypeAlias = dict[str, JsonValue]
"""The named arguments of a function, as a door takes them."""
Sequence: TypeAlias = Annotated[int, msgspec.Meta(ge=0), Field(ge=0)]
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
    "by": "The operator.",
    "reason": "The operator's reason.",
    "data": "The details.",
    "event": "The type of the event.",
    "timestamp": "The time (UTC) of the event.",
    "channel": "The name of the channel.",
}
"""The descriptions of fields that have no docstring, because they mean the same in every message."""


class InvalidMessage(TocsinError, ValueError):
    """A message has a value that no reader accepts. The text names it."""

    code = "invalid-message"


class Message:
    """A message: immutable, and open to fields that a newer version adds."""

    __slots__ = ()

    def encode(self) -> bytes:
        """Return the body: JSON without absent fields and without defaults."""
        return json_codec.written(self)

    def changed(self, **values: Any) -> Self:  # noqa: ANN401 - the fields of any message
        """Return a copy with other values, which are not validated."""
        copy: Self = cast("Any", self).__replace__(**values)
        return copy

    def document(self, **options: Any) -> dict[str, Any]:  # noqa: ANN401 - options of pydantic
        """Return the fields as JSON, named as in a body.

        `options`: see pydantic's `model_dump`.
        """
        fields: dict[str, Any] = as_model(self).model_dump(mode="json", **options)
        return fields


M = TypeVar("M", bound=Message)
M_co = TypeVar("M_co", bound=Message, covariant=True)


class CheckedMessage(
    DocumentedModel,
    Message,
    frozen=True,
    defer_build=True,
    validate_by_name=True,
    validate_by_alias=True,
    serialize_by_alias=True,
):
    """A message whose fields are validated when it is made."""

    @classmethod
    @override
    def __get_pydantic_json_schema__(cls, schema: "CoreSchema", handler: "GetJsonSchemaHandler") -> "JsonSchemaValue":
        reference = super().__get_pydantic_json_schema__(schema, handler)
        for name, written in handler.resolve_ref_schema(reference).get("properties", {}).items():
            if name in _DESCRIPTIONS:
                written.setdefault("description", _DESCRIPTIONS[name])
        return reference


class OwnMessage(
    msgspec.Struct, Message, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, gc=False
):
    """A message that Tocsin alone makes.

    The fields are validated when the message is read, and before it is stored. `validated` reads bodies with unknown fields.
    """

    def __post_init__(self) -> None:
        """Read the parts kept apart, and put the default itself for an equal value."""
        for name, part, default in _odd_fields(type(self)):
            value = getattr(self, name)
            if type(value) is msgspec.Raw:
                force_setattr(self, name, json_codec.part(part, value))
            elif value is not default and value == default:
                force_setattr(self, name, default)

    @override
    def encode(self) -> bytes:
        """Return the body, after a look that it reads back as this message.

        If the body reads back otherwise, pydantic converts the values or refuses the message.

        Raises:
            InvalidMessage: a value does not fit its field, or is not JSON.
        """
        kind = type(self)
        try:
            body = json_codec.written(self)
            if json_codec.read(kind, body) == self:
                return body
        except _UNWRITABLE:
            pass
        try:
            body = json_codec.written(validated(kind, asdict(self)))
            validated(kind, body)
        except ValidationError as error:
            wrong = islice(problems(error), MAX_PROBLEMS)
            raise InvalidMessage(f"{kind.__name__}: {'; '.join(map(str, wrong))}") from error
        except _UNWRITABLE as error:
            raise InvalidMessage(f"{kind.__name__}: {error}") from error
        return body

    @classmethod
    def __get_pydantic_core_schema__(cls, source: object, handler: "GetCoreSchemaHandler") -> "CoreSchema":
        """Let models have fields of this class, and describe it as a model (`model_of`)."""
        schema = handler.generate_schema(model_of(cls))

        def take(value: Any, validate: "ValidatorFunctionWrapHandler") -> Any:  # noqa: ANN401 - any input
            return cls(**vars(validate(asdict(value) if isinstance(value, cls) else value)))

        written = core_schema.plain_serializer_function_ser_schema(as_model, return_schema=schema)
        return core_schema.no_info_wrap_validator_function(take, schema, serialization=written)


_UNWRITABLE: Final = (TypeError, ValueError, RecursionError)
"""Errors of values that are not JSON."""


@cache
def _odd_fields(kind: type[OwnMessage]) -> tuple[tuple[str, Any, Any], ...]:
    """Return the fields that `__post_init__` changes, with their parts and defaults."""
    alone = (bool, type(None), type(msgspec.NODEFAULT))
    found = ((one.name, _apart(one.type), one.default) for one in msgspec.structs.fields(kind))
    return tuple((*names, one) for *names, one in found if names[1] or (one != () and not isinstance(one, alone)))


def _apart(annotation: Any) -> Any:  # noqa: ANN401 - a type as annotated, and a class
    """Return the class of a part that is kept; None: of other fields."""
    return annotation.__metadata__[0] if getattr(annotation, "__origin__", None) is msgspec.Raw else None


def constant(value: Any, *, name: str | None = None) -> Any:  # noqa: ANN401 - the default of a field
    """Declare a field whose default is written, too; `name`: that in a body."""
    made = value.copy if isinstance(value, dict) else repeat(value).__next__  # no call of Python for each message
    return msgspec.field(default_factory=made, name=name)


@cache
def model_of(kind: Any) -> Any:  # noqa: ANN401 - a class of messages, and of models
    """Return the pydantic model of a class, by which its fields are validated and described."""
    if not issubclass(kind, OwnMessage):
        return kind
    fields: dict[str, Any] = {"DECLARED_BY": (ClassVar[Any], kind.__mro__)}
    for field in msgspec.structs.fields(kind):
        default = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
        declared = Field(... if field.required else default, alias=field.encode_name)
        fields[field.name] = _apart(field.type) or field.type, declared
    return create_model(
        kind.__name__, __base__=CheckedMessage, __module__=kind.__module__, __doc__=kind.__doc__, **fields
    )


def as_model(message: Any) -> Any:  # noqa: ANN401 - a message, and a model
    """Return a message as its pydantic model, without validation."""
    return model_of(type(message)).model_construct(**asdict(message)) if isinstance(message, OwnMessage) else message


def type_of(kind: type[Message]) -> str:
    """Return the value of the field `type` of a class; empty: it has none."""
    return next(iter(get_args(get_annotations(kind).get("type"))), "")


def validated(kind: type[M], content: bytes | Mapping[str, Any]) -> M:
    """Return a message of a body or of fields, read by pydantic, which explains.

    Raises:
        pydantic.ValidationError: the content does not fit.
    """
    model = model_of(cast("Any", kind))
    validator = model.__pydantic_validator__  # `model_validate` does the same, but takes half as long again
    read = validator.validate_json if isinstance(content, bytes) else validator.validate_python
    message: M = read(content, context=STORED)
    return message if model is kind else kind(**vars(message))


class VersionedMessage(OwnMessage, frozen=True, kw_only=True):
    """A message that names the version of its format."""

    v: Literal[1] = constant(1)


class Recorded(msgspec.Struct, Generic[M_co], frozen=True, gc=False):
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


class Foreign(OwnMessage, frozen=True, kw_only=True):
    """A message in a stream of decisions that no stage, API or operator stored (`subjects.foreign`).

    It is never written, and has no schema. It stands for the stored message where a scope is read: no fold changes by it, but the
    guard of the next append counts its sequence.
    """

    reason: str
    """The reason why no stage can have stored it."""


class Actor(OwnMessage, frozen=True, kw_only=True):
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


class Death(OwnMessage, frozen=True, kw_only=True):
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


class Failure(OwnMessage, frozen=True, kw_only=True):
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
    details: dict[str, Json] | None = None
    """Structured error data from the worker."""
    deaths: tuple[Death, ...] = ()
    """The workers that were lost with a task of the step, if the last of them is the reason; oldest first."""

    @property
    def summary(self) -> str:
        """Return the failure in one line, without its traceback."""
        return f"{self.type}: {self.message}" if self.message else self.type


class StartRate(OwnMessage, frozen=True, kw_only=True):
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
