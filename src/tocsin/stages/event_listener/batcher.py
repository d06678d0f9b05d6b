"""Joins the events of a trigger to batches, each event exactly once.

A batch is sealed first: an entry of the bucket `triggers`, guarded by its revision, holds its request and the names of its events. Then the request is
stored, and then the events are acknowledged. After a crash the events come again: their names are known, and the sealed request is stored again.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from ... import subjects
from ...domain import ids
from ...domain.definition import MAX_INPUT_BYTES, size_of
from ...domain.events import EventReference, Message, Trigger
from ...ports import EventLog, EventStreams, LogUnavailable, Projections, Publish, RequestRefused, SequenceConflict
from ...subjects import Bucket
from .trigger_index import ActiveTrigger

EVENTS: Final = "events"
"""The key of the list in the input of an execution."""
MAX_KNOWN: Final = 5_000
"""Events whose acknowledgement is not certain. Beyond, no batch is sealed."""
_ROOM_BYTES: Final = 64
_TRIES: Final = 5


class KnownEvent(Message):
    """An event of a batch."""

    sequence: int
    """Its position in the stream."""
    name: str
    """Its identity among all events of the source."""


class SealedBatch(Message):
    """The last batch of a trigger, and the events that may come again."""

    request: Trigger
    """The request of the batch."""
    known: tuple[KnownEvent, ...] = ()
    """Events that may not be acknowledged yet."""


class Batcher:
    """Seals batches, and stores their requests."""

    def __init__(self, log: EventLog, streams: EventStreams, projections: Projections, key: bytes) -> None:
        """`key`: that of the installation."""
        self._log = log
        self._streams = streams
        self._projections = projections
        self._key = key

    async def store(self, active: ActiveTrigger, requests: Mapping[str, Trigger]) -> dict[str, Exception]:
        """Store the requests of events, by their message id, as batches.

        Return the errors of those that are not stored.
        """
        errors: dict[str, Exception] = {}
        for group in _portions(requests, active):
            try:
                await self._seal(active, [*group.values()])
            except (LogUnavailable, RequestRefused) as error:
                errors |= dict.fromkeys(group, error)
        return errors

    async def forget(self, trigger_id: str) -> None:
        """Remove the entry of a trigger whose durable was removed.

        None of its events come again.
        `trigger_id`: the name of the durable.

        Raises:
            LogUnavailable: the server did not answer.
        """
        key = subjects.batch_key(trigger_id)
        if await self._projections.get(Bucket.TRIGGERS, key) is not None:
            await self._projections.remove(Bucket.TRIGGERS, key)

    async def _seal(self, active: ActiveTrigger, requests: Sequence[Trigger]) -> None:
        """Seal a batch of the events that no batch has, and store its request.

        Raises:
            RequestRefused: the batch is too large for the server.
            LogUnavailable: the server did not answer.
        """
        key = subjects.batch_key(active.durable.name)
        for _ in range(_TRIES):
            entry = await self._projections.get(Bucket.TRIGGERS, key)
            before = None if entry is None else SealedBatch.model_validate_json(entry[0])
            floor = await self._streams.floor(active.durable)
            known = () if before is None else before.known
            unsettled = [event for event in known if event.sequence > floor]
            if (
                before is not None and unsettled
            ):  # the process that sealed it may have died before it stored the request
                await self._publish(active, before.request)
            names = {event.name for event in known}
            new = [request for request in requests if request.idempotency_key not in names]
            if not new:
                return
            kept = (*unsettled, *map(_known, new))
            if len(kept) > MAX_KNOWN:
                raise LogUnavailable(f"{len(kept):,} events of batches are not acknowledged yet")
            sealed = SealedBatch(request=_joined(active, new), known=kept)
            try:
                await self._projections.put(
                    Bucket.TRIGGERS, key, sealed.encode(), expect=0 if entry is None else entry[1]
                )
            except SequenceConflict:
                continue
            await self._publish(active, sealed.request)
            return
        raise LogUnavailable("other copies of the stage sealed batches at every try")

    async def _publish(self, active: ActiveTrigger, request: Trigger) -> None:
        message_id = ids.keyed_digest(self._key, "batch", active.durable.name, request.idempotency_key)
        [result] = await self._log.write([Publish(subjects.trigger(active.job), request, message_id)])
        if result.error is not None:
            raise result.error


def _portions(requests: Mapping[str, Trigger], active: ActiveTrigger) -> list[dict[str, Trigger]]:
    """Divide requests so that each portion fits the input of an execution."""
    most = 1 if active.trigger.batch is None else active.trigger.batch.max
    portions: list[dict[str, Trigger]] = []
    room = 0
    for message_id, request in requests.items():
        size = size_of(request.input or {}) + 1
        if size > room or len(portions[-1]) >= most:
            portions.append({})
            room = MAX_INPUT_BYTES - _ROOM_BYTES - active.own_bytes
        portions[-1][message_id] = request
        room -= size
    return portions


def _known(request: Trigger) -> KnownEvent:
    return KnownEvent(sequence=_place_of(request).sequence, name=request.idempotency_key or "")


def _joined(active: ActiveTrigger, requests: Sequence[Trigger]) -> Trigger:
    """Return the request of a batch; it has the identity of its first event."""
    first = requests[0]
    origin = first.event_trigger
    assert origin is not None  # noqa: S101 - `held_by` chose the requests
    changes: dict[str, Any] = {
        "input": {EVENTS: [request.input or {} for request in requests]},
        "event_trigger": origin.model_copy(update={"source": (*active.trigger.source, "batch")}),
    }
    return first.model_copy(update=changes)


def _place_of(request: Trigger) -> EventReference:
    place = None if request.event_trigger is None else request.event_trigger.event
    assert place is not None  # noqa: S101 - `held_by` chose the requests
    return place
