"""An in-memory environment for workers, and tasks in it."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from pydantic import JsonValue

from tests.domain.given import ID, JOB, KEY, NOON, admitted
from tocsin import subjects
from tocsin.domain import execution
from tocsin.domain.events import Dispatched, Input, Message, Plan, PlannedStep, Report, Started
from tocsin.ports import Delivery, EventLog, acknowledge_each
from tocsin.testing import InMemoryEventLog, InMemoryTaskQueue, ManualClock
from tocsin.worker.connection import Connection
from tocsin.worker.executor import Executor
from tocsin.worker.handler_runner import HandlerRunner, Threads
from tocsin.worker.handlers import Handlers
from tocsin.worker.held_tasks import HeldTask
from tocsin.worker.output import Output
from tocsin.worker.shutdown import Flag

FUNCTION = "hanzo/iam/credit-reconcile"
WORKER = "w-1"

Settled = tuple[str, float] | None


class Watched:
    """A delivery that records how it is settled. If it is `deaf`, acknowledgements are lost."""

    def __init__(self, delivery: Delivery, *, deaf: bool = False) -> None:
        self._delivery = delivery
        self._deaf = deaf
        self.settled: Settled = None
        self.beats = 0

    @property
    def subject(self) -> str:
        return self._delivery.subject

    @property
    def body(self) -> bytes:
        return self._delivery.body

    @property
    def sequence(self) -> int:
        return self._delivery.sequence

    @property
    def time(self) -> datetime:
        return self._delivery.time

    @property
    def message_id(self) -> str | None:
        return self._delivery.message_id

    @property
    def delivered(self) -> int:
        return self._delivery.delivered

    async def ack(self) -> None:
        self.settled = ("ack", 0.0)
        if not self._deaf:
            await self._delivery.ack()

    async def nak(self, delay: float) -> None:
        self.settled = ("nak", delay)
        await self._delivery.nak(delay)

    async def term(self) -> None:
        self.settled = ("term", 0.0)
        await self._delivery.term()

    async def in_progress(self) -> None:
        self.beats += 1
        await self._delivery.in_progress()

    @staticmethod
    async def ack_many(deliveries: Sequence["Watched"]) -> None:
        await acknowledge_each(deliveries)


class Bench:
    """One log, one queue and one executor, and the worker's `shutting_down` flag."""

    def __init__(self, log: InMemoryEventLog | None = None, clock: ManualClock | None = None) -> None:
        self.clock = clock or ManualClock(NOON)
        self.log = log or InMemoryEventLog(self.clock)
        self.queue = InMemoryTaskQueue(self.log)
        self.handlers = Handlers()
        self.shutting_down = Flag()
        self.output = Output(self.log, self.clock)
        self.secrets: tuple[str, ...] = ("DB_PASSWORD", "OUTPUT_SECRET")
        self.executor = self.executor_over(self.log)

    def allow(self, *secrets: str) -> None:
        """Let inputs refer to further secrets."""
        self.secrets += secrets
        self.executor = self.executor_over(self.log)

    def executor_over(self, log: EventLog) -> Executor:
        runner = HandlerRunner(WORKER, self.clock, Threads(), self.shutting_down, self.output, secrets=self.secrets)
        return Executor(log, self.handlers, runner, self.clock, worker=WORKER)

    def connection(self, **queues: InMemoryTaskQueue) -> Connection:
        return Connection(self.log, queues or {"default": self.queue}, self.clock)

    async def given(self, *facts: Message) -> None:
        """Store facts in the execution's scope, after any facts that it has."""
        for fact in facts:
            scope = await self.log.load(subjects.scope_of(fact))
            await self.log.append(fact, expect=scope[-1].sequence if scope else 0)

    async def given_task(self, **more: Any) -> Dispatched:  # noqa: ANN401 - as `given_tasks`
        """Admit an execution and dispatch its only step."""
        return (await self.given_tasks({"main": ()}, **more))[0]

    async def given_tasks(
        self,
        graph: Mapping[str, tuple[str, ...]],
        *,
        execution_id: str = ID,
        function: str = FUNCTION,
        timeout: float = 30,  # noqa: ASYNC109 - the step's
        input: Input | None = None,  # noqa: A002 - the field is called so
        args: Sequence[JsonValue] = (),
        queue: str = "default",
    ) -> list[Dispatched]:
        steps = tuple(
            PlannedStep(
                name=name,
                function=function,
                depends_on=depends_on,
                timeout=timeout,
                input=input or {},
                args=tuple(args),
                queue=queue,
            )
            for name, depends_on in graph.items()
        )
        start = admitted(Plan(definition=1, steps=steps), fence=7).model_copy(update={"execution_id": execution_id})
        await self.given(start)
        tasks = execution.dispatch(execution.fold(await self.log.load(subjects.scope_of(start))), key=KEY)
        await self.given(*tasks)
        return tasks

    async def delivery(self, *, deaf: bool = False) -> Watched:
        """Take the next delivery, which must exist already."""
        [delivery] = await self.queue.take(1, wait=0)
        return Watched(delivery, deaf=deaf)

    async def again(self, watched: Delivery) -> Watched:
        """Redeliver a task, as after a lost acknowledgement or the death of its worker."""
        await watched.nak(0)
        return await self.delivery()

    async def run(self, handler: Callable[..., object] | None = None, **task: Any) -> Watched:  # noqa: ANN401
        """Dispatch a task, take it, and run it."""
        if handler is not None:
            self.handlers.add(FUNCTION, handler)
        await self.given_task(**task)
        watched = await self.delivery()
        await self.executor.run(HeldTask(watched))
        return watched

    def running(self, watched: Watched) -> tuple[HeldTask, "asyncio.Task[None]"]:
        """Start to run a delivery."""
        held = HeldTask(watched)
        return held, asyncio.create_task(self.executor.run(held))

    async def reports(self) -> list[Report]:
        reports = await self.log.read("report.>")
        return [r.message for r in reports if isinstance(r.message, Report)]

    async def report(self) -> Report:
        [report] = await self.reports()
        return report

    async def claims(self) -> list[tuple[int, Started]]:
        claims = await self.log.read(f"execution.{subjects.token(JOB)}.*.started.>")
        return [(r.sequence, r.message) for r in claims if isinstance(r.message, Started)]
