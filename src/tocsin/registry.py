"""Who asks: registers, updates, pauses, resumes, deletes and triggers jobs, for the command line and the HTTP API alike.

Every change is a fact that the domain decides on and the ledger's guard accepts; what is read here is the ledger itself and
not its projection, so that an answer is right the moment after a change, whether or not a stage is running.

Implements hip-62 (API Endpoints: `/v1/jobs`; Audit Trail) and ojs-cron §8 (CRON-26 to CRON-28).
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Final, Literal, TypeAlias, TypeVar, cast
from uuid import uuid4

from pydantic import JsonValue

from . import subjects
from .domain import ledger, planning
from .domain.definition import STORED, JobDefinition, check_input
from .domain.difference import Difference, differing
from .domain.effects import Effects, effects
from .domain.events import Actor, DefinitionFact, Input, Message, Recorded, Trigger, TriggerSource
from .domain.ledger import JobNotFound, Ledger
from .domain.registration import Registration
from .ledgers import Ledgers
from .ports import EventLog, LogUnavailable, Projections, SequenceConflict
from .subjects import Bucket, Stream, Unreadable

TRIES: Final = 5
"""How often a change is decided anew when somebody else changed the job in between."""

AT_ONCE: Final = 64
"""Ledgers that are read or changed at the same time."""

ANSWER_PAUSES: Final = (0.0, 0.05, 0.1, 0.2, 0.4, 0.8)
"""Seconds before each look for a message just stored: a replica that lags behind may be asked."""

Verb: TypeAlias = Literal["create", "update", "unchanged", "delete"]
Check: TypeAlias = Callable[["Job | None"], None]
"""Raises what it likes if a change must not be made to this job (None: there is none); asked on the very state decided on."""
T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Asking:
    """What a caller calls a request, so that asking again asks for nothing new.

    The log knows the name again for as long as its window is; `is_retried` says that it may have been asked before that,
    which costs a look at everything that was asked of the job.
    """

    name: str
    is_retried: bool = False


@dataclass(frozen=True, slots=True)
class Change:
    """What a plan does with one job. `definition` is what it will have, or for `delete` what it had."""

    verb: Verb
    definition: JobDefinition
    differences: tuple[Difference, ...] = ()
    before: Ledger = ledger.initial
    """The job's ledger that this was planned on."""

    def effects(self, now: datetime, ahead: timedelta) -> Effects:
        """What it does to the job's time in the days to come."""
        after = None if self.verb == "delete" else self.definition
        return effects(self.before, after, now, now + ahead)

    @property
    def job(self) -> str:
        """The job's name."""
        return self.definition.name


@dataclass(frozen=True, slots=True)
class Plan:
    """What it takes to make the registered jobs those of some definitions."""

    changes: tuple[Change, ...]

    def of(self, *verbs: Verb) -> tuple[Change, ...]:
        """The changes of some kinds."""
        return tuple(change for change in self.changes if change.verb in verbs)

    @property
    def has_differences(self) -> bool:
        """Something is to be done."""
        return any(change.verb != "unchanged" for change in self.changes)


@dataclass(frozen=True, slots=True)
class Job:
    """A registered job: the definition in force, and the ledger that says the rest."""

    definition: JobDefinition
    defined_at: datetime
    sequence: int
    """The last fact on its definition."""
    ledger: Ledger

    @classmethod
    def of(cls, state: Ledger) -> "Job | None":
        """What a ledger says; None: there is no such job."""
        registration = Registration.of(state)
        if registration is None:
            return None
        return cls(registration.definition, registration.defined_at, registration.sequence, state)

    @property
    def name(self) -> str:
        """The job's name."""
        return self.definition.name

    @property
    def created_at(self) -> datetime:
        """When it was registered first (UTC)."""
        return self.ledger.created_at or self.defined_at

    @property
    def created_by(self) -> str | None:
        """The identity of who did, if that was said."""
        return self.ledger.created_by

    @property
    def status(self) -> Literal["active", "paused", "disabled", "on demand"]:
        """Whether its schedule fires, and if not why."""
        if self.ledger.is_paused:
            return "paused"
        if not self.definition.enabled:
            return "disabled"
        return "active" if self.definition.schedule else "on demand"

    def fire_times(self, after: datetime) -> Iterator[datetime]:
        """The instants later than `after` (UTC) at which it fires if nothing changes, without end where it has none."""
        at = ledger.next_fire_time(self.ledger, after)
        while at is not None:
            yield at
            at = ledger.next_fire_time(self.ledger, at)

    def next_fire_time(self, after: datetime) -> datetime | None:
        """The first of them (CRON-28)."""
        return next(self.fire_times(after), None)


def _anything(_: Job | None) -> None:
    """No condition."""


class Registry:
    """The jobs of an installation. `by` is who asks, and is recorded."""

    def __init__(self, log: EventLog, projections: Projections) -> None:
        self._log = log
        self._projections = projections
        self._ledgers = Ledgers(log)

    # --- asking ------------------------------------------------------------------------------------------------------

    async def jobs(self) -> tuple[Job, ...]:
        """Every job that is registered now, by name, as its ledger tells it."""
        states = await self._ledgers.load_all()
        found = (Job.of(state) for _, (state, _) in sorted(states.items()))
        return tuple(job for job in found if job is not None)

    async def job(self, name: str, *, fresh: bool = False) -> Job:
        """One job as its ledger tells it; `fresh`: at least as new as whatever anybody was told before this call.

        Raises:
            JobNotFound: there is no such job.
            LogUnavailable: all that answers lags behind.
        """
        tail = await self._log.tail(subjects.ledger(name)) if fresh else 0
        for pause in ANSWER_PAUSES:
            await asyncio.sleep(pause)
            state, last = await self._ledgers.load(name)
            if last >= tail:
                break
        else:
            raise LogUnavailable(f"the ledger of {name!r} has a fact {tail} that cannot be read yet")
        job = Job.of(state)
        if job is None:
            raise JobNotFound(name)
        return job

    async def get(self, name: str) -> Registration:
        """One job as it is registered now.

        Raises:
            JobNotFound: there is no such job.
        """
        registration = Registration.of((await self.job(name)).ledger)
        if registration is None:
            raise JobNotFound(name)
        return registration

    async def list(self) -> tuple[Registration, ...]:
        """Every job as it is projected for whoever lists and watches them: one read, a moment old."""
        found = []
        for key, value in sorted((await self._projections.entries(Bucket.DEFINITIONS)).items()):
            try:
                found.append(Registration.model_validate_json(value, context=STORED))
            except ValueError as error:
                raise Unreadable(f"definitions/{key}: {error}") from error
        return tuple(found)

    # --- changing ----------------------------------------------------------------------------------------------------

    async def plan(self, definitions: Collection[JobDefinition], *, prune: Collection[str] = ()) -> Plan:
        """What applying `definitions` would do. `prune`: owners whose other jobs are to be deleted."""
        given = {definition.name: definition for definition in definitions}
        states = await _each(given, self._ledgers.load)
        changes = [_change(definition, state) for definition, (state, _) in zip(given.values(), states, strict=True)]
        if prune:
            changes += [
                Change("delete", job.definition, before=job.ledger)
                for job in await self.jobs()
                if job.name not in given and job.definition.owner in prune
            ]
        return Plan(tuple(changes))

    async def carry_out(
        self, plan: Plan, *, by: Actor | None = None, reason: str | None = None, check: Check = _anything
    ) -> None:
        """Do what a plan says. Idempotent; a job that went to another owner meanwhile is not deleted."""
        changes = plan.of("create", "update", "delete")
        await _each(changes, partial(self._carry_out, by=by, reason=reason, check=check))

    async def define(
        self, definition: JobDefinition, *, by: Actor | None = None, reason: str | None = None, check: Check = _anything
    ) -> Verb:
        """Register a job, or update it; which of the two it was, if it was any (ojs-cron §8.1, CRON-26)."""
        verb: Verb = "unchanged"

        def decide(state: Ledger) -> Sequence[DefinitionFact]:
            nonlocal verb
            facts = ledger.define(state, definition, by=by, reason=reason)
            verb = "unchanged" if not facts else "create" if state.definition is None else "update"
            return facts

        await self._decide(definition.name, decide, check)
        return verb

    async def apply(
        self,
        definitions: Collection[JobDefinition],
        *,
        prune: Collection[str] = (),
        dry_run: bool = False,
        by: Actor | None = None,
    ) -> Plan:
        """Make the registered jobs those of `definitions`; what was done, or with `dry_run` would be."""
        plan = await self.plan(definitions, prune=prune)
        if not dry_run:
            await self.carry_out(plan, by=by)
        return plan

    async def pause(
        self, job: str, *, by: Actor | None = None, reason: str | None = None, check: Check = _anything
    ) -> bool:
        """Let a job's instants pass without firing; whether that is a change.

        Raises:
            JobNotFound: there is no such job.
        """
        return await self._decide(job, lambda state: ledger.pause(state, job, by=by, reason=reason), check)

    async def resume(
        self, job: str, *, by: Actor | None = None, reason: str | None = None, check: Check = _anything
    ) -> bool:
        """Let a job's instants fire again; whether that is a change.

        Raises:
            JobNotFound: there is no such job.
        """
        return await self._decide(job, lambda state: ledger.resume(state, job, by=by, reason=reason), check)

    async def delete(
        self, job: str, *, by: Actor | None = None, reason: str | None = None, check: Check = _anything
    ) -> None:
        """Remove a job; what already runs, runs on.

        Raises:
            JobNotFound: there is no such job.
        """
        await self._decide(job, lambda state: ledger.delete(state, job, by=by, reason=reason), check)

    async def trigger(
        self,
        job: str,
        input: Input | None = None,  # noqa: A002 - the field is called so
        args: Sequence[JsonValue] | None = None,
        *,
        by: Actor | None = None,
        kind: TriggerSource = "manual",
        reason: str | None = None,
        asking: Asking | None = None,
        check: Check = _anything,
    ) -> str:
        """Ask for a run now; the id that its execution will have. The keys of `input` go over the definition's.

        Whatever is asked under one name is one request, which has one answer.

        Raises:
            JobNotFound: there is no such job.
            DefinitionError: the job does not take this input.
            LogUnavailable: it is stored, but cannot be read back.
        """
        found = await self.job(job)
        check(found)
        definition = found.definition
        trigger = Trigger(trigger=kind, input=input, args=None if args is None else tuple(args), by=by, reason=reason)
        check_input(definition, planning.input_of(trigger, definition), args)
        if asking and asking.is_retried and (before := await self._triggered(job, asking.name)):
            return planning.execution_id_of(before, job)
        message_id = asking.name if asking else uuid4().hex
        sequence = await self._log.publish(subjects.trigger(job), trigger, message_id=message_id)
        # The id is made of the time at which the log stored the message, which only the log knows.
        stored = await read_back(self._log, Stream.LEDGER, sequence)
        as_asked = Recorded(trigger, stored.subject, sequence, stored.time, message_id)
        return planning.execution_id_of(as_asked, job)

    async def _triggered(self, job: str, message_id: str) -> Recorded[Trigger] | None:
        """The trigger that was stored under a message id."""
        after = 0
        while batch := await self._log.read(subjects.trigger(job), after=after):
            for recorded in batch:
                if recorded.message_id == message_id and isinstance(recorded.message, Trigger):
                    return cast("Recorded[Trigger]", recorded)
            after = batch[-1].sequence
        return None

    async def _carry_out(self, change: Change, by: Actor | None, reason: str | None, check: Check) -> None:
        definition = change.definition

        def decide(state: Ledger) -> Sequence[DefinitionFact]:
            if change.verb != "delete":
                return ledger.define(state, definition, by=by, reason=reason)
            mine = state.definition is not None and state.definition.owner == definition.owner
            return ledger.delete(state, definition.name, by=by, reason=reason or "pruned") if mine else []

        await self._decide(definition.name, decide, check)

    async def _decide(
        self, job: str, decide: Callable[[Ledger], Sequence[DefinitionFact]], check: Check = _anything
    ) -> bool:
        """Append what `decide` says about a job's ledger; whether it said anything.

        Raises:
            SequenceConflict: the ledger moved each time.
        """
        for _ in range(TRIES):
            state, sequence = await self._ledgers.load(job)
            check(Job.of(state))
            facts = decide(state)
            try:
                for fact in facts:
                    sequence = await self._log.append(fact, expect=sequence)
            except SequenceConflict:
                continue
            return bool(facts)
        raise SequenceConflict(f"{job!r} was changed by others {TRIES} times meanwhile: try again")


async def read_back(log: EventLog, stream: Stream, sequence: int) -> Recorded[Message]:
    """A message just stored, with the time that the log gave it.

    Raises:
        LogUnavailable: it is stored, but cannot be read back.
    """
    for pause in ANSWER_PAUSES:
        await asyncio.sleep(pause)
        stored = await log.get(stream, sequence)
        if stored is not None:
            return stored
    raise LogUnavailable(f"message {sequence} of {stream.value} is stored, but cannot be read back")


# --- what differs ----------------------------------------------------------------------------------------------------


def _change(definition: JobDefinition, state: Ledger) -> Change:
    if state.definition is None:
        return Change("create", definition, before=state)
    differences = tuple(differing(state.definition, definition))
    return Change("update" if differences else "unchanged", definition, differences, state)


async def _each(items: Iterable[T], do: Callable[[T], Awaitable[R]]) -> Sequence[R]:
    limit = asyncio.Semaphore(AT_ONCE)

    async def one(item: T) -> R:
        async with limit:
            return await do(item)

    return await asyncio.gather(*(one(item) for item in items))
