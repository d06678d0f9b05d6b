"""Groups the events of a trigger into batches, each event exactly once.

A batch is sealed first: an entry of the bucket `triggers`, guarded by its revision, holds its request and the names of its events. Then the request is
stored, and then the events are acknowledged. After a crash the events come again: their names are known, and the sealed request is stored again.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

from ... import subjects
from ...domain import ids
from ...domain.definition import MAX_INPUT_BYTES, size_of
from ...domain.event_trigger import EVENTS
from ...domain.events import CheckedMessage, Trigger
from ...ports import EventLog, EventStreams, LogUnavailable, Projections, Publish, RequestRefused, SequenceConflict
from ...subjects import Bucket
from .requests import WaitingEvent
from .trigger_index import ActiveTrigger

MAX_KNOWN: Final = 5_000
"""Events whose acknowledgement is not certain. Beyond, no batch is sealed."""
_ROOM_BYTES: Final = 64
_TRIES: Final = 5


class KnownEvent(CheckedMessage):
    """An event of a batch."""

    sequence: int
    """Its position in the stream."""
    name: str
    """Its identity among all events of the source."""


class SealedBatch(CheckedMessage):
    """The last batch of a trigger, and the events that may come again."""

    request: Trigger
    """The request of the batch."""
    known: tuple[KnownEvent, ...] = ()
    """Events that may not be acknowledged yet."""
    registered_at: datetime | None = None
    """The time at which the job was registered first."""

    def unsettled(self, floor: int) -> tuple[KnownEvent, ...]:
        """Return the known events that may come again: those after the acknowledged `floor`."""
        return tuple(event for event in self.known if event.sequence > floor)


class Batcher:
    """Seals batches, and stores their requests."""

    def __init__(self, log: EventLog, streams: EventStreams, projections: Projections, key: bytes) -> None:
        """`key`: that of the installation."""
        self._log = log
        self._streams = streams
        self._projections = projections
        self._key = key

    async def store(self, active: ActiveTrigger, events: Mapping[str, WaitingEvent]) -> dict[str, Exception]:
        """Store events as batches, by message ids; return the errors of failed events."""
        errors: dict[str, Exception] = {}
        for batch in _batches(events, active):
            try:
                await self._seal(active, [*batch.values()])
            except (LogUnavailable, RequestRefused) as error:
                errors |= dict.fromkeys(batch, error)
        return errors

    async def forget(self, trigger_id: str) -> None:
        """Remove the entry of a trigger after its durable (`trigger_id`) was removed.

        Raises:
            LogUnavailable: the server did not answer.
        """
        key = subjects.batch_key(trigger_id)
        if await self._projections.get(Bucket.TRIGGERS, key) is not None:
            await self._projections.remove(Bucket.TRIGGERS, key)

    async def _seal(self, active: ActiveTrigger, events: Sequence[WaitingEvent]) -> None:
        """Seal a batch of the events that no batch has, and store its request.

        Raises:
            RequestRefused: the batch is too large for the server.
            LogUnavailable: the server did not answer.
        """
        key = subjects.batch_key(active.durable.name)
        for _ in range(_TRIES):
            entry = await self._projections.get(Bucket.TRIGGERS, key)
            before = None if entry is None else SealedBatch.model_validate_json(entry[0])
            progress = await self._streams.progress(active.durable)
            unsettled = () if before is None else before.unsettled(progress.floor)
            if before is not None and unsettled and before.registered_at == active.registered_at:
                # The process that sealed the batch may have died before it stored the request.
                await self._publish(active, before.request)
            names = set() if before is None else {event.name for event in before.known}
            new = [event for event in events if event.request.idempotency_key not in names]
            if not new:
                return
            known = (*unsettled, *map(_known, new))
            if len(known) > MAX_KNOWN:
                raise LogUnavailable(f"{len(known):,} events of batches are not acknowledged yet")
            request = _request_of(active, new)
            sealed = SealedBatch(request=request, known=known, registered_at=active.registered_at)
            try:
                await self._projections.put(
                    Bucket.TRIGGERS, key, sealed.encode(), expect=0 if entry is None else entry[1]
                )
            except SequenceConflict:
                continue
            await self._publish(active, request)
            return
        raise LogUnavailable("other copies of the stage sealed batches at every try")

    async def _publish(self, active: ActiveTrigger, request: Trigger) -> None:
        message_id = ids.keyed_digest(self._key, "batch", active.durable.name, request.idempotency_key)
        [result] = await self._log.write([Publish(subjects.trigger(active.job), request, message_id)])
        if result.error is not None:
            raise result.error


def _batches(events: Mapping[str, WaitingEvent], active: ActiveTrigger) -> list[dict[str, WaitingEvent]]:
    """Divide events into batches that fit the input of an execution."""
    most = 1 if active.trigger.batch is None else active.trigger.batch.max
    batches: list[dict[str, WaitingEvent]] = []
    room = 0
    for message_id, event in events.items():
        size = size_of(event.request.input or {}) + 1
        if size > room or len(batches[-1]) >= most:
            batches.append({})
            room = MAX_INPUT_BYTES - _ROOM_BYTES - active.own_bytes
        batches[-1][message_id] = event
        room -= size
    return batches


def _known(event: WaitingEvent) -> KnownEvent:
    return KnownEvent(sequence=event.place.sequence, name=event.request.idempotency_key or "")


def _request_of(active: ActiveTrigger, events: Sequence[WaitingEvent]) -> Trigger:
    """Return the request of a batch; it has the identity of its first event."""
    first = events[0].place.changed(hops=max(event.place.hops for event in events))
    origin = events[0].origin.model_copy(update={"source": (*active.trigger.source, "batch"), "event": first})
    inputs = {EVENTS: [event.request.input or {} for event in events]}
    return events[0].request.model_copy(update={"input": inputs, "event_trigger": origin})
