"""Operations of a user on an installation, through NATS.

`adapters.http.client` carries them out through the HTTP API. Each change records the identity of the caller.
"""

import asyncio
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Final

from pydantic import JsonValue

from ..domain.definition import JobDefinition
from ..domain.errors import TocsinError
from ..domain.events import Input
from ..ports import DeadLetterRow, ExecutionRow, History, LogUnavailable
from ..ports.errors import SequenceConflict
from ..ports.queries import DeadLetterQuery, ExecutionQuery, Page
from ..ports.summaries import ENDED
from ..telemetry.trace_ids import current_traceparent
from .hold_ups import HoldUp, HoldUpReader
from .ignored_events import IgnoredEvent, read_ignored, shown
from .installation_operator import InstallationOperator, OpenHistory
from .jobs import Job, Plan, RunCounters, read_runs, with_result
from .operations import (
    backfill,
    dead_letters,
    execution_output,
    execution_requests,
    lookup,
)
from .operations.backfill import Asked, Backfill, Span
from .operations.dead_letters import Letter, Replay, Resolution
from .operations.errors import OperationError
from .operations.execution_output import ExecutionOutput
from .operations.execution_requests import Cancellation
from .operations.lookup import ExecutionMatch, FanOut

if TYPE_CHECKING:  # a command that lists jobs imports none of the larger operations
    from ..domain.what_if import WhatIfReport
    from .explain import Answer
    from .statements import StatementResult
    from .timeline import JobRevision
    from .trigger_test import GivenEvent, TriggerAnswer
    from .what_if import Question

OUTCOMES: Final = 10
"""Newest executions of a job that are searched for its last outcome."""


class NotServed(TocsinError):
    """The HTTP API has no request for this operation."""

    code = "not-served-over-http"

    def __init__(self, operation: str) -> None:
        super().__init__(f"{operation} is not served over HTTP: leave --server out, and name the NATS server")
        self.operation = operation


class ApiUnavailable(LogUnavailable):
    """The HTTP API of `--server` does not answer, or answers with an error."""

    code = "api-unavailable"


def last_ended(statuses: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return the status of the newest ended execution of each job that has one.

    `statuses`: those of each job's executions, newest first.
    """
    ended = ((job, next((status for status in of_job if status in ENDED), None)) for job, of_job in statuses.items())
    return {job: status for job, status in ended if status is not None}


class Operator(InstallationOperator):
    """Operations on one installation.

    Those on a job raise JobNotFound if none has the name. A `given` text that does not name one execution or dead letter raises NotAnId,
    NotFound or Ambiguous. Backfills raise NotServed over HTTP.
    """

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

        return await ExplainReader(self._log, self._stored, hold_ups=self._hold_ups()).why(job, at)

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
        from .timeline import read_revisions  # noqa: PLC0415 - see above

        return tuple(await read_revisions(self._log, job))

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
        return await self._hold_ups().of(match.facts)

    def _hold_ups(self) -> HoldUpReader:
        return HoldUpReader(self._log, self._projections, bridged=self._settings.bridged_queues)


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
