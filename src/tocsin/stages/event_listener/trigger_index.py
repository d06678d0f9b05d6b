"""The triggers of all jobs, and the durables that they need."""

import asyncio
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Final

import msgspec

from ... import subjects, telemetry
from ...domain import ids
from ...domain.definition import EventTrigger, JobDefinition, size_of
from ...domain.definition.webhook_fields import opened_secret
from ...domain.dependency import may_follow
from ...domain.event_trigger import ends_of, in_circles
from ...domain.events import Defined, Message, Recorded
from ...domain.ledger import Ledger
from ...engine.ledger_reader import LedgerReader
from ...ports import Clock, EventDurable, EventLog, EventStreams, LogUnavailable, OutdatedState
from ...settings import Settings
from ...settings.triggers import bucket_place, stream_of
from ...subjects import Stream
from .waiting_room import WaitingRule

CHANGES: Final = tuple(subjects.filter_for(f"ledger.{event}") for event in ("defined", "paused", "resumed", "deleted"))
"""Filters over the events that change which triggers are in force."""
RETRY_S: Final = 1.0

_log = telemetry.get_logger("tocsin.event_listener")


class ActiveTrigger(msgspec.Struct, frozen=True):
    """A trigger in force, and its durable."""

    job: str
    trigger: EventTrigger
    durable: EventDurable
    registered_at: datetime | None
    """The time at which its job was registered first."""
    max_hops: int = 16
    """The hops of an event that may start an execution."""
    own_bytes: int = 0
    """Bytes of the input and args of the job itself, for which a batch leaves room."""
    waiting: WaitingRule | None = None
    """The number of its executions that events may let wait; None: any number."""


class TriggerIndex:
    """Follows which triggers are in force; triggers of paused, disabled or deleted jobs are not."""

    def __init__(self, log: EventLog, clock: Clock, streams: EventStreams, settings: Settings) -> None:
        self._log = log
        self._clock = clock
        self._ledgers = LedgerReader(log)
        self._streams = streams
        self._webhooks = settings.triggers.webhooks
        self._opened = settings.opened_streams
        self._buckets = settings.triggers.buckets
        self._max_hops = settings.triggers.max_hops
        self._jobs: dict[str, JobDefinition | None] = {}
        """The jobs that have triggers; None: the triggers are not in force."""
        self._registered_at: dict[str, datetime | None] = {}
        """The times at which these jobs were registered first."""
        self.active: Mapping[str, ActiveTrigger] = {}
        """The triggers in force, by the name of their durable."""
        self.needed: frozenset[str] = frozenset()
        """The names of the durables of all triggers in force, also of those that only the settings of another process open."""
        self._upto = 0
        self._is_complete = False
        self._progress = asyncio.Event()
        """Set when the next messages are learned; then there is another."""
        self.changed = asyncio.Event()
        """Set when other triggers are in force."""

    async def follow(self) -> None:
        """Follow the ledgers until cancelled."""
        async for batch in self._log.follow(Stream.LEDGER, *CHANGES, after=None):
            await self._learn(batch.messages)
            self._upto = max(self._upto, batch.upto)
            self._is_complete = self._is_complete or batch.caught_up
            progress, self._progress = self._progress, asyncio.Event()
            progress.set()

    async def current(self) -> None:
        """Wait until everything is known that was stored before this call.

        Raises:
            LogUnavailable: the log did not answer.
        """
        while True:
            progress = self._progress  # before the question: what is learned meanwhile ends the wait
            if self._is_complete and not await self._log.has_newer(*CHANGES, after=self._upto):
                return
            await progress.wait()

    async def may_hear(self, active: ActiveTrigger) -> bool:
        """Return whether the viewers in force let a trigger learn of its job's ends."""
        if active.trigger.job is None:
            return True
        return may_follow(await self._load(active.job), await self._load(active.trigger.job))

    @property
    def streams(self) -> tuple[str, ...]:
        """The streams that may have durables of triggers, on the wire."""
        webhooks = (self._streams.webhook_stream,) if self._webhooks else ()
        return (self._streams.log_stream, *self._opened, *self._buckets, *webhooks)

    async def _learn(self, messages: Iterable[Recorded[Message]]) -> None:
        """Read the ledgers of jobs that have or had triggers."""
        changed: dict[str, None] = {}
        for recorded in messages:
            job, message = subjects.job_of(recorded.subject), recorded.message
            if job in self._jobs or (isinstance(message, Defined) and message.definition.triggers):
                changed[job] = None
        for job in changed:
            await self._read(job)
        if changed:
            self._choose()
            self.changed.set()

    async def _read(self, job: str) -> None:
        ledger = await self._load(job)
        definition = ledger.definition
        if definition is None or not definition.triggers:
            self._jobs.pop(job, None)
            self._registered_at.pop(job, None)
        else:
            self._jobs[job] = definition if definition.enabled and not ledger.is_paused else None
            self._registered_at[job] = ledger.created_at

    async def _load(self, job: str) -> Ledger:
        while True:
            try:
                return (await self._ledgers.load(job))[0]
            except (LogUnavailable, OutdatedState) as error:
                _log.info("triggers wait for JetStream", action="log-unavailable", job=job, error=str(error))
                await self._clock.sleep(RETRY_S)

    def _choose(self) -> None:
        triggers = {ids.event_durable(job.name, trigger.source): (job, trigger) for job, trigger in self._all()}
        self.needed = frozenset(triggers)
        self.active = {
            name: ActiveTrigger(
                job.name,
                trigger,
                durable,
                self._registered_at[job.name],
                self._max_hops,
                size_of(job.input) + size_of([*job.args]),
                WaitingRule.of(job, trigger),
            )
            for name, (job, trigger) in triggers.items()
            if (durable := self._durable(name, job.name, trigger)) is not None
        }

    def _all(self) -> Iterable[tuple[JobDefinition, EventTrigger]]:
        in_force = {job: definition for job, definition in self._jobs.items() if definition is not None}
        circles = in_circles(in_force.values())
        for job, definition in in_force.items():
            for trigger in definition.triggers:
                if trigger.job is not None and {job, trigger.job} <= circles:
                    _log.error("trigger left out: the jobs start each other", action="trigger-circle", job=job)
                else:
                    yield definition, trigger

    def _durable(self, name: str, job: str, trigger: EventTrigger) -> EventDurable | None:
        """Return the durable of a trigger; None: the settings do not open its source."""
        streams = self._streams
        if trigger.job is not None:
            return EventDurable(name, streams.log_stream, subjects.ends(trigger.job, *ends_of(trigger)))
        if trigger.webhook is not None and opened_secret(trigger.webhook, trigger.secret, self._webhooks) is not None:
            return EventDurable(name, streams.webhook_stream, (streams.webhook(name),), is_queue=True)
        place = bucket_place(trigger)
        if place is not None and any(subjects.covers(each, place[1]) for each in self._buckets.get(place[0], ())):
            return EventDurable(name, place[0], (place[1],))
        if trigger.nats is not None and (stream := stream_of(trigger, self._opened)) is not None:
            return EventDurable(name, stream, (trigger.nats,))
        _log.warning(
            "trigger left out: the settings do not open its source",
            action="subject-not-opened",
            job=job,
            source=trigger.source,
        )
        return None
