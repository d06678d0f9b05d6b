"""The effect of an event on a trigger: an execution, or a reason for none."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Literal, TypeAlias

from pydantic import JsonValue

from . import cel
from .definition import MAX_INPUT_BYTES, EventTrigger, JobDefinition, json_problem, size_of
from .errors import TocsinError
from .events import EventIgnored, EventReference, IgnoredReason
from .events.triggers import HOPS_HEADER

_MAX_DIGITS: Final = 6
EVENTS: Final = "events"
"""The key of the events of a batch in the input of their execution."""
MAX_HOPS: Final = 16
"""The default of the setting `triggers.max_hops`."""
MAX_KEY: Final = 255
"""Characters of the key of an event."""
MAX_RECORDED_BYTES: Final = 180
"""Bytes of JSON of the subject and of the key of a recorded event: all its fields must fit a message of the stream of output."""
_SERVER_HEADERS: Final = "nats-"

Outcome: TypeAlias = Literal["starts", "condition_false", "evaluation_failed"]


class UnreadableEvent(TocsinError):
    """A message is not an event: it is too large, or not JSON."""

    code = "unreadable-event"


class TooManyHops(TocsinError):
    """Too many executions that events started led to an event."""

    code = "too-many-hops"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The effect of an event on a trigger."""

    outcome: Outcome
    key: str | None = None
    """The key of the event, if the trigger has an expression for it."""
    input: Mapping[str, JsonValue] | None = None
    reason: str | None = None
    """Why it starts nothing."""
    field: str | None = None
    """The field of the trigger that has no value for the event."""
    code: str = cel.EvaluationFailed.code

    @property
    def explained(self) -> str:
        return f"`{self.field}`: {self.reason}" if self.field else self.reason or ""


def read_event(data: bytes, subject: str, headers: Mapping[str, str] | None, time: datetime) -> cel.Event:
    """Return the event of a message.

    Headers of the server (`Nats-…`) are left out: they say how a message is stored, and not what happened.

    Raises:
        UnreadableEvent: it is larger than expressions may read, or not plain JSON.
    """
    check_size(data, headers or {})
    try:
        body = json.loads(data) if data else None
    except (ValueError, RecursionError):
        raise UnreadableEvent("the body of the event is not JSON") from None
    if reason := json_problem(body):
        raise UnreadableEvent(f"the body of the event: {reason}")
    return cel.Event(body, subject, shown_headers(headers or {}), time)


def check_size(data: bytes, headers: Mapping[str, str]) -> None:
    """Raise UnreadableEvent if an event is too large for expressions."""
    size = len(data) + sum(len(name) + len(value) for name, value in shown_headers(headers).items())
    if size > cel.MAX_EVENT_BYTES:
        raise UnreadableEvent(f"the event has {size:,} bytes, more than {cel.MAX_EVENT_BYTES:,}")


def shown_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers of an event, without those of the server."""
    return {name: value for name, value in headers.items() if not name.lower().startswith(_SERVER_HEADERS)}


def hops_of(headers: Mapping[str, str]) -> int:
    """Return the hops that the headers of an event name; 0: they name none."""
    for name, value in headers.items():
        if name.lower() == HOPS_HEADER and value.isascii() and value.isdecimal() and len(value) <= _MAX_DIGITS:
            return int(value)
    return 0


def check_hops(hops: int, limit: int) -> None:
    """Raise TooManyHops if more executions than `limit` led to an event."""
    if hops > limit:
        raise TooManyHops(
            f"{hops:,} executions that events started one after the other led to this event, more than `triggers.max_hops` ({limit:,}): "
            "look for a circle of jobs and events"
        )


def judge(trigger: EventTrigger, event: cel.Event) -> Verdict:
    """Return the effect of an event on a trigger; it never fails."""
    field = "when"
    try:
        if trigger.when is not None and not _is_true(trigger, trigger.when, event):
            return Verdict("condition_false", reason=f"`{trigger.when}` is false")
        field = "key"
        key = None if trigger.key is None else _key(trigger, trigger.key, event)
        values: dict[str, JsonValue] = {}
        for name, text in trigger.input.items():
            field = f"input.{name}"
            values[name] = _json(trigger, text, event)
    except (cel.EvaluationFailed, cel.ExpressionError) as error:  # another CEL library may have accepted it
        return Verdict("evaluation_failed", reason=str(error), field=field)
    if (size := size_of(values)) > MAX_INPUT_BYTES:
        reason = f"has {size:,} bytes of JSON, more than {MAX_INPUT_BYTES:,}"
        return Verdict("evaluation_failed", reason=reason, field="input")
    return Verdict("starts", key, values)


def ignored_event(
    job: str,
    trigger_id: str,
    event: EventReference,
    reason: IgnoredReason,
    key: str | None = None,
    execution_id: str | None = None,
) -> EventIgnored:
    """Return the record of an event that started nothing, with long texts cut."""
    return EventIgnored(
        job=job,
        trigger_id=trigger_id,
        event=event.changed(subject=_cut(event.subject)),
        reason=reason,
        key=None if key is None else _cut(key),
        execution_id=execution_id,
    )


def _cut(text: str) -> str:
    if size_of(text) <= MAX_RECORDED_BYTES:
        return text
    while size_of(text) > MAX_RECORDED_BYTES - 3:
        text = text[: len(text) * 7 // 8]
    return f"{text}…"


def _is_true(trigger: EventTrigger, text: str, event: cel.Event) -> bool:
    value = cel.compile_(text, trigger.kind).evaluate(event)
    if not isinstance(value, bool):
        raise cel.EvaluationFailed(f"must be true or false, and is {type(value).__name__}")
    return value


def _key(trigger: EventTrigger, text: str, event: cel.Event) -> str:
    value = cel.compile_(text, trigger.kind).evaluate(event)
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise cel.EvaluationFailed(f"must be a text or an integer, and is {type(value).__name__}")
    key = str(value)
    if not 0 < len(key) <= MAX_KEY:
        raise cel.EvaluationFailed(f"must have 1 to {MAX_KEY} characters, and has {len(key):,}")
    return key


def _json(trigger: EventTrigger, text: str, event: cel.Event) -> JsonValue:
    value = _written(cel.compile_(text, trigger.kind).evaluate(event))
    if reason := json_problem(value):
        raise cel.EvaluationFailed(f"is not plain JSON: {reason}")
    return value  # type: ignore[return-value] # checked above


def _written(value: object) -> object:
    match value:
        case datetime():
            return value.isoformat()
        case timedelta():
            return f"{value.total_seconds():.6f}".rstrip("0").removesuffix(".") + "s"
        case Mapping():
            return {key: _written(inner) for key, inner in value.items()}
        case list():
            return [_written(inner) for inner in value]
        case _:
            return value


def started_by(definition: JobDefinition) -> tuple[str, ...]:
    """Return the jobs whose ends start a job."""
    return tuple(trigger.job for trigger in definition.triggers if trigger.job is not None)


def webhooks_of(definition: JobDefinition) -> tuple[str, ...]:
    return tuple(trigger.webhook for trigger in definition.triggers if trigger.webhook is not None)


def in_circles(definitions: Iterable[JobDefinition]) -> frozenset[str]:
    """Return the jobs on circles of jobs that start each other, and between two circles."""
    edges = {(upstream, definition.name) for definition in definitions for upstream in started_by(definition)}
    while True:
        starts, started = {start for start, _ in edges}, {end for _, end in edges}
        kept = {(start, end) for start, end in edges if start in started and end in starts}
        if len(kept) == len(edges):
            return frozenset(starts)
        edges = kept


def ends_of(trigger: EventTrigger) -> tuple[str, ...]:
    """Return the ends of executions that are events for a trigger."""
    return ("completed", "failed", "cancelled") if trigger.on == "finished" else (trigger.on,)
