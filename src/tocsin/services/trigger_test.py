"""A trial of an event on the triggers of a job, without any effect."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, Field, JsonValue

from .. import subjects
from ..domain import cel, duration, ids
from ..domain.bucket_event import object_details
from ..domain.definition import DefinitionError, EventTrigger, JobDefinition, check_input, json_problem
from ..domain.definition.triggers import split
from ..domain.event_trigger import (
    EVENTS,
    MAX_HOPS,
    TooManyHops,
    UnreadableEvent,
    check_hops,
    ends_of,
    hops_of,
    judge,
    read_event,
)

TestOutcome: TypeAlias = Literal["starts", "condition_false", "evaluation_failed", "refused", "other_source"]


class GivenEvent(BaseModel, extra="forbid", use_attribute_docstrings=True):
    """An event to try. Its subject decides which triggers it meets."""

    subject: str
    """The subject of a message, such as `orders.new`; for the end of an execution the job and the end, such as `extract.completed`;
    for a request the path of its webhook, such as `/hooks/github`; for an entry or an object the bucket and its name, such as `flags/checkout.new`.
    The body of an object is its metadata."""
    body: Any = None
    headers: dict[str, str] = {}
    operation: Literal["put", "delete"] = "put"
    """What happened to the entry or the object."""
    revision: Annotated[int, Field(ge=1, lt=2**63)] = 1
    """The revision of the entry."""
    time: datetime | None = None
    """The time at which it is stored; by default now."""


@dataclass(frozen=True, slots=True)
class TriggerAnswer:
    """The effect that an event would have on one trigger of a job."""

    source: str
    """The source of the trigger: its subject, its job, the path of its webhook, or its bucket."""
    outcome: TestOutcome
    """`starts`, or why it starts nothing: `other_source` has another subject, `refused` an input that the job does not accept."""
    reason: str | None = None
    field: str | None = None
    """The field of the trigger that has no value for the event."""
    key: str | None = None
    """The key of the event; null: each event has its own."""
    input: Mapping[str, JsonValue] | None = None
    """The keys that override the job's input; with `batch` those of a batch of this event alone."""
    execution_id: str | None = None
    """The execution that all events with this key start; null: it is debounced, or has no key."""
    after_quiet: str | None = None
    """The time without an event of this key after which the execution starts; null: at once."""


def try_event(
    definition: JobDefinition, given: GivenEvent, now: datetime, *, max_hops: int = MAX_HOPS
) -> tuple[TriggerAnswer, ...]:
    """Return the effect that an event would have on each trigger of a job.

    `max_hops`: the setting `triggers.max_hops`.
    """
    try:
        event = _event(given, given.time or now)
    except UnreadableEvent as error:
        reason = str(error)
        return tuple(TriggerAnswer(trigger.source_text, "evaluation_failed", reason) for trigger in definition.triggers)
    return tuple(
        _try(definition, trigger, _with_details(trigger, event, given), max_hops) for trigger in definition.triggers
    )


def _with_details(trigger: EventTrigger, event: cel.Event, given: GivenEvent) -> cel.Event:
    """Return an event with what expressions over the source of a trigger see of it."""
    _, name = split(given.subject)
    if trigger.job is not None:
        return replace(event, headers={})
    if trigger.webhook is not None:  # the API passes the names of headers on in lower case
        return replace(event, headers={header.lower(): value for header, value in event.headers.items()})
    if trigger.kv is not None:
        return replace(event, details={"operation": given.operation, "key": name, "revision": given.revision})
    if trigger.object is not None:
        metadata = event.body if isinstance(event.body, dict) else {}
        details = object_details({**metadata, "name": name, "deleted": given.operation == "delete"})
        return replace(event, body=None, headers={}, details=details)
    return event


def _event(given: GivenEvent, time: datetime) -> cel.Event:
    if reason := json_problem(given.body):
        raise UnreadableEvent(f"the body of the event: {reason}")
    body = json.dumps(given.body, ensure_ascii=False, separators=(",", ":"))
    return read_event(body.encode(), given.subject, given.headers, time)


def _try(definition: JobDefinition, trigger: EventTrigger, event: cel.Event, max_hops: int) -> TriggerAnswer:
    source = trigger.source_text
    if not _is_from(trigger, event.subject):
        return TriggerAnswer(source, "other_source", f"the subject `{event.subject}` is not of `{source}`")
    verdict = judge(trigger, event)
    if verdict.outcome != "starts":
        return TriggerAnswer(source, verdict.outcome, verdict.reason, verdict.field)
    try:
        check_hops(hops_of(event.headers), max_hops)  # an end has the hops of its execution, which are not given
    except TooManyHops as error:
        return TriggerAnswer(source, "evaluation_failed", str(error))
    key, input_ = verdict.key, verdict.input
    if trigger.batch is not None:
        input_ = {EVENTS: [dict(input_ or {})]}
    is_debounced = trigger.debounce is not None
    execution_id = None if key is None or is_debounced else ids.event_execution_id(definition.name, trigger.source, key)
    try:
        check_input(definition, input_ or {})
    except DefinitionError as error:
        return TriggerAnswer(source, "refused", str(error), "input", key, input_, execution_id)
    delay = None if trigger.debounce is None else duration.short(trigger.debounce.quiet)
    return TriggerAnswer(source, "starts", key=key, input=input_, execution_id=execution_id, after_quiet=delay)


def _is_from(trigger: EventTrigger, subject: str) -> bool:
    if trigger.webhook is not None:
        return subject == trigger.webhook
    bucket, rest = trigger.bucket
    given, name = split(subject)
    if trigger.kv is not None:
        return given == bucket and subjects.matches(rest, name)
    if trigger.object is not None:
        return given == bucket and name.startswith(rest)
    if trigger.nats is not None:
        return subjects.matches(trigger.nats, subject)
    job, _, end = subject.rpartition(".")
    return job == trigger.job and end in ends_of(trigger)
