"""A whole Tocsin on a real nats-server, in this process or in processes that can be killed."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

from nats.aio.msg import Msg

from tocsin import Worker, bootstrap, subjects
from tocsin.adapters.commit_view import CommitView
from tocsin.adapters.nats.consumers import stage_router
from tocsin.adapters.routed_log import RoutedLog
from tocsin.bootstrap import Installation
from tocsin.bootstrap.commits import LED
from tocsin.bootstrap.provision import fold_of, installed_stages
from tocsin.domain import ledger
from tocsin.domain.definition import JobDefinition
from tocsin.domain.events import ExecutionFact, Message, Recorded, Trigger, unfold
from tocsin.domain.ledger import Ledger
from tocsin.engine.fold import EVENTS
from tocsin.engine.ledger_reader import LedgerReader
from tocsin.ports import SequenceConflict
from tocsin.settings import Settings
from tocsin.subjects import DECISION_STREAMS, any_of

T = TypeVar("T")
F = TypeVar("F", bound=Message)

DEADLINE = 60.0
"""Seconds after which a test gives up waiting; nothing is asserted about how long anything takes."""
LONGEST_PAUSE = 2.0
"""Seconds between two looks at a condition."""

# A stage that stops waits for its open request: 2 s at the end of hundreds of tests. Processes of their own have the usual value.
vars(stage_router)["PULL_WAIT_S"] = 0.5


def settings(url: str, folder: Path, **more: object) -> Settings:
    """Settings of an installation that shares its server with others."""
    root = f"t{uuid4().hex[:8]}"
    return Settings.model_validate(
        {
            "root": root,
            "public_prefix": f"{root}-cron",
            "trigger_prefix": f"{root}-cron.trigger",
            "mq_prefix": f"{root}-mq",
            "nats": {"url": url},
            "data_dir": folder,
            **more,
        }
    )


@asynccontextmanager
async def deciding(installation: Installation) -> AsyncIterator[Installation]:
    """Store the decisions of this process as the process of a stage does, so that no registrar is needed."""
    view: asyncio.Future[CommitView] = asyncio.get_running_loop().create_future()
    reading: asyncio.Task[None] | None = None

    async def read() -> None:
        process, own = await installation.commits._process(is_lasting=False)
        async with process.running([], own):
            view.set_result(own)
            await asyncio.Event().wait()

    async def shown() -> CommitView:
        nonlocal reading
        task = reading = reading or asyncio.create_task(read())
        await asyncio.wait((task, view), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            reading = None
            task.result()
        return view.result()

    try:
        yield replace(installation, log=RoutedLog(installation.inputs, shown))
    finally:
        if reading is not None:
            reading.cancel()
            await asyncio.wait([reading])


@asynccontextmanager
async def registrar(installation: Installation) -> AsyncIterator[None]:
    """Run the stage that decides on requests, with the rights of a connection."""
    ready = asyncio.Event()
    stage = asyncio.create_task(bootstrap.run_stages(installation, ["registrar"], ready=ready))
    starting = asyncio.create_task(ready.wait())
    await asyncio.wait([starting, stage], return_when=asyncio.FIRST_COMPLETED)
    starting.cancel()
    try:
        yield
    finally:
        stage.cancel()
        await asyncio.gather(stage, return_exceptions=True)


class Running:
    """An installation, and what a test does with it."""

    def __init__(self, installation: Installation) -> None:
        self.installation = installation
        self.log = installation.log
        self.settings = installation.settings
        self.patience = DEADLINE
        self._ids = count()

    async def apply(self, *definitions: Mapping[str, Any]) -> None:
        """Define jobs."""
        for definition in definitions:
            job = JobDefinition.model_validate(definition)
            await self.change(job.name, partial(ledger.define, definition=job))

    async def change(self, job: str, decide: Callable[[Ledger], Iterable[Message]]) -> None:
        """Append what is decided on a job's ledger."""
        while True:
            state, sequence = await LedgerReader(self.log).load(job)
            try:
                for fact in decide(state):
                    sequence = await self.log.append(fact, expect=sequence)
            except SequenceConflict:
                continue
            return

    async def trigger(self, job: str, **fields: object) -> None:
        """Ask for a run."""
        trigger = Trigger.model_validate(fields)
        await self.log.publish(subjects.trigger(job), trigger, message_id=f"{job}-{next(self._ids)}")

    async def facts(self, subject: str, kind: type[F]) -> list[Recorded[F]]:
        """Everything of a kind that was ever stored under a filter, oldest first."""
        found: list[Recorded[F]] = []
        await self._add(found, subject, kind, after=0)
        return found

    async def _add(self, found: list[Recorded[F]], subject: str, kind: type[F], *, after: int) -> int:
        """Add what was stored since a sequence; return the last sequence that was read."""
        while batch := await self.log.read(subject, after=after):
            unfolded: list[Recorded[Any]] = list(unfold(batch))
            found += (recorded for recorded in unfolded if isinstance(recorded.message, kind))
            after = batch[-1].sequence
        return after

    async def of_executions(self, job: str, kind: type[F]) -> list[F]:
        """The facts of a kind of all executions of a job."""
        return [r.message for r in await self.facts(f"execution.{subjects.token(job)}.>", kind)]

    async def until(self, happened: Callable[[], Awaitable[T]]) -> T:
        """Wait for a condition and return its value. Looking takes a tenth of the time."""
        clock = asyncio.get_running_loop().time
        async with asyncio.timeout(self.patience):
            while True:
                began = clock()
                if found := await happened():
                    return found
                await asyncio.sleep(min(max(0.05, 9 * (clock() - began)), LONGEST_PAUSE))

    async def ended(self, job: str, kind: type[F], number: int = 1) -> list[F]:
        """Wait until as many executions of a job have a fact of a kind."""
        stored = await self.stored(f"execution.{subjects.token(job)}.>", kind, number)
        return [recorded.message for recorded in stored]

    async def stored(self, subject: str, kind: type[F], number: int) -> list[Recorded[F]]:
        """Wait until as many facts of a kind are stored under a filter. Each is read once, however long it takes."""
        found: list[Recorded[F]] = []
        after = 0

        async def are_enough() -> bool:
            nonlocal after
            after = await self._add(found, subject, kind, after=after)
            return len(found) >= number

        await self.until(are_enough)
        return found

    async def not_taken(self) -> Counter[str]:
        """Return the number of events that each stage has not taken, and of filters with inputs that it has not taken."""
        fold, log = await fold_of(self.installation), self.installation.log
        view = await self.installation.commits.view()
        found = Counter[str]()
        for stage in installed_stages(self.settings):
            for one in stage.subscriptions if stage.name in LED else ():
                filters = one.spec(self.settings).filters
                if one.stream not in DECISION_STREAMS:
                    newest, taken = max(await log.tails(*filters)), fold.position(stage.name, one.stream.value)
                    found[stage.name] += not taken.has(newest)
                    continue
                taken = fold.position(stage.name, EVENTS)
                async for event in view.past(any_of(filters), after=taken.floor, upto=view.number):
                    found[stage.name] += not taken.has(event.sequence)
        return found

    async def public(self, subject: str) -> "asyncio.Queue[Msg]":
        """Collect the messages of a plain subscriber of a public subject from now on."""
        queue: asyncio.Queue[Msg] = asyncio.Queue()
        await self.installation.connection.client.subscribe(subject, cb=queue.put)
        await self.installation.connection.client.flush()
        return queue


async def event(queue: "asyncio.Queue[Msg]") -> dict[str, Any]:
    """The next event of a plain subscriber, as plain JSON."""
    async with asyncio.timeout(DEADLINE):
        message = await queue.get()
    event: dict[str, Any] = json.loads(message.data)
    return event


@asynccontextmanager
async def running(
    url: str,
    folder: Path,
    *,
    stages: Collection[str] = bootstrap.STAGE_NAMES,
    worker: Worker | None = None,
    **more: object,
) -> AsyncIterator[Running]:
    """Stages in this process, and a worker."""
    async with bootstrap.connect(settings(url, folder, **more)) as installation:
        await bootstrap.initialize(installation)
        ready = asyncio.Event()
        tasks = [asyncio.create_task(bootstrap.run_stages(installation, list(stages), ready=ready))]
        if worker is not None:
            tasks.append(asyncio.create_task(_work(installation, worker)))
        starting = asyncio.create_task(ready.wait())
        await asyncio.wait([starting, *tasks], return_when=asyncio.FIRST_COMPLETED)
        starting.cancel()
        try:
            if tasks[0].done():
                await tasks[0]
            yield Running(installation)
        finally:
            if worker is not None:
                worker.stop()
            tasks[0].cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _work(installation: Installation, worker: Worker) -> None:
    async with bootstrap.worker_connection(installation, worker.options) as connection:
        await worker.serve(connection)


def executions_of(facts: Iterable[ExecutionFact]) -> set[str]:
    """The executions that facts belong to."""
    return {fact.execution_id for fact in facts}
