"""An in-memory environment for workers, and tasks in it."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from pydantic import JsonValue

from tests.domain.given import ID, JOB, KEY, NOON, admitted
from tests.matching import running_matcher
from tocsin import subjects
from tocsin.adapters.memory.agents import InMemoryAgentChannel, InMemoryFetchChannel
from tocsin.domain import execution, ids
from tocsin.domain.agent import Assignment
from tocsin.domain.events import Dispatched, Input, Message, Plan, PlannedStep, Report, Started
from tocsin.engine.report_lists import authentic_report
from tocsin.ports import EventLog
from tocsin.services.operations.checkpoints import last_heartbeat
from tocsin.stages.matcher.stage import Matcher
from tocsin.testing import InMemoryEventLog, ManualClock, settle
from tocsin.worker.connection import Connection
from tocsin.worker.executor import Executor
from tocsin.worker.handler_runner import HandlerRunner, Threads
from tocsin.worker.handlers import Handlers
from tocsin.worker.held_tasks import AssignedTask, HeldTask
from tocsin.worker.output import Output
from tocsin.worker.shutdown import Flag

FUNCTION = "hanzo/iam/credit-reconcile"
WORKER = "w-1"
AGENT_ID = "01890f3e-0000-7000-8000-000000000001"


class Bench:
    """One log, one executor, a channel of agents, and the worker's `shutting_down` flag."""

    def __init__(self, log: InMemoryEventLog | None = None, clock: ManualClock | None = None) -> None:
        self.clock = clock or ManualClock(NOON)
        self.log = log or InMemoryEventLog(self.clock)
        self.channel = InMemoryAgentChannel()
        self.handed_back: list[int] = []
        """The claims whose tasks the executor handed back."""
        self.handlers = Handlers()
        self.shutting_down = Flag()
        self.output = Output(self.log, self.clock)
        self.secrets: tuple[str, ...] = ("DB_PASSWORD", "OUTPUT_SECRET")
        self.traceparent: str | None = None
        """The trace context of executions that are given next."""
        self.executor = self.executor_over(self.log)

    def allow(self, *secrets: str) -> None:
        """Let inputs refer to further secrets."""
        self.secrets += secrets
        self.executor = self.executor_over(self.log)

    def executor_over(self, log: EventLog) -> Executor:
        runner = HandlerRunner(WORKER, self.clock, Threads(), self.shutting_down, self.output, secrets=self.secrets)
        return Executor(log, self.handlers, runner, self.clock, worker=WORKER)

    def connection(self) -> Connection:
        return Connection(self.log, self.channel, self.clock)

    @asynccontextmanager
    async def matching(self) -> AsyncIterator[Matcher]:
        """Run a matcher, which assigns the tasks to the workers of the test, and decide on their reports."""
        async with running_matcher(self.log, self.clock, InMemoryFetchChannel(), agents=self.channel) as matcher:
            deciding = asyncio.create_task(self._decide())
            try:
                yield matcher
            finally:
                deciding.cancel()
                with suppress(asyncio.CancelledError):
                    await deciding

    async def _decide(self) -> None:
        """Store the ends of attempts that free their slots, as the DAG advancer and the retrier do."""
        async for batch in self.log.follow(subjects.Stream.REPORTS, "report.>", after=0):
            for recorded in batch.messages:
                report = authentic_report(recorded, KEY)
                assert report is not None
                state = execution.fold(await self.log.load(subjects.execution(report.job, report.execution_id)))
                if report.outcome == "completed":
                    await self.given(*execution.succeed(state, report, key=KEY))
                else:
                    await self.given(*execution.fail(state, report, at=recorded.time))

    async def given(self, *facts: Message) -> None:
        """Store facts in the execution's scope, after any facts that it has."""
        for fact in facts:
            scope = await self.log.load(subjects.scope_of(fact))
            await self.log.append(fact, expect=scope[-1].sequence if scope else 0)

    async def given_task(self, **more: Any) -> Dispatched:  # noqa: ANN401 - as `given_tasks`
        """Admit an execution and dispatch its only step."""
        return (await self.given_tasks({"main": ()}, **more))[0]

    async def given_tasks(  # noqa: PLR0913 - the fields of a step
        self,
        graph: Mapping[str, tuple[str, ...]],
        *,
        execution_id: str = ID,
        function: str = FUNCTION,
        timeout: float = 30,  # noqa: ASYNC109 - the step's
        input: Input | None = None,  # noqa: A002 - the field is called so
        args: Sequence[JsonValue] = (),
        queue: str = "default",
        builtin: dict[str, JsonValue] | None = None,
        bind: dict[str, JsonValue] | None = None,
        job_uuid: str | None = None,
        lock: int | None = 7,
    ) -> list[Dispatched]:
        steps = tuple(
            PlannedStep(
                name=name,
                function=function,
                builtin=builtin,
                depends_on=depends_on,
                timeout=timeout,
                input=input or {},
                args=tuple(args),
                queue=queue,
                bind=bind,
            )
            for name, depends_on in graph.items()
        )
        start = admitted(Plan(definition=1, steps=steps, job_uuid=job_uuid), fence=lock).changed(
            execution_id=execution_id, traceparent=self.traceparent
        )
        await self.given(start)
        tasks = execution.dispatch(execution.fold(await self.log.load(subjects.scope_of(start))), key=KEY)
        await self.given(*tasks)
        return tasks

    async def assigned(self, *, delivery: int = 1) -> AssignedTask:
        """Claim the oldest task without such a claim, as the matcher does."""
        stored = await self.log.read("execution.>")
        claims = {
            _attempt(r.message) for r in stored if isinstance(r.message, Started) and r.message.delivery >= delivery
        }
        recorded, task = next(
            (r, r.message.task)
            for r in stored
            if isinstance(r.message, Dispatched) and _attempt(r.message.task) not in claims
        )
        before = (await self.log.load(subjects.scope_of(task)))[-1].sequence
        claim = Started(
            job=task.job,
            execution_id=task.execution_id,
            step=task.step,
            attempt=task.attempt,
            delivery=delivery,
            worker=WORKER,
            agent=AGENT_ID,
        )
        sequence = await self.log.append(claim, expect=before)
        heartbeat = await last_heartbeat(
            self.log, task, delivery, lambda attempt: ids.report_token(KEY, ID, task.step, attempt)
        )
        proof = ids.claim_proof(KEY, ID, task.step, task.attempt, sequence)
        assignment = Assignment(
            subject=recorded.subject,
            sequence=recorded.sequence,
            time=recorded.time,
            delivery=delivery,
            claim=sequence,
            proof=proof,
            heartbeat=heartbeat,
        )
        return AssignedTask(assignment, recorded.message.encode(), self.handed_back.append)

    async def again(self, assigned: AssignedTask) -> AssignedTask:
        """Claim the same attempt once more, as after the death of its worker."""
        return await self.assigned(delivery=assigned.assignment.delivery + 1)

    async def run(self, handler: Callable[..., object] | None = None, **task: Any) -> AssignedTask:  # noqa: ANN401
        """Dispatch a task, claim it, and run it."""
        if handler is not None:
            self.handlers.add(FUNCTION, handler)
        await self.given_task(**task)
        assigned = await self.assigned()
        await self.executor.run(HeldTask(assigned))
        return assigned

    def running(self, assigned: AssignedTask) -> tuple[HeldTask, "asyncio.Task[None]"]:
        """Start to run a task."""
        held = HeldTask(assigned)
        return held, asyncio.create_task(self.executor.run(held))

    async def reports(self) -> list[Report]:
        return [one for one in await self._reports() if one.worker != subjects.MATCHER]

    async def report(self) -> Report:
        [report] = await self.reports()
        return report

    async def releases(self) -> list[Report]:
        """Return the matcher's reports that end claims."""
        await settle()
        return [one for one in await self._reports() if one.worker == subjects.MATCHER]

    async def _reports(self) -> list[Report]:
        reports = await self.log.read("report.>")
        return [r.message for r in reports if isinstance(r.message, Report)]

    async def claims(self) -> list[tuple[int, Started]]:
        claims = await self.log.read(f"execution.{subjects.token(JOB)}.*.started.>")
        return [(r.sequence, r.message) for r in claims if isinstance(r.message, Started)]


def _attempt(task: Dispatched | Started) -> tuple[str, str, int]:
    return task.execution_id, task.step, task.attempt
