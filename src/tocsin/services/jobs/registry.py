"""The jobs of an installation: each verb that somebody can say about them."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Final, TypeVar, cast
from uuid import uuid4

from pydantic import JsonValue

from ... import subjects
from ...domain import execution_plan, ledger
from ...domain.definition import STORED, JobDefinition, check_input
from ...domain.events import Actor, DefinitionFact, Input, Recorded, Trigger, TriggerSource
from ...domain.job_record import Registration
from ...domain.ledger import JobNotFound, Ledger
from ...engine.ledger_reader import LedgerReader
from ...ports import EventLog, LogUnavailable, OutdatedState, Projections, SequenceConflict
from ...subjects import Bucket, DecodeError, Stream
from .job import Check, Job, anything
from .plan import Change, Plan, Verb, plan_of
from .request import ANSWER_PAUSES, RequestName, read_back

TRIES: Final = 5
"""How often a change is decided anew when somebody else changed the job in between."""
AT_ONCE: Final = 64
"""Ledgers that are read or changed at the same time."""
T = TypeVar("T")
R = TypeVar("R")


class Registry:
    """The jobs of an installation. `by` is who asks, and is recorded."""

    def __init__(self, log: EventLog, projections: Projections) -> None:
        self._log = log
        self._projections = projections
        self._ledgers = LedgerReader(log)

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
                raise DecodeError(f"definitions/{key}: {error}") from error
        return tuple(found)

    # --- changing ----------------------------------------------------------------------------------------------------

    async def plan(self, definitions: Collection[JobDefinition], *, prune: Collection[str] = ()) -> Plan:
        """What applying `definitions` would do. `prune`: owners whose other jobs are to be deleted."""
        given = {definition.name: definition for definition in definitions}
        states = await each(given, self._ledgers.load)
        return plan_of(given, (state for state, _ in states), await self.jobs() if prune else (), prune)

    async def carry_out(
        self, plan: Plan, *, by: Actor | None = None, reason: str | None = None, check: Check = anything
    ) -> None:
        """Do what a plan says. Idempotent; a job that went to another owner meanwhile is not deleted."""
        changes = plan.of("create", "update", "delete")
        await each(changes, partial(self._carry_out, by=by, reason=reason, check=check))

    async def define(
        self, definition: JobDefinition, *, by: Actor | None = None, reason: str | None = None, check: Check = anything
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
        self, job: str, *, by: Actor | None = None, reason: str | None = None, check: Check = anything
    ) -> bool:
        """Let a job's instants pass without firing; whether that is a change.

        Raises:
            JobNotFound: there is no such job.
        """
        return await self._decide(job, lambda state: ledger.pause(state, job, by=by, reason=reason), check)

    async def resume(
        self, job: str, *, by: Actor | None = None, reason: str | None = None, check: Check = anything
    ) -> bool:
        """Let a job's instants fire again; whether that is a change.

        Raises:
            JobNotFound: there is no such job.
        """
        return await self._decide(job, lambda state: ledger.resume(state, job, by=by, reason=reason), check)

    async def delete(
        self, job: str, *, by: Actor | None = None, reason: str | None = None, check: Check = anything
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
        asking: RequestName | None = None,
        check: Check = anything,
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
        check_input(definition, execution_plan.input_of(trigger, definition), args)
        if asking and asking.is_retried and (before := await self._triggered(job, asking.name)):
            return execution_plan.execution_id_of(before, job)
        message_id = asking.name if asking else uuid4().hex
        sequence = await self._log.publish(subjects.trigger(job), trigger, message_id=message_id)
        # The id is made of the time at which the log stored the message, which only the log knows.
        stored = await read_back(self._log, Stream.LEDGER, sequence)
        as_asked = Recorded(trigger, stored.subject, sequence, stored.time, message_id)
        return execution_plan.execution_id_of(as_asked, job)

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
        self, job: str, decide: Callable[[Ledger], Sequence[DefinitionFact]], check: Check = anything
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
            except OutdatedState:
                continue
            return bool(facts)
        raise SequenceConflict(f"{job!r} was changed by others {TRIES} times meanwhile: try again")


async def each(items: Iterable[T], do: Callable[[T], Awaitable[R]]) -> Sequence[R]:
    """Apply `do` to each item, `AT_ONCE` at the same time, and return the results in order."""
    limit = asyncio.Semaphore(AT_ONCE)

    async def one(item: T) -> R:
        async with limit:
            return await do(item)

    return await asyncio.gather(*(one(item) for item in items))
