"""Event listener: lets events start executions of the jobs whose triggers name them.

Each trigger in force has a durable, which delivers the events stored from then on. A message is acknowledged after its request is
stored, or if it starts nothing. So an event is lost by no crash, and a repeated delivery makes the same request, whose id is a hash of
the job, the source and the key. Copies of the stage share the durables. Everything is read from the ledgers and from the
durables: a process that stopped left nothing behind.
"""

import asyncio
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from functools import partial
from itertools import compress
from operator import not_
from typing import Final

from ... import telemetry
from ...domain.events import EventIgnored, Trigger
from ...domain.totals import OTHER
from ...engine.stage import Access, Stage, StageContext, attempted, woken
from ...ports import (
    Clock,
    Delivery,
    EventDurable,
    EventLog,
    EventReader,
    EventStreams,
    LogUnavailable,
    NotAllowed,
    Publish,
    RequestRefused,
    acknowledge,
)
from ...subjects import Bucket, DecodeError
from .batcher import Batcher
from .debouncer import Debouncer, TooManyKeys
from .read_progress import ReadProgress
from .requests import executions_of, refusal_of, request_of, starts_execution, waiting_event
from .trigger_index import ActiveTrigger, TriggerIndex
from .waiting_room import WaitingRoom, WaitingRule

AT_ONCE: Final = 32
"""Messages that are read together, fewer if they are large."""
WAIT_S: Final = 20.0
"""How long a request for messages stays with the server."""
EXTEND_S: Final = 10.0
"""How often the acknowledgement wait of the messages of a batch begins again."""
MAX_BATCH_BYTES: Final = 4_194_304
"""Bytes of messages after which a batch takes no more."""
RETRY_S: Final = 2.0
FULL_RETRY_S: Final = 60.0
"""The time after which an event comes again if a trigger has too many keys. The server delivers such events before new events, which are to have their turns."""
LOOK_S: Final = 30.0
"""The time after which the durables are compared with the triggers although nothing changed."""

_log = telemetry.get_logger("tocsin.event_listener")
_events: Final = telemetry.meter().create_counter(
    "tocsin_trigger_events",
    description="Events of triggers that were handled, by `job` and `outcome`: `started` (also if they wait for others), `ignored` or `refused`.",
)
_lag: Final = telemetry.meter().create_gauge(
    "tocsin_trigger_lag_seconds",
    description="Age of the newest event that was taken for a trigger of a `job`, when it was taken; 0: no event waits.",
)


class TriggerMetrics:
    """Counts events, and how far triggers are behind, for a bounded number of jobs.

    Both are of this process. Copies of the stage share the durables, so sum the counter and take the maximum of the lag.
    """

    def __init__(self, *, max_jobs: int) -> None:
        """`max_jobs`: jobs with series of their own; all others have one together."""
        self._max_jobs = max_jobs
        self._jobs: set[str] = set()
        self._lags: dict[str, dict[str, float]] = {}
        """By job as it is shown, and durable: seconds."""

    def taken(self, active: ActiveTrigger, deliveries: Sequence[Delivery], now: datetime) -> None:
        """Note the events that were taken together; none: no event waits."""
        newest = max((delivery.time for delivery in deliveries), default=now)
        self._set(active, max(0.0, (now - newest).total_seconds()))

    def stopped(self, active: ActiveTrigger) -> None:
        """Note that a trigger is not read here any more."""
        self._set(active, None)

    def handled(self, active: ActiveTrigger, requests: Sequence[Publish | None]) -> None:
        """Count the events whose requests are stored; None: an event that made no request."""
        job = self._shown(active.job)
        for request in requests:
            is_ignored = request is None or isinstance(request.message, EventIgnored)
            outcome = "ignored" if is_ignored else "started" if starts_execution(request) else "refused"
            _events.add(1, {"job": job, "outcome": outcome})

    def _set(self, active: ActiveTrigger, lag: float | None) -> None:
        job = self._shown(active.job)
        lags = self._lags.setdefault(job, {})
        if lag is None:
            lags.pop(active.durable.name, None)
        else:
            lags[active.durable.name] = lag
        _lag.set(max(lags.values(), default=0.0), {"job": job})

    def _shown(self, job: str) -> str:
        if job not in self._jobs and len(self._jobs) < self._max_jobs:
            self._jobs.add(job)
        return job if job in self._jobs else OTHER


class EventListener:
    """Hears the events of triggers."""

    def __init__(  # noqa: PLR0913 - the parts of a listener
        self,
        log: EventLog,
        streams: EventStreams,
        index: TriggerIndex,
        debouncer: Debouncer,
        batcher: Batcher,
        clock: Clock,
        key: bytes,
        *,
        metrics: TriggerMetrics,
        room: WaitingRoom,
    ) -> None:
        """`key`: that of the installation."""
        self.debouncer = debouncer
        self._room = room
        self._batcher = batcher
        self._log = log
        self._streams = streams
        self._clock = clock
        self._key = key
        self._metrics = metrics
        self.index = index
        self._readers: dict[EventDurable, asyncio.Task[None]] = {}

    async def listen(self) -> None:
        """Read the durables of the triggers in force."""
        try:
            while True:
                self.index.changed.clear()
                try:
                    await self.run_once()
                except LogUnavailable as error:
                    _log.info("triggers wait for JetStream", action="log-unavailable", error=str(error))
                    await self._clock.sleep(RETRY_S)
                    continue
                await woken(self.index.changed, self._clock, LOOK_S)
        finally:
            await self._stop(self._readers.keys())

    async def run_once(self) -> None:
        """Create the durables that are missing, remove those that nothing needs, and read the others.

        Raises:
            LogUnavailable: the server did not answer.
        """
        found = {stream: await self._found(stream) for stream in self.index.streams}
        await self.index.current()  # after the durables were read: what another copy created is known
        active = self.index.active
        wanted = {each.durable for each in active.values()}
        self._room.forget_all_but({each.job for each in active.values()})
        await self._stop([durable for durable in self._readers if durable not in wanted])
        for stream, names in found.items():
            for name in names:
                has_moved = name in active and active[name].durable.stream != stream
                if has_moved or name not in self.index.needed:
                    await self._streams.remove(stream, name)
                    await self._batcher.forget(name)
        for name, each in active.items():
            if name in found[each.durable.stream] or await self._create(each):
                task = self._readers.get(each.durable)
                if task is None or task.done():
                    self._readers[each.durable] = asyncio.create_task(self._hear(each), name="event_listener")

    async def _found(self, stream: str) -> Collection[str]:
        try:
            return await self._streams.names(stream)
        except NotAllowed as error:
            _log.error("stream not readable", action="stream-not-allowed", stream=stream, error=str(error))
            return ()

    async def _create(self, active: ActiveTrigger) -> bool:
        try:
            await self._streams.create(active.durable)
        except (RequestRefused, NotAllowed) as error:
            _log.error("trigger hears nothing", action="durable-refused", job=active.job, error=str(error))
            return False
        return True

    async def _stop(self, durables: Iterable[EventDurable]) -> None:
        stopped = [self._readers.pop(durable) for durable in [*durables]]
        for task in stopped:
            task.cancel()
        await asyncio.gather(*stopped, return_exceptions=True)

    async def _hear(self, active: ActiveTrigger) -> None:
        try:
            while True:
                await attempted(partial(self._hear_on, active), _log, "events not handled; retrying", job=active.job)
                await self._clock.sleep(RETRY_S)
        finally:
            self._metrics.stopped(active)
            self.debouncer.progress.forget(active.durable.name)

    async def _hear_on(self, active: ActiveTrigger) -> None:
        async with self._streams.reading(active.durable) as reader:
            self.debouncer.progress.begin(active.durable.name)
            while True:
                taken = await self.take(active, reader)
                await self.handle_in_room(active, taken)

    async def take(self, active: ActiveTrigger, reader: EventReader) -> Sequence[Delivery]:
        """Return messages to handle together: those of a batch, if the trigger has one.

        Raises:
            LogUnavailable: the durable is gone, or the server did not answer.
        """
        batch = self.index.active.get(active.durable.name, active).trigger.batch
        if batch is None:
            return await reader.take(AT_ONCE, wait=WAIT_S)
        messages = [*await reader.take(min(AT_ONCE, batch.max), wait=WAIT_S)]
        began = extended = self._clock.monotonic()
        while messages and len(messages) < batch.max and sum(len(each.body) for each in messages) < MAX_BATCH_BYTES:
            left = began + batch.within - self._clock.monotonic()
            if left <= 0:
                break
            messages += await reader.take(min(AT_ONCE, batch.max - len(messages)), wait=min(left, EXTEND_S))
            if self._clock.monotonic() - extended >= EXTEND_S:
                extended = self._clock.monotonic()
                for message in messages:
                    await message.in_progress()
        return messages

    async def handle_in_room(self, active: ActiveTrigger, deliveries: Sequence[Delivery]) -> None:
        """Handle messages as far as their executions may wait; keep the others until they may.

        Raises:
            LogUnavailable: the log did not answer.
        """
        name, looked_at = active.durable.name, self._clock.monotonic()
        self._metrics.taken(active, deliveries, self._clock.now())
        while deliveries:
            if not await self.index.may_hear(active):
                _log.warning("events of a hidden job dropped", action="job-hidden", job=active.job)
                await acknowledge(deliveries)
                return
            rule = self._waiting_rule(name)
            room = None if rule is None else await self._room.room(active.job, rule)
            deliveries = await self.handle(name, deliveries, room=room)
            if deliveries and self._clock.monotonic() - looked_at >= EXTEND_S:
                looked_at = self._clock.monotonic()
                self._metrics.taken(active, deliveries, self._clock.now())
                for delivery in deliveries:
                    await delivery.in_progress()

    def _waiting_rule(self, name: str) -> WaitingRule | None:
        active = self.index.active.get(name)
        return None if active is None else active.waiting

    async def handle(self, name: str, deliveries: Sequence[Delivery], *, room: int | None = None) -> Sequence[Delivery]:
        """Store the requests that messages of a durable make, and acknowledge what is stored.

        A request that the log refuses for good is stored without the input of the event, so that the event is recorded once. The rest is
        delivered again.

        `room`: the executions that may start; None: any number. Return the messages from the first on that finds no room.

        Raises:
            LogUnavailable: the log did not answer.
        """
        if not deliveries:
            return ()
        await self.index.current()
        active = self.index.active.get(name)
        if active is None:  # its durable is removed soon
            for delivery in deliveries:
                await delivery.nak(RETRY_S)
            return ()
        self.debouncer.progress.take(name, deliveries)
        requests: list[Publish | None] = []
        for delivery in deliveries:
            request = self._request(active, delivery)
            if room is not None and starts_execution(request):
                if not room:
                    break
                room -= 1
            requests.append(request)
            await asyncio.sleep(0)  # a large event takes long to evaluate
        deliveries, kept = deliveries[: len(requests)], deliveries[len(requests) :]
        errors = await self._store(active, requests)
        if refused := {each: error for each, error in errors.items() if not isinstance(error, LogUnavailable)}:
            requests = [
                request
                if request is None or (error := refused.get(request.message_id)) is None
                else refusal_of(active, delivery, error, self._key)
                for delivery, request in zip(deliveries, requests, strict=True)
            ]
            errors = await self._store(active, requests)  # the log stores each id once
        unstored = [request is not None and request.message_id in errors for request in requests]
        if (rule := self._waiting_rule(name)) is not None:
            self._room.requested(active.job, rule, executions_of(active, compress(requests, map(not_, unstored))))
        await acknowledge([*compress(deliveries, map(not_, unstored))])
        self._metrics.handled(active, [*compress(requests, map(not_, unstored))])
        for delivery, request in compress(zip(deliveries, requests, strict=True), unstored):
            is_full = request is not None and isinstance(errors.get(request.message_id), TooManyKeys)
            await delivery.nak(FULL_RETRY_S if is_full else RETRY_S)
        return kept

    def _request(self, active: ActiveTrigger, delivery: Delivery) -> Publish | None:
        try:
            return request_of(active, delivery, self._key)
        except DecodeError as error:
            _log.error("event unreadable, skipped", action="unreadable", sequence=delivery.sequence, error=str(error))
            return None

    async def _store(self, active: ActiveTrigger, requests: Iterable[Publish | None]) -> dict[str, Exception]:
        """Store or hold requests, each id once; return the errors by id."""
        each = {request.message_id: request for request in requests if request is not None}
        waiting = {id_: event for id_, request in each.items() if (event := waiting_event(active, request)) is not None}
        combine = self.debouncer.hold if active.trigger.batch is None else self._batcher.store
        errors = await combine(active, waiting)
        each = {id_: request for id_, request in each.items() if id_ not in waiting}
        results = await self._log.write([*each.values()]) if each else []
        errors |= {id_: result.error for id_, result in zip(each, results, strict=True) if result.error is not None}
        for error in errors.values():
            if not isinstance(error, LogUnavailable):
                _log.error("request for an event refused", action="request-refused", error=str(error))
        return errors


def _start(context: StageContext) -> EventListener | None:
    if context.event_streams is None:
        return None
    index = TriggerIndex(context.log, context.clock, context.event_streams, context.settings)
    debouncer = Debouncer(
        context.log,
        context.projections,
        context.clock,
        context.report_key,
        ReadProgress(context.event_streams, index, context.clock),
        max_keys=context.settings.triggers.max_keys,
    )
    batcher = Batcher(context.log, context.event_streams, context.projections, context.report_key)
    return EventListener(
        context.log,
        context.event_streams,
        index,
        debouncer,
        batcher,
        context.clock,
        context.report_key,
        metrics=TriggerMetrics(max_jobs=context.settings.metrics.max_jobs),
        room=WaitingRoom(context.clock, context.fold),
    )


EVENT_LISTENER: Final = Stage(
    name="event_listener",
    purpose="lets events start executions of the jobs whose triggers name them",
    consumes="messages of streams that the settings open, requests to webhooks, and ends of executions: a durable for each trigger",
    decides="triggers, which the planner decides on; `event-ignored` of events that start nothing",
    access=Access(
        appends=(Trigger, EventIgnored),
        writes=((Bucket.TRIGGERS, ">"),),
        hears_events=True,
    ),
    start=_start,
    loops=(
        lambda listener: listener.index.follow(),
        EventListener.listen,
        lambda listener: listener.debouncer.end_windows(),
    ),
)
