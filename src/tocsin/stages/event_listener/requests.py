"""The requests for executions that events make, and records of other events."""

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Final

import msgspec
from pydantic import JsonValue

from ... import subjects
from ...domain import cel, ids, trace_context
from ...domain.bucket_event import entry_event, object_event, object_name, upload_of
from ...domain.definition import shorten
from ...domain.errors import TocsinError
from ...domain.event_trigger import (
    TooManyHops,
    UnreadableEvent,
    Verdict,
    check_hops,
    hops_of,
    ignored_event,
    judge,
    read_event,
)
from ...domain.events import Cancelled, Completed, EventOrigin, EventReference, Failed, Trigger
from ...ports import WEBHOOK_DELIVERY, WEBHOOK_PATH, WEBHOOK_REGISTRATION, Delivery, Publish
from .trigger_index import ActiveTrigger

_ADDED: Final = frozenset({WEBHOOK_PATH, WEBHOOK_DELIVERY, WEBHOOK_REGISTRATION})
"""The headers that the API adds to a request to a webhook."""
MAX_REASON: Final = 1_000
"""Characters of the reason why an event starts nothing: a key of `input` may be as long as a definition."""


class HeardEvent(msgspec.Struct, frozen=True):
    """An event, and its identity among all events of its source."""

    event: cel.Event
    name: str
    hops: int | None = None
    """The hops of the execution that ended; None: the headers say."""


class WaitingEvent(msgspec.Struct, frozen=True):
    """An event that waits for others of its window or its batch."""

    request: Trigger
    """Its own request."""
    origin: EventOrigin
    place: EventReference


def of_webhook(delivery: Delivery, registered_at: datetime | None) -> HeardEvent | None:
    """Return the event of a request to a webhook.

    None: it was for a job that was deleted. `registered_at`: the time at which the job of that name was registered first.
    """
    registration = delivery.headers.get(WEBHOOK_REGISTRATION)
    if registered_at is not None and registration not in {None, registered_at.isoformat()}:
        return None
    headers = {name: value for name, value in delivery.headers.items() if name not in _ADDED}
    event = read_event(delivery.body, delivery.headers.get(WEBHOOK_PATH, ""), headers, delivery.time)
    return HeardEvent(event, delivery.headers.get(WEBHOOK_DELIVERY) or name_of_message(delivery))


def _heard(active: ActiveTrigger, delivery: Delivery) -> HeardEvent | None:
    """Return the event of a delivery; None: the event is not for this trigger.

    Raises:
        UnreadableEvent: the message is not an event.
    """
    trigger = active.trigger
    bucket, rest = trigger.bucket
    match trigger.kind:
        case "job":
            return of_end(delivery)
        case "webhook":
            return of_webhook(delivery, active.registered_at)
        case "kv":
            key = delivery.subject.removeprefix(f"$KV.{bucket}.")
            event = entry_event(
                delivery.body, delivery.headers, delivery.time, bucket=bucket, key=key, revision=delivery.sequence
            )
        case "object":
            try:
                heard = of_object(delivery, bucket)
            except UnreadableEvent:
                if (name := object_name(delivery.subject)) is not None and not name.startswith(rest):
                    return None
                raise
            return heard if heard.event.subject.startswith(f"{bucket}/{rest}") else None
        case _:
            event = read_event(delivery.body, delivery.subject, delivery.headers, delivery.time)
    return HeardEvent(event, name_of_message(delivery))


def of_object(delivery: Delivery, bucket: str) -> HeardEvent:
    """Return the event of an upload or a deletion."""
    event = object_event(delivery.body, delivery.time, bucket=bucket)
    return HeardEvent(event, upload_of(event, name_of_message(delivery)))


def name_of_message(delivery: Delivery) -> str:
    """Return the identity of a message: a new stream repeats sequences, at other times."""
    return f"{delivery.sequence}@{delivery.time.isoformat()}"


def of_end(delivery: Delivery) -> HeardEvent | None:
    """Return the event of an end of an execution; None: another event."""
    end = subjects.decode(delivery.subject, delivery.body)
    if not isinstance(end, Completed | Failed | Cancelled):
        return None
    return HeardEvent(cel.Event(_body(end), f"{end.job}.{end.type}", {}, delivery.time), end.execution_id, end.hops)


def _body(end: Completed | Failed | Cancelled) -> JsonValue:
    body: dict[str, JsonValue] = {
        "job": end.job,
        "execution_id": end.execution_id,
        "end": end.type,
        "trigger": end.trigger,
        "scheduled_time": end.scheduled_time.isoformat(),
        "shard": end.shard,
    }
    match end:
        case Completed():
            body["result"] = end.result
        case Failed():
            body["reason"] = end.reason
            body["error"] = None if end.first_error is None else end.first_error.document()
        case Cancelled():
            body["reason"] = end.reason
    return body


def request_of(active: ActiveTrigger, delivery: Delivery, key: bytes) -> Publish | None:
    """Return the request that an event makes; None: it starts nothing, and nothing records it.

    An event that has no condition, key or input makes a request that the planner refuses, so that it is recorded once. An event whose
    condition is false is recorded if the trigger records all. `key` is that of the installation: no program can use up the id.

    Raises:
        DecodeError: this version cannot read the end of an execution.
    """
    name, subject, hops = name_of_message(delivery), delivery.subject, 0
    try:
        heard = _heard(active, delivery)
        if heard is None:
            return None
        subject = heard.event.subject
        if not combines_events(active):  # a sender may repeat a name, also in another window or batch
            name = heard.name
        verdict = judge(active.trigger, heard.event)
        headers = heard.event.headers
        hops = hops_of(headers) if heard.hops is None else heard.hops
        if verdict.outcome == "starts":  # else its condition ended the circle
            check_hops(hops, active.max_hops)
    except (UnreadableEvent, TooManyHops) as error:
        verdict, headers = Verdict("evaluation_failed", reason=str(error), code=error.code), {}
    reference = reference_of(active, delivery, subject, hops)
    if verdict.outcome == "condition_false":
        return _record(active, reference, key) if active.trigger.record == "all" else None
    trace = subjects.trace_header(headers)
    return _request(active, verdict, name, reference, None if trace is None else trace[1], key)


def refusal_of(active: ActiveTrigger, delivery: Delivery, error: Exception, key: bytes) -> Publish:
    """Return the request that records an event whose own request the log refuses for good.

    `error`: the reason. `key`: as for `request_of`.
    """
    code = error.code if isinstance(error, TocsinError) else cel.EvaluationFailed.code
    verdict = Verdict("evaluation_failed", reason=f"the request was refused: {error}", code=code)
    reference = reference_of(active, delivery, delivery.subject)
    return _request(active, verdict, name_of_message(delivery), reference, None, key)


def combines_events(active: ActiveTrigger) -> bool:
    """Return whether several events start one execution."""
    return active.trigger.debounce is not None or active.trigger.batch is not None


def waiting_event(active: ActiveTrigger, request: Publish) -> WaitingEvent | None:
    """Return the event of a request that waits for others; None: it does not wait."""
    message = request.message
    if not combines_events(active) or not isinstance(message, Trigger):
        return None
    origin = message.event_trigger
    if origin is None or origin.event is None or origin.refusal_code is not None:
        return None
    return WaitingEvent(message, origin, origin.event)


def reference_of(active: ActiveTrigger, delivery: Delivery, subject: str, hops: int = 0) -> EventReference:
    return EventReference(
        stream=active.durable.stream, sequence=delivery.sequence, subject=subject, time=delivery.time, hops=hops
    )


def _record(active: ActiveTrigger, event: EventReference, key: bytes) -> Publish:
    """Return the record of an event whose condition is false."""
    ignored = ignored_event(active.job, active.durable.name, event, "condition_false")
    message_id = ids.ignored_event_id(key, ignored.trigger_id, event.stream, event.sequence, event.time)
    return Publish(subjects.subject_of(ignored), ignored, message_id)


def _request(
    active: ActiveTrigger, verdict: Verdict, name: str, event: EventReference, traceparent: str | None, key: bytes
) -> Publish:
    is_combined = combines_events(active)
    key_of_execution = None if is_combined else verdict.key
    kind = "refused" if verdict.outcome != "starts" else "event" if key_of_execution is None else "key"
    origin = EventOrigin(
        source=(*active.trigger.source, kind),
        subject=event.subject,
        event=event,
        key=verdict.key if is_combined else None,
        refusal_code=None if verdict.outcome == "starts" else verdict.code,
        refusal=None if verdict.outcome == "starts" else shorten(verdict.explained, MAX_REASON),
    )
    context = trace_context.parse(traceparent)
    trigger = Trigger(
        input=dict(verdict.input) if verdict.input else None,
        idempotency_key=name if key_of_execution is None else key_of_execution,
        event_trigger=origin,
        traceparent=None if context is None else context.traceparent,
    )
    execution_id = _execution_id(active.job, origin, trigger)
    # Each event has its own request, so that the planner can record those whose key already started an execution.
    message_id = ids.keyed_digest(key, "event", execution_id, name)
    return Publish(subjects.trigger(active.job), trigger, message_id)


def starts_execution(request: Publish | None) -> bool:
    """Return whether a request starts an execution; others only record an event."""
    origin = request.message.event_trigger if request is not None and isinstance(request.message, Trigger) else None
    return origin is not None and origin.refusal_code is None


def executions_of(active: ActiveTrigger, requests: Iterable[Publish | None]) -> Iterator[str]:
    """Yield the ids of the executions that requests of single events start."""
    for request in filter(starts_execution, requests):
        message = None if request is None else request.message
        if isinstance(message, Trigger) and message.event_trigger is not None:
            yield _execution_id(active.job, message.event_trigger, message)


def _execution_id(job: str, origin: EventOrigin, request: Trigger) -> str:
    return ids.event_execution_id(job, origin.source, request.idempotency_key or "")
