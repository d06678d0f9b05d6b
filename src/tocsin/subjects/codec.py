"""Decoding of stored messages, and of the names in their subjects."""

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Final, NamedTuple, TypeVar

from pydantic import ValidationError

from ..domain import events as e
from ..domain import json_codec
from ..domain.definition import DefinitionProblem
from ..domain.definition.errors import problems
from ..domain.errors import TocsinError
from ..domain.ids import is_execution_id
from ..domain.trace_context import parse
from .names import (
    ANY,
    MAX_NAME_LENGTH,
    OUTSIDE_INPUTS,
    PUBLIC_INPUTS,
    REST,
    SCOPE_TOKENS,
    Stream,
    name,
    request_subject,
)
from .paths import KINDS

_M = TypeVar("_M", bound=e.Message)


class UnreadableMessage(NamedTuple):
    """A stored message that does not decode."""

    stream: Stream
    subject: str
    sequence: int
    time: datetime
    digest: str
    """The digest of its body (`digest_of`)."""


class DecodeError(TocsinError, ValueError):
    """A stored message that this version cannot read.

    Attributes:
        stored: its place in its stream, if known.
        problems: the wrong fields of its body, if these are the reason.
    """

    code = "undecodable-message"

    stored: UnreadableMessage | None = None

    @property
    def sequence(self) -> int | None:
        """The position in the stream, if known."""
        return None if self.stored is None else self.stored.sequence

    def __init__(self, text: str, problems: Sequence[DefinitionProblem] = ()) -> None:
        super().__init__(text)
        self.problems = tuple(problems)


def decode(subject: str, body: bytes) -> e.Message:
    """Decode a body by its subject.

    Raises:
        DecodeError: the subject is unknown, or the body does not fit or has a newer version.
    """
    if (publisher := publisher_of(subject)) is None:
        return decode_as(_model(subject), subject, body)
    return _of_outsider(subject, decode_as(_model(request_subject(subject)), subject, body), publisher)


def decode_as(model: type[_M], subject: str, body: bytes) -> _M:
    """Decode a message of a known type from inside; otherwise as `decode`."""
    body = body or b"{}"
    message = json_codec.read(model, body)
    if message is None:
        try:
            message = e.validated(model, body)
        except ValidationError as error:
            wrong = list(problems(error))
            raise DecodeError(f"{subject}: {'; '.join(map(str, wrong))}", wrong) from error
    if isinstance(message, e.Dispatched) and not _is_of_its_version(subject, message):
        raise DecodeError(f"{subject}: `v` is {message.v}: version 2, and only this, has `admits` and this subject")
    return message


_TRACEPARENT: Final = ("traceparent", "Traceparent")
"""Names of the header of W3C Trace Context; libraries of Go write the second."""


def continued(trigger: e.Trigger, headers: Mapping[str, str]) -> e.Trigger:
    """Return a trigger with the valid trace context of its headers, if any."""
    trace = trace_header(headers)
    return trigger if trace is None else trigger.model_copy(update={"traceparent": trace[1]})


def trace_header(headers: Mapping[str, str]) -> tuple[str, str] | None:
    """Return the name and the value of a valid trace context, if there is one."""
    # `get` parses one header; `in` parses the whole block if the header is missing.
    found = ((name, value) for name in _TRACEPARENT if (value := headers.get(name)) is not None)
    trace = next(found, None)
    return None if trace is None or parse(trace[1]) is None else trace


_PROGRAM: Final = re.compile("[a-z][a-z0-9-]*")
_OUTSIDE: Final = "event"
"""The cause of every trigger of a program outside."""


def type_of(subject_filter: str) -> type[e.Message]:
    """Return the type of the messages of a filter; `Message` if there are several."""
    try:
        return _model(request_subject(subject_filter.replace(REST, ANY)))
    except DecodeError:
        return e.Message


def _is_of_its_version(subject: str, task: e.Dispatched) -> bool:
    admits = task.admits is not None
    return admits == (task.v == 2) == (event_type(subject) == "admitted")  # noqa: PLR2004 - the version


def _of_outsider(subject: str, message: e.Message, publisher: str) -> e.Message:
    """Return a request of a program outside without the identity and cause it claims.

    Its identity is the name of its account, which the server put into the subject. With a replay or an event as its cause, it would
    wait beyond the limit of its job's queue.
    """
    if isinstance(message, e.Trigger) and message.backfill is not None:
        raise DecodeError(f"{subject}: `backfill`: a program outside cannot backfill; use the API")
    by = e.Actor(identity=publisher, kind="program", source="nats") if publisher else None
    changes: dict[str, object] = {"by": by}
    if isinstance(message, e.Trigger):
        changes |= {"trigger": _OUTSIDE, "event_trigger": None}
    return message.changed(**changes)


def _model(subject: str) -> type[e.Message]:
    tokens = subject.split(".", 5)
    kind = tokens[0]
    place = _DECISION.get(kind, len(tokens))
    decision = tokens[place] if place < len(tokens) else ""
    if kind == "lock":
        decision = tokens[-1]
    if kind == "mq" and tokens[1:3] == ["scheduler", "cancel"]:
        decision = "cancel"
    if decision == "admitted" and len(tokens) > _ADMISSION_ALONE:
        decision = "dispatched"
    try:
        return _MODELS[f"{kind}.{decision}" if decision else kind]
    except KeyError:
        raise DecodeError(f"{subject}: this version knows no message with this subject") from None


_ADMISSION_ALONE: Final = 4
"""Tokens in the subject of an admission that is not a task too."""
_DECISION: Final = {**SCOPE_TOKENS, "cron": 1, "lock": 2, "mq": 1}
"""The place of the token that distinguishes the messages of a kind."""
_MODELS: Final[dict[str, type[e.Message]]] = {
    **{
        f"{kind}.{stored}": model
        for model in vars(e).values()
        if isinstance(model, type) and issubclass(model, e.Message) and (stored := e.type_of(model))
        for base, (kind, _) in KINDS.items()
        if issubclass(model, base)
    },
    "cron.triggered": e.CronTriggered,
    "cron.skipped": e.CronSkipped,
    "cron.missed": e.CronMissed,
    "cron.answer": e.CronAnswer,
    "cron.alert": e.CronAlert,
    "trigger": e.Trigger,
    "cancel": e.CancelRequest,
    "change": e.ChangeRequest,
    "report": e.Report,
    "output": e.OutputLine,
    "event": e.EventIgnored,
    "progress": e.StepProgress,
    "heartbeat": e.HeartbeatDetails,
    "enqueue": e.Enqueued,
    "mq.scheduled": e.Envelope,
    "mq.team": e.Envelope,
    "mq.scheduler": e.Completion,
    "mq.cancel": e.MqCancel,
}


MAX_KNOWN: Final = 1_024
"""Subjects with a remembered job and turn: the triggers of a job have one subject."""


@lru_cache(MAX_KNOWN)
def job_of(subject: str) -> str:
    tokens = request_subject(subject).split(".")
    if tokens[0] == "trigger" and not (publisher_of(subject) is None and is_execution_id(tokens[-1])):
        return name(_written(*tokens[1:]))  # a public subject may contain the dots of a name
    if tokens[0] == "cancel":
        return parse_cancel(subject)[0]
    if tokens[0] == "mq":
        return parse_completion(subject)[0] if tokens[1] == "scheduler" else name(".".join(tokens[2:]))
    return name(tokens[2 if tokens[0] == "cron" else 1])


def entity_of(subject: str) -> str:
    """Return the key for ordered handling: the execution, or else the job."""
    kind, job, *rest = request_subject(subject).split(".", 3)
    if kind == "mq":
        return subject.rpartition(".")[2]
    if kind == "cancel":
        return "{}.{}".format(*parse_cancel(subject))
    return job if kind == "ledger" or not rest else f"{job}.{rest[0]}"


_OF_EXECUTION: Final = frozenset({"execution", "report", "enqueue"})
_OF_ATTEMPT: Final = frozenset({"output", "progress", "heartbeat"})


def ids_in(subject: str) -> dict[str, str | int]:
    """Return the ids of the execution in a subject or a scope, for log lines.

    They are `job` and `execution_id`, and of an attempt `step` and `attempt`. Empty: it is not about an execution.
    """
    kind, *tokens = subject.split(".")
    if len(tokens) < 2 or kind not in _OF_EXECUTION | _OF_ATTEMPT:  # noqa: PLR2004 - a job and an id
        return {}
    ids: dict[str, str | int] = {"job": name(tokens[0]), "execution_id": tokens[1]}
    match tokens[2:] if kind in _OF_ATTEMPT else tokens[3:]:
        case [step, attempt, *_] if attempt.isdecimal() and len(attempt) <= 18:  # noqa: PLR2004 - of a 64-bit number
            ids |= {"step": step, "attempt": int(attempt)}
        case [step] if kind == "execution" and tokens[2] in {"advanced", "exhausted", "lease-extended"}:
            ids["step"] = step
        case _:
            pass
    return ids


def publisher_of(subject: str) -> str | None:
    """Return the program outside that published a request; None: the API or an operator.

    Empty: the program has no account of its own. So has one whose name no account can have, such as a wildcard: without
    accounts, any client may publish under it.
    """
    if subject.startswith(OUTSIDE_INPUTS):
        program = subject.split(".", 2)[1]
        return program if _PROGRAM.fullmatch(program) else ""
    return "" if subject.startswith(PUBLIC_INPUTS) else None


@lru_cache(MAX_KNOWN)
def turn_of(subject: str) -> tuple[str, str]:
    """Return the publisher and the job that take turns with others; any subject has them.

    The publisher is empty for the API, operators and stages, and for programs without an account of their own.
    """
    kind, job, *_ = f"{subject}..".split(".", 2)
    if kind in _OF_EXECUTION:
        return "", job  # most messages
    if (publisher := publisher_of(subject)) is None:
        return "", f"{job}." if kind == "trigger" else job
    _, job, of_public_name = f"{request_subject(subject)}.".split(".", 2)
    return publisher, f"{job}.{of_public_name}" if is_trigger(subject) else job


def is_trigger(subject: str) -> bool:
    """Return whether a subject belongs to a trigger, of any publisher."""
    return request_subject(subject).startswith("trigger.")


def is_change(subject: str) -> bool:
    """Return whether a subject belongs to a request for a change of a job."""
    return subject.startswith("change.")


def event_type(subject: str) -> str:
    return subject.split(".", 4)[3]


def parse_cancel(subject: str) -> tuple[str, str]:
    """Return the job and the execution of a cancel request.

    A public subject may contain the dots of the job's name.
    """
    *job, execution_id = request_subject(subject).split(".")[1:]
    return name(_written(*job)), _written(execution_id)


def parse_completion(subject: str) -> tuple[str, str]:
    """Return the job and the execution of an MQ completion."""
    *job, execution_id = subject.split(".")[3:]  # a public subject may contain the dots of a name
    return name(_written(*job)), _written(execution_id)


def _written(*tokens: str) -> str:
    """Return the tokens as published.

    A server stores messages published under a wildcard; `>` is as unspecific as `*`, and so is a name that is too long:
    a subject made from it could be longer than the server allows, and the server would end the connection of its user.
    """
    text = ".".join(tokens)
    return ANY if tokens == (REST,) or len(text) > MAX_NAME_LENGTH else text
