"""The jobs of an installation: read, register, pause, resume, delete, trigger."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Final, TypeVar
from uuid import uuid4

from pydantic import JsonValue

from ... import subjects
from ...domain import execution_plan, ledger
from ...domain.definition import JobDefinition, check_input
from ...domain.events import Actor, DefinitionFact, Input, Message, Namespace, Recorded, Trigger, TriggerSource
from ...domain.ledger import JobNotFound, Ledger
from ...domain.namespaces import check_references
from ...domain.policy import check_timeouts
from ...domain.trace_context import parse
from ...engine.ledger_reader import LedgerReader
from ...ports import Clock, EventLog, LogUnavailable, OutdatedState, Projections, SequenceConflict
from ..daily_room import ChangeRoom, without_room
from ..documents import Policies, Recent, Take, unlimited
from ..namespaces import Namespaces
from .dependencies import MaySee, all_visible, check_dependencies
from .job import Change, Check, Job, Plan, Verb, anything, plan_of
from .quotas import RegisteredJobs, check_quotas
from .transports import (
    check_class,
    check_dependents,
    check_partitions,
    check_sizes,
    check_transports,
    check_trigger_circles,
    check_webhook_paths,
)

TRIES: Final = 5
"""Tries to append a change while other writers change the job."""
AT_ONCE: Final = 64
"""Ledgers read or changed concurrently."""
T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class RequestName:
    """Idempotency key of a request.

    The log itself detects a repeated key within its deduplication window. `is_retried`: the request may be older than
    that. `since`: when the key was first used; without it, a retry requests a second execution.
    """

    name: str
    is_retried: bool = False
    since: datetime | None = None


ANSWER_PAUSES: Final = (0.0, 0.05, 0.1, 0.2, 0.4, 0.8)
"""Pauses before each read of an input that is stored, because a lagging replica may answer."""


async def read_back(log: EventLog, subject: str, sequence: int) -> Recorded[Message]:
    """Read a message just stored, with its time in the log.

    `subject`: its subject or scope.

    Raises:
        LogUnavailable: it is stored, but no replica returns it.
    """
    for pause in ANSWER_PAUSES:
        await asyncio.sleep(pause)
        stored = await log.get(subject, sequence)
        if stored is not None:
            return stored
    raise LogUnavailable(f"message {sequence} of {subject} is stored, but cannot be read back")


class Registry:
    """The jobs of an installation. `by` is the caller and is recorded in events.

    Operations on one job raise JobNotFound if none has the name.
    """

    def __init__(self, log: EventLog, projections: Projections, clock: Clock, *, bridged: Collection[str] = ()) -> None:
        """`clock` refuses a job that is scheduled once for a past time.

        `bridged`: the queues of executors outside, which run no built-in functions.
        """
        self._bridged = frozenset(bridged)
        self._log = log
        self._clock = clock
        self.policies = Policies(log)
        self.recent_policy = Recent(self.policies, clock)
        self.namespaces = Recent(Namespaces(log), clock)
        self.room = ChangeRoom(self.namespaces, projections, clock)
        self._projections = projections
        self._ledgers = LedgerReader(log)
        self._listing = RegisteredJobs(self._ledgers)

    async def jobs(self) -> tuple[Job, ...]:
        """Return every registered job, sorted by name, from its ledger."""
        return await self._listing.jobs()

    def last_listed(self, name: str) -> Job | None:
        """Return a job as of the last list; None: it was not registered."""
        return self._listing.by_name.get(name)

    async def job(self, name: str) -> Job:
        """Return one job from its ledger."""
        state, _ = await self._ledgers.load(name)
        job = Job.of(state)
        if job is None:
            raise JobNotFound(name)
        return job

    async def plan(
        self,
        definitions: Collection[JobDefinition],
        *,
        prune: Collection[str] = (),
        may_see: MaySee = all_visible,
        may_prune: Callable[[Job], bool] = lambda _: True,
    ) -> Plan:
        """Plan how to register `definitions` and delete other jobs of the owners in `prune`.

        `may_see`: whether an error may name a job. `may_prune`: whether a job may be deleted; an owner may have jobs beyond the reach
        of the caller. The checks count no job that the plan deletes.
        """
        by_name = {definition.name: definition for definition in definitions}
        declared = await self._check(by_name.values())
        states = await self._states([*by_name])
        pruned = filter(may_prune, await self.jobs() if prune else ())
        plan = plan_of(by_name, states, pruned, prune, now=self._clock.now())
        await check_quotas(declared, plan.changes, self.jobs, self._clock.now())
        deleted = {change.job for change in plan.of("delete")}

        async def jobs_left() -> Sequence[Job]:
            return [job for job in await self.jobs() if job.name not in deleted]

        async def states_left(jobs: Sequence[str]) -> Sequence[Ledger]:
            states = await self._states(jobs)
            return [ledger.initial if job in deleted else state for job, state in zip(jobs, states, strict=True)]

        await check_dependents(by_name, jobs_left, may_see)
        await check_trigger_circles(by_name, states_left, may_see)
        await check_webhook_paths(by_name, jobs_left, may_see)
        return replace(plan, unknown=await check_dependencies(by_name, states_left, may_see))

    async def _check(self, definitions: Collection[JobDefinition]) -> tuple[Namespace, ...]:
        """Refuse definitions that this installation cannot store or run; return its namespaces."""
        check_sizes(definitions)
        await check_class(definitions, self._log, self._bridged)
        check_transports(definitions, self._bridged)
        check_timeouts(definitions, (await self.policies.newest()).policy)
        declared = await Namespaces(self._log).newest()
        check_references(definitions, declared.names)
        await check_partitions(definitions, self._log)
        return declared.namespaces

    async def _states(self, jobs: Sequence[str]) -> Sequence[Ledger]:
        return [state for state, _ in await self._ledgers.load_each(jobs)]

    async def carry_out(
        self, plan: Plan, *, by: Actor | None = None, reason: str | None = None, check: Check = anything
    ) -> None:
        """Carry out a plan. Idempotent; a job that another owner took over is not deleted.

        Raises:
            SequenceConflict: the plan is guarded, and a job was changed since. Others may be changed already.
        """
        changes = plan.of("create", "update", "delete")
        await self.room.take_each(
            (change.job, fact)
            for change in changes
            if change.verb != "delete"
            for fact in self._facts(change, by, reason)(change.before)
        )
        do = partial(self._carry_out, by=by, reason=reason, check=check, is_guarded=plan.is_guarded)
        # A new job may take over what a deleted job had, such as its webhook.
        for portion in (plan.of("delete"), plan.of("create", "update")):
            await each(portion, do)

    async def define(
        self,
        definition: JobDefinition,
        *,
        by: Actor | None = None,
        reason: str | None = None,
        check: Check = anything,
        may_see: MaySee = all_visible,
    ) -> Verb:
        """Register or update a job; return what changed (ojs-cron §8.1, CRON-26). `may_see`: see `plan`."""
        verb: Verb = "unchanged"
        await self.plan([definition], may_see=may_see)  # it refuses a definition that cannot be registered

        def decide(state: Ledger) -> Sequence[DefinitionFact]:
            nonlocal verb
            facts = ledger.define(state, definition, by=by, reason=reason, now=self._clock.now())
            verb = "unchanged" if not facts else "create" if state.definition is None else "update"
            return facts

        await self._decide(definition.name, decide, check, take=self.room.of_name(definition.name))
        return verb

    async def apply(
        self,
        definitions: Collection[JobDefinition],
        *,
        prune: Collection[str] = (),
        dry_run: bool = False,
        by: Actor | None = None,
    ) -> Plan:
        """Register `definitions`; return the plan. With `dry_run` nothing is changed."""
        plan = await self.plan(definitions, prune=prune)
        if not dry_run:
            await self.carry_out(plan, by=by)
        return plan

    async def pause(
        self, job: str, *, by: Actor | None = None, reason: str | None = None, check: Check = anything
    ) -> bool:
        """Pause a job, so that its instants pass; return whether it ran before."""
        take = self.room.of_name(job, is_refused=False)
        return await self._decide(job, lambda state: ledger.pause(state, job, by=by, reason=reason), check, take=take)

    async def resume(
        self, job: str, *, by: Actor | None = None, reason: str | None = None, check: Check = anything
    ) -> bool:
        """Resume a job, so that its instants fire; return whether it was paused."""
        take = self.room.of_name(job)
        return await self._decide(job, lambda state: ledger.resume(state, job, by=by, reason=reason), check, take=take)

    async def delete(
        self, job: str, *, by: Actor | None = None, reason: str | None = None, check: Check = anything
    ) -> None:
        """Delete a job; its active executions continue."""
        take = self.room.of_name(job, is_refused=False)
        await self._decide(job, lambda state: ledger.delete(state, job, by=by, reason=reason), check, take=take)

    async def trigger(  # noqa: PLR0913 - the fields of a trigger
        self,
        job: str,
        input: Input | None = None,  # noqa: A002 - the field is called so
        args: Sequence[JsonValue] | None = None,
        *,
        by: Actor | None = None,
        kind: TriggerSource = "manual",
        priority: int | None = None,
        reason: str | None = None,
        traceparent: str | None = None,
        idempotency_key: str | None = None,
        asking: RequestName | None = None,
        check: Check = anything,
    ) -> str:
        """Request an execution now and return its id.

        The keys of `input` override those of the definition, and `priority` replaces its own. Requests of the job with one
        `idempotency_key` make one execution, until 24 hours after its end, and so do requests with one name (`asking`). The
        execution continues the trace of `traceparent`, if that is valid.

        Raises:
            DefinitionError: the job does not accept this input.
            DailyQuotaUsed: its namespace has used up a quota of the day.
            LogUnavailable: it is unknown whether the trigger is stored.
        """
        registered = await self.job(job)
        check(registered)
        definition = registered.definition
        given = None if args is None else tuple(args)
        context = parse(traceparent)
        trigger = Trigger(
            trigger=kind,
            input=input,
            args=given,
            by=by,
            priority=priority,
            reason=reason,
            traceparent=None if context is None else context.traceparent,
            idempotency_key=idempotency_key,
        )
        check_input(definition, input or {}, args)
        # A retried request chooses the same id, which is also that of the message.
        since, name = (asking.since, asking.name) if asking else (None, uuid4().hex)
        request = Recorded(trigger, "", 0, since or self._clock.now(), name)
        execution_id = execution_plan.execution_id_of(request, job)
        subject = subjects.trigger(job, execution_id)
        if asking and asking.is_retried and await self._log.tail(subject):
            return execution_id
        for full in (await without_room(self.namespaces, self._projections, self._clock, [job])).values():
            raise full
        await self._log.publish(subject, trigger, message_id=execution_id)
        return execution_id

    async def _carry_out(
        self, change: Change, *, by: Actor | None, reason: str | None, check: Check, is_guarded: bool
    ) -> None:
        definition = change.definition

        def check_all(job: Job | None) -> None:
            check(job)
            if is_guarded:
                change.require_planned(job)

        is_delete = change.verb == "delete"
        take = self.room.of_name(change.job, is_refused=False) if is_delete else unlimited  # others are counted before
        await self._decide(definition.name, self._facts(change, by, reason), check_all, take=take)

    def _facts(
        self, change: Change, by: Actor | None, reason: str | None
    ) -> Callable[[Ledger], Sequence[DefinitionFact]]:
        definition = change.definition

        def decide(state: Ledger) -> Sequence[DefinitionFact]:
            if change.verb != "delete":
                return ledger.define(state, definition, by=by, reason=reason, now=self._clock.now())
            is_owner = state.definition is not None and state.definition.owner == definition.owner
            return ledger.delete(state, definition.name, by=by, reason=reason or "pruned") if is_owner else []

        return decide

    async def _decide(
        self, job: str, decide: Callable[[Ledger], Sequence[DefinitionFact]], check: Check, *, take: Take
    ) -> bool:
        """Append the facts of a decision in their room; return whether there were any."""
        for _ in range(TRIES):
            state, sequence = await self._ledgers.load(job)
            check(Job.of(state))
            if facts := decide(state):
                await take(facts)
                take = unlimited
            try:
                for fact in facts:
                    sequence = await self._log.append(fact, expect=sequence)
            except OutdatedState:
                continue
            return bool(facts)
        raise SequenceConflict(f"cannot change {job!r}: another writer changed it on each of {TRIES} tries. Try again.")


async def each(items: Iterable[T], do: Callable[[T], Awaitable[R]]) -> Sequence[R]:
    """Apply `do` to each item, `AT_ONCE` concurrently, and return the results in order."""
    limit = asyncio.Semaphore(AT_ONCE)

    async def one(item: T) -> R:
        async with limit:
            return await do(item)

    return await asyncio.gather(*(one(item) for item in items))
