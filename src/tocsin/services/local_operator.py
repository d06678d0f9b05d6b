"""The operator over the log and the history of an installation."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pydantic import JsonValue

from ..domain.agent import AgentRecord
from ..domain.definition import JobDefinition
from ..domain.events import Actor, Input, Message, Namespace, Recorded, Shard, Silence
from ..domain.namespaces import checked
from ..ports import Clock, DeadLetterRow, EventLog, ExecutionRow, History, Projections, StoredLog
from ..ports.errors import SequenceConflict
from ..ports.queries import DeadLetterQuery, ExecutionQuery, NotificationQuery, Page
from ..settings import Settings
from ..telemetry.trace_ids import current_traceparent
from . import agent_grants, tail
from .agent_grants import GrantAnswer, GrantVerb
from .agents import AgentRegistry
from .definition_settings import DefinitionSettings, UnheardStreams
from .documents import has_version
from .hold_ups import HoldUp, HoldUpReader
from .ignored_events import IgnoredEvent, read_ignored, shown
from .jobs import Job, Plan, Registry, RunCounters, read_runs, with_result
from .namespaces import NamespaceChange, NamespaceDetails, NamespaceMap, Namespaces, changes, details
from .notifications import NotificationRow, notifications
from .operations.errors import OperationError
from .operator import OUTCOMES, OpenHistory, last_ended
from .policies import PolicyVersion
from .queue_decisions import PurgeAnswer
from .shards import ShardMap, ShardMaps, owners_of, with_owners
from .silences import Silences

if TYPE_CHECKING:  # a command that lists jobs imports none of the larger operations
    from ..domain.what_if import WhatIfReport
    from .explain import Answer
    from .health import Status
    from .operations.backfill import Asked, Backfill, Span
    from .operations.dead_letter_lookup import Letter
    from .operations.dead_letters import Replay, Resolution
    from .operations.execution_output import ExecutionOutput
    from .operations.execution_requests import Cancellation
    from .operations.fan_out import FanOut
    from .operations.lookup import ExecutionMatch
    from .queues import ListJobs, QueueDetails
    from .statements import StatementResult
    from .timeline import JobRevision
    from .trigger_test import GivenEvent, TriggerAnswer
    from .what_if import Question


class LocalOperator:
    """Implements `Operator` over the log and the history."""

    def __init__(  # noqa: PLR0913 - each is a part of the installation
        self,
        log: EventLog,
        stored: StoredLog,
        projections: Projections,
        clock: Clock,
        *,
        history: OpenHistory,
        queues: "Callable[[ListJobs], Awaitable[tuple[QueueDetails, ...]]]",
        status: "Callable[[], Awaitable[Status]]",
        settings: Settings,
        unheard_streams: Callable[[], Awaitable[UnheardStreams]] | None = None,
        by: Actor | None = None,
    ) -> None:
        """Operate on an installation.

        `history` opens the history at its first use, `queues` reads the queues, `status` the state of all parts,
        `unheard_streams` the streams that no trigger can hear, and `by` is recorded with each change.
        """
        self._projections = projections
        self._settings = settings
        self._bridged = bridged = settings.bridged_queues
        self._log = log
        self._stored = stored
        self._clock = clock
        self._history = history
        self._status = status
        self._unheard_streams = unheard_streams
        self._by = by
        self._registry = Registry(log, projections, clock, bridged=bridged)
        self._queues = queues
        self._agents = AgentRegistry(log, projections)

    async def jobs(self) -> tuple[Job, ...]:
        return await self._registry.jobs()

    async def job(self, name: str) -> Job:
        return await self._registry.job(name)

    async def run_counters(self, job: str) -> RunCounters | None:
        async with self._history() as history:
            runs = await read_runs(history, [job])
            return None if runs is None else await with_result(history, runs[job])

    async def all_run_counters(self) -> Mapping[str, RunCounters]:
        jobs = await self.jobs()
        async with self._history() as history:
            return await read_runs(history, [job.name for job in jobs]) or {}

    async def plan(self, definitions: Collection[JobDefinition], *, prune: Collection[str] = ()) -> Plan:
        return await self._registry.plan(definitions, prune=prune)

    async def definition_settings(self) -> DefinitionSettings:
        settings = DefinitionSettings.of(self._settings)
        return settings if self._unheard_streams is None else settings.without(await self._unheard_streams())

    async def carry_out(self, plan: Plan) -> None:
        await self._registry.carry_out(plan, by=self._by)

    async def pause(self, job: str, *, reason: str | None = None) -> bool:
        return await self._registry.pause(job, by=self._by, reason=reason)

    async def resume(self, job: str, *, reason: str | None = None) -> bool:
        return await self._registry.resume(job, by=self._by, reason=reason)

    async def delete(self, job: str, *, reason: str | None = None) -> None:
        await self._registry.delete(job, by=self._by, reason=reason)

    async def trigger(
        self,
        job: str,
        input: Input | None = None,  # noqa: A002 - the field is called so
        args: Sequence[JsonValue] | None = None,
        *,
        priority: int | None = None,
        reason: str | None = None,
        idempotency_key: str | None = None,
    ) -> str:
        return await self._registry.trigger(
            job,
            input,
            args,
            by=self._by,
            priority=priority,
            reason=reason,
            traceparent=current_traceparent(),
            idempotency_key=idempotency_key,
        )

    async def sql(self, text: str, *, reason: str | None = None) -> "tuple[StatementResult, ...]":
        from ..domain.statements import read_statements  # noqa: PLC0415 - see above
        from .statements import StatementRunner  # noqa: PLC0415

        runner = StatementRunner(
            self._registry,
            self._log,
            self._clock,
            self._settings,
            by=self._by,
            reason=reason,
            list_executions=self.executions,
            list_runs=self.executions,
            list_agents=self.agents,
            traceparent=current_traceparent(),
        )
        return tuple([await runner.run(statement) for statement in read_statements(text)])

    async def why(self, job: str, at: datetime | None = None) -> "tuple[Answer, ...]":
        from .explain import ExplainReader  # noqa: PLC0415 - see above

        return await ExplainReader(self._log, self._stored, hold_ups=self._hold_ups()).why(job, at)

    async def what_if(self, question: "Question") -> "WhatIfReport":
        from .what_if import WhatIf  # noqa: PLC0415 - see above

        jobs = await self.jobs() if question.capacity else ()
        settings = self._settings
        what_if = WhatIf(self._log, self._stored, queues=settings.queues, requires_grant=settings.agents.require_grant)
        return await what_if.ask(question, jobs)

    async def test_triggers(self, job: str, event: "GivenEvent") -> "tuple[TriggerAnswer, ...]":
        from .trigger_test import try_event  # noqa: PLC0415 - see above

        now, most = self._clock.now(), self._settings.triggers.max_hops
        return try_event((await self.job(job)).definition, event, now, max_hops=most)

    async def ignored_events(self, job: str, *, limit: int, sequence: int | None = None) -> tuple[IgnoredEvent, ...]:
        await self.job(job)
        return tuple(map(shown, await read_ignored(self._log, job, limit=limit, sequence=sequence)))

    async def revisions(self, job: str) -> "tuple[JobRevision, ...]":
        from .timeline import read_revisions  # noqa: PLC0415 - see above

        return tuple(await read_revisions(self._log, job))

    async def definition(self, job: str, revision: int) -> JobDefinition:
        from .timeline import read_definition  # noqa: PLC0415 - see above

        return await read_definition(self._log, job, revision)

    async def roll_back(self, job: str, revision: int, *, current: int, reason: str | None = None) -> None:
        definition = await self.definition(job, revision)

        def is_unchanged(newest: Job | None) -> None:
            if newest is None or newest.sequence != current:
                raise SequenceConflict(f"{job!r} was changed meanwhile. Look at the difference again.")

        await self._registry.define(definition, by=self._by, reason=reason or f"back to {revision}", check=is_unchanged)

    async def plan_backfill(self, job: str, span: "Span", *, now: datetime, name: str | None = None) -> "Backfill":
        from .operations import backfill  # noqa: PLC0415 - see above

        return await backfill.plan(self._stored, self._registry, job, span, now=now, name=name)

    def backfill(self, plan: "Backfill", *, rate: float, reason: str | None = None) -> "AsyncIterator[Asked]":
        from .operations import backfill  # noqa: PLC0415 - see above

        return backfill.begin(self._log, plan, self._clock, rate=rate, by=self._by, reason=reason)

    async def executions(self, query: ExecutionQuery) -> Page[ExecutionRow]:
        async with self._history() as history:
            return await history.executions(query)

    async def last_outcomes(self, jobs: Collection[str]) -> Mapping[str, str]:
        async with self._history() as history:
            newest = await history.summaries.newest_of([*jobs], limit=OUTCOMES)
        return last_ended({job: [head.status for head in heads] for job, heads in newest.items()})

    async def execution(self, given: str) -> "ExecutionMatch":
        from .operations import lookup  # noqa: PLC0415 - see above

        return await lookup.find(self._log, given, list_executions=self.executions)

    async def output(self, match: "ExecutionMatch", *, after: int = 0) -> "ExecutionOutput":
        from .operations import execution_output  # noqa: PLC0415 - see above

        return await execution_output.read_output(self._log, match, after=after, stored=self._stored)

    async def fan_out(self, match: "ExecutionMatch") -> "FanOut | None":
        from .operations import fan_out  # noqa: PLC0415 - see above

        return await fan_out.read_fan_out(self._log, match)

    async def cancel(self, given: str, *, reason: str | None = None, job: str | None = None) -> "Cancellation":
        from .operations import execution_requests  # noqa: PLC0415 - see above

        return await execution_requests.cancel(
            self._log, given, by=self._by, reason=reason, job=job, list_executions=self.executions
        )

    async def dead_letters(self, query: DeadLetterQuery) -> Page[DeadLetterRow]:
        async with self._history() as history:
            return await history.dead_letters(query)

    async def dead_letter(self, given: str, *, job: str | None = None) -> "Letter":
        from .operations import dead_letter_lookup  # noqa: PLC0415 - see above

        return await dead_letter_lookup.find(self._log, given, job=job, list_dead_letters=self.dead_letters)

    async def replay(
        self,
        given: str,
        *,
        job: str | None = None,
        input: Input | None = None,  # noqa: A002 - the field is called so
        reason: str | None = None,
        again: bool = False,
        failed_only: bool = False,
    ) -> "Replay":
        from .operations import dead_letters  # noqa: PLC0415 - see above

        return await dead_letters.replay(
            self._log,
            given,
            job=job,
            input=input,
            by=self._by,
            reason=reason,
            again=again,
            failed_only=failed_only,
            list_dead_letters=self.dead_letters,
        )

    def replay_all(
        self, letters: Iterable[DeadLetterRow], *, rate: float, reason: str | None = None
    ) -> "AsyncIterator[Replay | OperationError]":
        from .operations import dead_letters  # noqa: PLC0415 - see above

        def replay(given: str, job: str) -> "Awaitable[Replay]":
            return self.replay(given, job=job, reason=reason)

        return dead_letters.replay_all(replay, letters, self._clock, rate=rate)

    async def resolve(self, given: str, *, reason: str | None = None, job: str | None = None) -> "Resolution":
        from .operations import dead_letters  # noqa: PLC0415 - see above

        return await dead_letters.resolve(
            self._log,
            given,
            job=job,
            by=self._by,
            reason=reason,
            list_dead_letters=self.dead_letters,
        )

    async def queues(self) -> "tuple[QueueDetails, ...]":
        return await self._queues(self._registry.jobs)

    async def hold_ups(self, match: "ExecutionMatch") -> tuple[HoldUp, ...]:
        return await self._hold_ups().of(match.facts)

    def _hold_ups(self) -> HoldUpReader:
        return HoldUpReader(self._log, self._projections, bridged=self._bridged)

    async def switch_queue(self, queue: str, *, paused: bool, reason: str | None = None) -> bool:
        from . import queues  # noqa: PLC0415 - see above

        return await queues.switch(
            self._log, await self.queues(), queue, paused=paused, by=self._by, reason=reason, room=self._registry.room
        )

    async def purge_queue(self, queue: str, *, reason: str | None = None, dry_run: bool = False) -> PurgeAnswer:
        from . import queues  # noqa: PLC0415 - see above

        return await queues.purge(
            self._log, await self.queues(), queue, by=self._by, reason=reason, dry_run=dry_run, room=self._registry.room
        )

    async def shards(self) -> ShardMap:
        newest = await ShardMaps(self._log).newest()
        return with_owners(newest, await owners_of(self._log), await self._agents.agents())

    async def apply_shards(self, shards: Sequence[Shard], *, expected: int, reason: str | None = None) -> bool:
        check = has_version("the shard map", expected)
        return await ShardMaps(self._log).apply(shards, check=check, by=self._by, reason=reason)

    async def namespaces(self) -> NamespaceMap:
        return await Namespaces(self._log).newest()

    async def namespace(self, name: str) -> NamespaceDetails:
        declared = (await Namespaces(self._log).newest()).named(name)
        definitions = [job.definition for job in await self._registry.jobs()]
        return await details(declared, definitions, self._projections, self._clock)

    async def plan_namespaces(self, wanted: Sequence[Namespace]) -> tuple[NamespaceChange, ...]:
        after, newest = checked(wanted), await self.namespaces()
        return changes(newest.namespaces, after, [job.definition for job in await self._registry.jobs()])

    async def apply_namespaces(self, wanted: Sequence[Namespace], *, expected: int, reason: str | None = None) -> bool:
        check = has_version("the declaration of namespaces", expected)
        return await Namespaces(self._log).apply(wanted, check=check, by=self._by, reason=reason)

    async def agents(self, name: str | None = None) -> tuple[AgentRecord, ...]:
        return await self._agents.agents(name)

    async def drain_agents(self, name: str, *, reason: str | None = None) -> tuple[AgentRecord, ...]:
        return await self._agents.drain(name, by=self._by, reason=reason)

    async def switch_agents(self, name: str, *, enabled: bool, reason: str | None = None) -> bool:
        return await self._agents.switch(name, enabled=enabled, by=self._by, reason=reason)

    async def grant_agents(
        self,
        verb: GrantVerb,
        name: str,
        queues: Sequence[str],
        functions: Sequence[str],
        *,
        shards: Sequence[str] = (),
        reason: str | None = None,
    ) -> GrantAnswer:
        return await agent_grants.change(
            self._log, verb, name, queues, functions, shards=shards, by=self._by, reason=reason
        )

    async def policy(self) -> PolicyVersion:
        return await self._registry.policies.newest()

    async def change_policy(self, changes: Mapping[str, object], *, reason: str | None = None) -> bool:
        return await self._registry.policies.change(changes, by=self._by, reason=reason)

    async def notifications(self, query: NotificationQuery) -> Page[NotificationRow]:
        return await notifications(self._log, query)

    async def silences(self) -> tuple[Silence, ...]:
        return await self._silences().newest()

    async def start_silence(self, *, job: str | None, tag: str | None, seconds: float, reason: str) -> Silence:
        if job is not None:
            await self.job(job)
        return await self._silences().start(job=job, tag=tag, seconds=seconds, reason=reason, by=self._by)

    async def end_silence(self, silence: str, *, reason: str | None = None) -> Silence:
        return await self._silences().end(silence, reason=reason, by=self._by)

    def _silences(self) -> Silences:
        return Silences(self._log, self._clock)

    async def status(self) -> Mapping[str, Any]:
        from .health.status import as_json  # noqa: PLC0415 - see above

        return as_json(await self._status())

    async def tail(
        self, job: str | None = None, *, from_start: bool = False
    ) -> AsyncGenerator[Recorded[Message], None]:
        after = {} if from_start else await tail.newest(self._log, job)
        async with aclosing(tail.follow(self._log, job, after=after)) as follower:
            async for recorded in follower:
                yield recorded

    async def follow(self, job: str | None = None) -> AsyncGenerator[Sequence[Recorded[Message]], None]:
        after = await tail.newest(self._log, job)
        yield ()
        async with aclosing(tail.follow(self._log, job, after=after)) as follower:
            async for recorded in follower:
                yield (recorded,)


@asynccontextmanager
async def opened_once(open_history: OpenHistory) -> AsyncIterator[OpenHistory]:
    """Within the block, open the history at its first use and keep it open."""
    opening = asyncio.Lock()
    histories: list[History] = []
    async with AsyncExitStack() as stack:

        @asynccontextmanager
        async def shared() -> AsyncIterator[History]:
            async with opening:
                if not histories:
                    histories.append(await stack.enter_async_context(open_history()))
            yield histories[0]

        yield shared
