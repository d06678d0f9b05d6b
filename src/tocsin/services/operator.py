"""Operations of a user on an installation, through NATS.

`adapters.http.client` carries them out through the HTTP API. Each change records the identity of the caller.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from pydantic import JsonValue

from ..domain.agent import AgentRecord
from ..domain.definition import JobDefinition
from ..domain.events import Actor, Input, Message, Namespace, Recorded, Shard, Silence
from ..domain.namespaces import checked
from ..ports import Clock, DeadLetterRow, EventLog, ExecutionRow, History, Projections, StoredLog
from ..ports.errors import SequenceConflict
from ..ports.queries import DeadLetterQuery, ExecutionQuery, NotificationQuery, Page
from ..ports.summaries import ENDED
from ..settings import Settings
from ..telemetry.trace_ids import current_traceparent
from . import tail
from .agents import AgentRegistry, GrantAnswer, GrantVerb, change_grants
from .definition_settings import DefinitionSettings, UnheardStreams
from .documents import PolicyVersion, has_version
from .hold_ups import HoldUp, HoldUpReader
from .jobs import Job, Plan, Registry, RunCounters, read_runs, with_result
from .namespaces import NamespaceChange, NamespaceDetails, NamespaceMap, Namespaces, changes, details
from .notifications import NotificationRow, Silences, notifications
from .operations import backfill, dead_letters, execution_output, execution_requests, lookup
from .operations.backfill import Asked, Backfill, Span
from .operations.dead_letters import Letter, Replay, Resolution
from .operations.errors import OperationError
from .operations.execution_output import ExecutionOutput
from .operations.execution_requests import Cancellation
from .operations.lookup import ExecutionMatch, FanOut
from .past_reader import IgnoredEvent, read_ignored, read_past, shown
from .queue_decisions import PurgeAnswer, QueueDecisions
from .shards import ShardMap, ShardMaps, owners_of, with_owners

if TYPE_CHECKING:  # a command that lists jobs imports none of the larger operations
    from ..domain.what_if import WhatIfReport
    from .explain import Answer
    from .health import Status
    from .queues import ListJobs, QueueDetails
    from .statements import StatementResult
    from .timeline import JobRevision
    from .trigger_test import GivenEvent, TriggerAnswer
    from .what_if import Question

OpenHistory: TypeAlias = Callable[[], AbstractAsyncContextManager[History]]
OUTCOMES: Final = 10
"""Newest executions of a job that are searched for its last outcome."""


def last_ended(statuses: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return the status of the newest ended execution of each job that has one.

    `statuses`: those of each job's executions, newest first.
    """
    ended = ((job, next((status for status in of_job if status in ENDED), None)) for job, of_job in statuses.items())
    return {job: status for job, status in ended if status is not None}


class Operator:
    """Operations of a user on one installation.

    Each raises the errors of its service: JobNotFound and NotFound for an unknown name or id, SequenceConflict for another version than the
    expected one, and DefinitionError or OperationError for a refused request. A `given` text that does not name one execution or dead letter
    raises NotAnId, NotFound or Ambiguous. Backfills raise NotServed over HTTP.
    """

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
        self._log = log
        self._stored = stored
        self._clock = clock
        self._history = history
        self._status = status
        self._unheard_streams = unheard_streams
        self._by = by
        self._registry = Registry(log, projections, clock, bridged=settings.bridged_queues)
        self._queues = queues
        self._agents = AgentRegistry(log, projections)
        self._silences = Silences(log, clock)
        self._decisions = QueueDecisions(log, by=by, room=self._registry.room)
        self._hold_ups = HoldUpReader(log, projections, bridged=settings.bridged_queues)

    async def shards(self) -> ShardMap:
        """Return the newest shard map."""
        newest = await ShardMaps(self._log).newest()
        return with_owners(newest, await owners_of(self._log), await self._agents.agents())

    async def apply_shards(self, shards: Sequence[Shard], *, expected: int, reason: str | None = None) -> bool:
        """Replace the shard map of an expected version; return whether that changed anything."""
        check = has_version("the shard map", expected)
        return await ShardMaps(self._log).apply(shards, check=check, by=self._by, reason=reason)

    async def namespaces(self) -> NamespaceMap:
        """Return the declared namespaces."""
        return await Namespaces(self._log).newest()

    async def namespace(self, name: str) -> NamespaceDetails:
        """Return a declared namespace, with its contents and its use of today."""
        declared = (await Namespaces(self._log).newest()).named(name)
        definitions = [job.definition for job in await self._registry.jobs()]
        return await details(declared, definitions, self._projections, self._clock)

    async def plan_namespaces(self, namespaces: Sequence[Namespace]) -> tuple[NamespaceChange, ...]:
        """Return the changes that a declaration of all namespaces would make."""
        after, newest = checked(namespaces), await self.namespaces()
        return changes(newest.namespaces, after, [job.definition for job in await self._registry.jobs()])

    async def apply_namespaces(
        self, namespaces: Sequence[Namespace], *, expected: int, reason: str | None = None
    ) -> bool:
        """Replace the declarations of an expected version; return whether that changed anything."""
        check = has_version("the declaration of namespaces", expected)
        return await Namespaces(self._log).apply(namespaces, check=check, by=self._by, reason=reason)

    async def agents(self, name: str | None = None) -> tuple[AgentRecord, ...]:
        """Return all agents, or the agents of a name or id."""
        return await self._agents.agents(name)

    async def drain_agents(self, name: str, *, reason: str | None = None) -> tuple[AgentRecord, ...]:
        """Drain the agents of a name, or one process by its id.

        Return the agents that began to drain.
        """
        return await self._agents.drain(name, by=self._by, reason=reason)

    async def switch_agents(self, name: str, *, enabled: bool, reason: str | None = None) -> bool:
        """Enable or disable all agents of a name; return whether that changed anything."""
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
        """Add functions of queues, and shards, to the grants of a name, or remove them.

        `change_grants` has the rules.
        """
        return await change_grants(self._log, verb, name, queues, functions, shards=shards, by=self._by, reason=reason)

    async def policy(self) -> PolicyVersion:
        """Return the scheduler policy."""
        return await self._registry.policies.newest()

    async def change_policy(self, changes: Mapping[str, object], *, reason: str | None = None) -> bool:
        """Change fields of the scheduler policy; return whether that changed anything. None unsets a field."""
        return await self._registry.policies.change(changes, by=self._by, reason=reason)

    async def notifications(self, query: NotificationQuery) -> Page[NotificationRow]:
        """Return a page of notifications with their delivery, the newest first."""
        return await notifications(self._log, query)

    async def silences(self) -> tuple[Silence, ...]:
        """Return the silences of notifications in force, the oldest first."""
        return await self._silences.newest()

    async def start_silence(self, *, job: str | None, tag: str | None, seconds: float, reason: str) -> Silence:
        """Start a silence of a job, a tag or all jobs."""
        if job is not None:
            await self._registry.job(job)
        return await self._silences.start(job=job, tag=tag, seconds=seconds, reason=reason, by=self._by)

    async def end_silence(self, silence: str, *, reason: str | None = None) -> Silence:
        """End a silence; `silence`: its id."""
        return await self._silences.end(silence, reason=reason, by=self._by)

    async def queues(self) -> "tuple[QueueDetails, ...]":
        """Return all queues by name, with the jobs that the caller sees."""
        return await self._queues(self._registry.jobs)

    async def switch_queue(self, queue: str, *, paused: bool, reason: str | None = None) -> bool:
        """Pause or resume a queue; return whether that changed anything."""
        from .queues import find  # noqa: PLC0415 - see above

        known = find(queue, await self.queues())
        return await self._decisions.switch(known.name, paused=paused, reason=reason)

    async def purge_queue(self, queue: str, *, reason: str | None = None, dry_run: bool = False) -> PurgeAnswer:
        """Cancel the executions whose tasks wait in a queue now.

        `dry_run`: only say how many wait.
        """
        from .queues import find, purge  # noqa: PLC0415 - see above

        return await purge(self._decisions, find(queue, await self.queues()), reason=reason, dry_run=dry_run)

    async def status(self) -> Mapping[str, Any]:
        """Return the status of all parts, as `tocsin status -o json` prints it."""
        from .health.status import as_json  # noqa: PLC0415 - see above

        return as_json(await self._status())

    async def definition_settings(self) -> DefinitionSettings:
        """Return the names in the settings that definitions may refer to."""
        settings = DefinitionSettings.of(self._settings)
        return settings if self._unheard_streams is None else settings.without(await self._unheard_streams())

    async def follow(
        self, job: str | None = None, *, from_start: bool = False
    ) -> AsyncGenerator[Sequence[Recorded[Message]], None]:
        """Yield the facts of a job or of all jobs in batches, from now on.

        An empty batch comes first, and again after each gap: all facts stored after it follow, and facts stored before it may be missing.
        `from_start`: begin with the facts stored before.

        Raises:
            LogUnavailable: the log does not answer at the beginning.
        """
        after = {} if from_start else await tail.newest(self._log, job)
        yield ()
        async with aclosing(tail.follow(self._log, job, after=after)) as follower:
            async for recorded in follower:
                yield (recorded,)

    async def jobs(self) -> tuple[Job, ...]:
        """Return every registered job, sorted by name."""
        return await self._registry.jobs()

    async def job(self, name: str) -> Job:
        """Return one job."""
        return await self._registry.job(name)

    async def run_counters(self, job: str) -> RunCounters | None:
        """Return the counters of a registered job, with its last result.

        None: the history is incomplete until it is rebuilt. Over HTTP also: it is unavailable, or the caller may not read executions.

        Raises:
            HistoryUnavailable: the history cannot be read.
        """
        async with self._history() as history:
            runs = await read_runs(history, [job])
            return None if runs is None else await with_result(history, runs[job])

    async def all_run_counters(self) -> Mapping[str, RunCounters]:
        """Return the counters of all jobs by name, without results.

        They are empty if the counters are unknown (see `run_counters`).
        """
        jobs = await self.jobs()
        async with self._history() as history:
            return await read_runs(history, [job.name for job in jobs]) or {}

    async def plan(self, definitions: Collection[JobDefinition], *, prune: Collection[str] = ()) -> Plan:
        """Plan how to register `definitions` and delete the other jobs of the owners in `prune`."""
        return await self._registry.plan(definitions, prune=prune)

    async def carry_out(self, plan: Plan) -> None:
        """Carry out a plan (see `Registry.carry_out`)."""
        await self._registry.carry_out(plan, by=self._by)

    async def pause(self, job: str, *, reason: str | None = None) -> bool:
        """Pause a job; return whether it was running before."""
        return await self._registry.pause(job, by=self._by, reason=reason)

    async def resume(self, job: str, *, reason: str | None = None) -> bool:
        """Resume a job; return whether it was paused before."""
        return await self._registry.resume(job, by=self._by, reason=reason)

    async def delete(self, job: str, *, reason: str | None = None) -> None:
        """Delete a job; its active executions continue."""
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
        """Request an execution now and return its id (see `Registry.trigger`).

        It continues the trace of the current span of OpenTelemetry, if there is one.
        """
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
        """Carry out statements about jobs (see `StatementRunner.run`)."""
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
        """Explain why a job ran at an instant or did not (see `ExplainReader.why`)."""
        from .explain import ExplainReader  # noqa: PLC0415 - see above

        return await ExplainReader(self._log, self._stored, hold_ups=self._hold_ups).why(job, at)

    async def what_if(self, question: "Question") -> "WhatIfReport":
        """Replay the recorded past, or the forecast, with other definitions or other workers (see `WhatIf.ask`)."""
        from .what_if import WhatIf  # noqa: PLC0415 - see above

        jobs = await self.jobs() if question.capacity else ()
        settings = self._settings
        what_if = WhatIf(self._log, self._stored, queues=settings.queues, requires_grant=settings.agents.require_grant)
        return await what_if.ask(question, jobs)

    async def test_triggers(self, job: str, event: "GivenEvent") -> "tuple[TriggerAnswer, ...]":
        """Return what an event would do to each trigger of a job, without any effect."""
        from .trigger_test import try_event  # noqa: PLC0415 - see above

        now, most = self._clock.now(), self._settings.triggers.max_hops
        return try_event((await self.job(job)).definition, event, now, max_hops=most)

    async def ignored_events(self, job: str, *, limit: int, sequence: int | None = None) -> tuple[IgnoredEvent, ...]:
        """Return the newest events that started no execution of a job, oldest first.

        `sequence`: only events with this position in their stream.
        """
        await self.job(job)
        return tuple(map(shown, await read_ignored(self._log, job, limit=limit, sequence=sequence)))

    async def revisions(self, job: str) -> "tuple[JobRevision, ...]":
        """Return the changes to the definition of a job, newest first."""
        from .timeline import revisions_of  # noqa: PLC0415 - see above

        return tuple(revisions_of(await read_past(self._log, job)))

    async def definition(self, job: str, revision: int) -> JobDefinition:
        """Return the definition of a revision."""
        from .timeline import read_definition  # noqa: PLC0415 - see above

        return await read_definition(self._log, job, revision)

    async def roll_back(self, job: str, revision: int, *, current: int, reason: str | None = None) -> None:
        """Register the definition of a revision again.

        `current`: the sequence of the job that it replaces.

        Raises:
            SequenceConflict: another writer changed the job.
        """
        definition = await self.definition(job, revision)

        def is_unchanged(newest: Job | None) -> None:
            if newest is None or newest.sequence != current:
                raise SequenceConflict(f"{job!r} was changed meanwhile. Look at the difference again.")

        await self._registry.define(definition, by=self._by, reason=reason or f"back to {revision}", check=is_unchanged)

    async def plan_backfill(self, job: str, span: Span, *, now: datetime, name: str | None = None) -> Backfill:
        """Plan a backfill (see `operations.backfill.plan`)."""
        return await backfill.plan(self._stored, self._registry, job, span, now=now, name=name)

    def backfill(self, plan: Backfill, *, rate: float, reason: str | None = None) -> AsyncIterator[Asked]:
        """Trigger the executions of a backfill, at most `rate` per second."""
        return backfill.begin(self._log, plan, self._clock, rate=rate, by=self._by, reason=reason)

    async def executions(self, query: ExecutionQuery) -> Page[ExecutionRow]:
        """Return a page of executions from the history."""
        async with self._history() as history:
            return await history.executions(query)

    async def last_outcomes(self, jobs: Collection[str]) -> Mapping[str, str]:
        """Return the status of the newest ended execution of each job.

        A job without one among its last `OUTCOMES` executions is left out.
        """
        async with self._history() as history:
            newest = await history.summaries.newest_of([*jobs], limit=OUTCOMES)
        return last_ended({job: [head.status for head in heads] for job, heads in newest.items()})

    async def execution(self, given: str) -> ExecutionMatch:
        """Return the execution whose id is `given` or begins with it."""
        return await lookup.find(self._log, given, list_executions=self.executions)

    async def output(self, match: ExecutionMatch, *, after: int = 0) -> ExecutionOutput:
        """Return the lines of an execution after a sequence, and the progress of its steps."""
        return await execution_output.read_output(self._log, match, after=after, stored=self._stored)

    async def fan_out(self, match: ExecutionMatch) -> FanOut | None:
        """Return the executions of an occurrence (see `lookup.read_fan_out`)."""
        return await lookup.read_fan_out(self._log, match)

    async def cancel(self, given: str, *, reason: str | None = None, job: str | None = None) -> Cancellation:
        """Cancel an execution; a finished execution stays as it is."""
        return await execution_requests.cancel(
            self._log, given, by=self._by, reason=reason, job=job, list_executions=self.executions
        )

    async def dead_letters(self, query: DeadLetterQuery) -> Page[DeadLetterRow]:
        """Return a page of dead letters from the history."""
        async with self._history() as history:
            return await history.dead_letters(query)

    async def dead_letter(self, given: str, *, job: str | None = None) -> Letter:
        """Return the dead letter whose id is `given` or begins with it.

        `job`: its job, if it is known.
        """
        return await dead_letters.find(self._log, given, job=job, list_dead_letters=self.dead_letters)

    async def replay(
        self,
        given: str,
        *,
        job: str | None = None,
        input: Input | None = None,  # noqa: A002 - the field is called so
        reason: str | None = None,
        again: bool = False,
        failed_only: bool = False,
    ) -> Replay:
        """Run failed work again (see `operations.dead_letters.replay`)."""
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
    ) -> AsyncIterator[Replay | OperationError]:
        """Replay dead letters, each once, at most `rate` per second.

        An error stands for a dead letter that was skipped.
        """
        return dead_letters.replay_all(
            lambda given, job: self.replay(given, job=job, reason=reason), letters, self._clock, rate=rate
        )

    async def resolve(self, given: str, *, reason: str | None = None, job: str | None = None) -> Resolution:
        """Mark a dead letter as resolved."""
        return await dead_letters.resolve(
            self._log,
            given,
            job=job,
            by=self._by,
            reason=reason,
            list_dead_letters=self.dead_letters,
        )

    async def hold_ups(self, match: ExecutionMatch) -> tuple[HoldUp, ...]:
        """Return what holds back the waiting tasks of an execution."""
        return await self._hold_ups.of(match.facts)
