"""The triggers of all jobs, and the durables that they need."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from ... import subjects, telemetry
from ...domain import ids
from ...domain.definition import EventTrigger, JobDefinition
from ...domain.event_trigger import ends_of, in_circles
from ...domain.events import Defined, Message, Recorded
from ...domain.ledger import Ledger
from ...engine.ledger_reader import LedgerReader, jobs_of
from ...ports import Clock, EventDurable, EventLog, LogUnavailable, OutdatedState
from ...services.jobs.event_triggers import stream_of
from ...subjects import Stream

CHANGES: Final = tuple(subjects.filter_for(f"ledger.{event}") for event in ("defined", "paused", "resumed", "deleted"))
"""Filters over the events that change which triggers are in force."""
RETRY_S: Final = 1.0

_log = telemetry.get_logger("tocsin.event_listener")


class ActiveTrigger(msgspec.Struct, frozen=True):
    """A trigger in force, and its durable."""

    job: str
    trigger: EventTrigger
    durable: EventDurable


class TriggerIndex:
    """Follows which triggers are in force.

    Triggers of jobs that are paused, disabled or deleted are not.
    """

    def __init__(self, log: EventLog, clock: Clock, log_stream: str, opened: Mapping[str, Sequence[str]]) -> None:
        """`log_stream` is the name of the log on the wire.

        `opened`: the subjects of each stream that the settings open.
        """
        self._log = log
        self._clock = clock
        self._ledgers = LedgerReader(log)
        self._log_stream = log_stream
        self._opened = opened
        self._jobs: dict[str, JobDefinition | None] = {}
        """The jobs that have triggers; None: the triggers are not in force."""
        self._active: dict[str, ActiveTrigger] = {}
        self.needed: frozenset[str] = frozenset()
        """The names of the durables of all triggers in force, also of those that only the settings of another process open."""
        self._upto = 0
        self._is_complete = False
        self._progress = asyncio.Event()
        self.changed = asyncio.Event()
        """Set when other triggers are in force."""

    async def follow(self) -> None:
        """Follow the ledgers until cancelled."""
        async for batch in self._log.follow(Stream.LEDGER, *CHANGES, after=None):
            await self._learn(batch.messages, jobs_of(batch.foreign))
            self._upto = max(self._upto, batch.upto)
            self._is_complete = self._is_complete or batch.caught_up
            self._progress.set()

    async def current(self) -> None:
        """Wait until everything is known that was stored before this call.

        Raises:
            LogUnavailable: the log did not answer.
        """
        while True:
            self._progress.clear()  # before the question: what is learned meanwhile ends the wait
            end = await self._log.end(Stream.LEDGER)
            if self._is_complete and (end <= self._upto or not await self._log.has_newer(*CHANGES, after=self._upto)):
                self._upto = max(self._upto, end)  # so that the next call searches only what is newer
                return
            await self._progress.wait()

    @property
    def streams(self) -> tuple[str, ...]:
        """The streams that may have durables of triggers, on the wire."""
        return (self._log_stream, *self._opened)

    @property
    def active(self) -> Mapping[str, ActiveTrigger]:
        """The triggers in force, by the name of their durable."""
        return self._active

    async def _learn(self, messages: Iterable[Recorded[Message]], doubtful: Iterable[str]) -> None:
        """Read the ledgers of jobs that have or had triggers.

        `doubtful`: jobs in whose ledgers a foreign message may hide an event.
        """
        changed = dict.fromkeys(doubtful)
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
        else:
            self._jobs[job] = definition if definition.enabled and not ledger.is_paused else None

    async def _load(self, job: str) -> Ledger:
        while True:
            try:
                return (await self._ledgers.load(job))[0]
            except (LogUnavailable, OutdatedState) as error:
                _log.info("triggers wait for JetStream", action="log-unavailable", job=job, error=str(error))
                await self._clock.sleep(RETRY_S)

    def _choose(self) -> None:
        """Set the triggers in force."""
        triggers = {ids.event_durable(job, trigger.source): (job, trigger) for job, trigger in self._all()}
        self.needed = frozenset(triggers)
        self._active = {
            name: ActiveTrigger(job, trigger, EventDurable(name, *place))
            for name, (job, trigger) in triggers.items()
            if (place := self._place(job, trigger)) is not None
        }

    def _all(self) -> Iterable[tuple[str, EventTrigger]]:
        in_force = {job: definition for job, definition in self._jobs.items() if definition is not None}
        circles = in_circles(in_force.values())
        for job, definition in in_force.items():
            for trigger in definition.triggers:
                if trigger.job is not None and {job, trigger.job} <= circles:
                    _log.error("trigger left out: the jobs start each other", action="trigger-circle", job=job)
                else:
                    yield job, trigger

    def _place(self, job: str, trigger: EventTrigger) -> tuple[str, tuple[str, ...]] | None:
        """Return the stream and the filters of a trigger.

        None: the settings do not open its subject.
        """
        if trigger.nats is None:
            return self._log_stream, subjects.ends(trigger.job or "", *ends_of(trigger))
        stream = stream_of(trigger, self._opened)
        if stream is None:
            _log.warning(
                "trigger left out: `triggers.streams` does not open its subject in one stream",
                action="subject-not-opened",
                job=job,
                subject=trigger.nats,
                stream=trigger.stream,
            )
            return None
        return stream, (trigger.nats,)
