"""Runs that the history alone still has."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.client.conftest import TRANSPORTS
from tests.domain.given import ID, JOB, NOON, admitted, plan, started
from tests.http.conftest import World
from tocsin import Client
from tocsin.adapters.http.api_client import ApiClient
from tocsin.adapters.http.client import HttpOperator
from tocsin.adapters.sql.history import open_history
from tocsin.bootstrap.operators import opened_once
from tocsin.client import ResultExpired
from tocsin.client.run import Run
from tocsin.domain.events import Advanced, Completed, Message
from tocsin.ports import LogUnavailable
from tocsin.services.operations.errors import NotFound
from tocsin.services.operations.lookup import ExecutionMatch
from tocsin.services.operator import Operator
from tocsin.subjects import Stream

ONE_STEP = (admitted(), started())
TWO_STEPS = (
    admitted(plan({"first": (), "main": ("first",)})),
    Advanced(job=JOB, execution_id=ID, step="first", attempt=1, result="begun"),
)
END = Completed(
    job=JOB, execution_id=ID, scheduled_time=NOON, trigger="cron", step="main", attempt=1, result={"rows": 3}
)


class Old:
    """An installation in memory, and an operator of each kind."""

    def __init__(self, world: World) -> None:
        self.world = world

    async def operator(self, transport: str, stack: AsyncExitStack) -> Operator:
        world = self.world
        if transport == "http":
            return HttpOperator(ApiClient(world.client), world.clock)
        history = await stack.enter_async_context(
            opened_once(lambda: open_history(f"sqlite:///{world.folder}/history.db"))
        )

        return world.operator(history)

    async def store(self, *facts: Message) -> None:
        """Store the events of the run, and record them in the history."""
        sequence = 0
        for fact in facts:
            sequence = await self.world.log.append(fact, expect=sequence)
        stored = await self.world.log.read("execution.>")
        await self.world.history.record(Stream.LOG, stored, after=0, upto=stored[-1].sequence)

    async def lose(self) -> None:
        """Remove the run from the log."""
        for fact in await self.world.log.read("execution.>"):
            self.world.log.stream(Stream.LOG).remove(fact.sequence)


@pytest.fixture
async def old(tmp_path: Path) -> AsyncIterator[Old]:
    async with open_history(f"sqlite:///{tmp_path}/history.db") as history:
        yield Old(World(tmp_path, history))


@pytest.fixture(params=TRANSPORTS)
async def client(old: Old, request: pytest.FixtureRequest) -> AsyncIterator[Client]:
    async with AsyncExitStack() as stack, Client(operator=await old.operator(request.param, stack)) as client:
        yield client


async def test_history_has_the_result_of_one_step(old: Old, client: Client) -> None:
    await old.store(*ONE_STEP, END)
    run = await client.run(ID)
    await old.lose()
    assert await run.result() == {"rows": 3}
    assert await run.status() == "completed"
    assert [fact async for fact in run.events()] == []


async def test_expired_result_says_so(old: Old, client: Client) -> None:
    await old.store(*TWO_STEPS, END)
    run = await client.run(ID)
    await old.lose()
    with pytest.raises(ResultExpired) as caught:
        await run.result()
    assert caught.value.code == "result-expired"
    assert await run.results() == {"first": "begun", "main": {"rows": 3}}


async def test_forgotten_run_is_not_found(client: Client) -> None:
    run = Run(client._open, JOB, ID)
    for call in (run.result, run.status, run.cancel, run.output):
        with pytest.raises(NotFound):
            await call()


async def test_end_is_read_despite_lagging_replica(old: Old, monkeypatch: pytest.MonkeyPatch) -> None:
    await old.store(*ONE_STEP)
    async with AsyncExitStack() as stack:
        operator = await old.operator("nats", stack)
        client = await stack.enter_async_context(Client(operator=operator))
        stale, reads, is_followed = await operator.execution(ID), 0, asyncio.Event()

        async def lagging(given: str) -> ExecutionMatch:
            nonlocal reads
            reads += 1
            if reads == 2:  # the first after events are followed
                is_followed.set()
            if reads == 3:
                raise LogUnavailable("no quorum")
            return stale if reads < 5 else await Operator.execution(operator, given)

        monkeypatch.setattr(operator, "execution", lagging)
        waiting = asyncio.create_task(Run(client._open, JOB, ID).result())
        await is_followed.wait()
        last = (await old.world.log.load(f"execution.{JOB}.{ID}.>"))[-1].sequence
        await old.world.log.append(END, expect=last)
        assert await waiting == {"rows": 3}
        assert reads == 5
