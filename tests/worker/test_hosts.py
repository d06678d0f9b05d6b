"""A worker in an application: in its event loop, in a thread, and stopped from elsewhere."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import httpx
import pytest
from fastapi import FastAPI

from tests.worker.given import FUNCTION, Bench
from tocsin import Context, Worker
from tocsin.testing import ManualClock
from tocsin.worker import Connection
from tocsin.worker.connection import Options

DEADLINE: Final = 20.0


@asynccontextmanager
async def passing(bench: Bench) -> AsyncIterator[Bench]:
    """Let the time of an environment pass by itself."""
    task = asyncio.create_task(_pass(bench.clock))
    try:
        async with bench.matching():
            yield bench
    finally:
        task.cancel()


async def _pass(clock: ManualClock) -> None:
    while True:
        await asyncio.sleep(0.01)
        clock.advance(0.1)


async def test_worker_runs_in_the_lifespan_of_fastapi() -> None:
    bench, worker, began = Bench(), Worker(), asyncio.Event()

    @worker.task(FUNCTION)
    async def handler(context: Context) -> None:
        began.set()
        await context.shutting_down.wait()

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with passing(bench), worker.running(bench.connection()):
            yield

    app = FastAPI(lifespan=lifespan)

    @app.get("/")
    async def root() -> list[str]:
        return [started.worker for _, started in await bench.claims()]

    await bench.given_task()
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://app") as client,
        asyncio.timeout(DEADLINE),
    ):
        await began.wait()
        assert (await client.get("/")).json() == [worker.options.name]
        assert await bench.reports() == []
    assert (await bench.report()).outcome == "completed"  # the handler finished before the lifespan ended


async def test_failure_of_the_worker_ends_the_context() -> None:
    def fail() -> Connection:
        raise LookupError("no route")

    @asynccontextmanager
    async def connect(_: Options) -> AsyncIterator[Connection]:
        yield fail()

    with pytest.raises(LookupError, match="no route"):
        async with Worker(connect=connect).running():
            await asyncio.sleep(0)


async def test_context_ends_while_the_worker_connects() -> None:
    connecting = asyncio.Event()

    @asynccontextmanager
    async def connect(_: Options) -> AsyncIterator[Connection]:
        connecting.set()
        await asyncio.Event().wait()
        yield Bench().connection()

    async with asyncio.timeout(DEADLINE), Worker(connect=connect).running():
        await connecting.wait()
    async with asyncio.timeout(DEADLINE), Worker(connect=connect).running():
        pass


def test_worker_in_a_thread_is_stopped_from_outside() -> None:
    began, told = threading.Event(), []

    @asynccontextmanager
    async def connect(_: Options) -> AsyncIterator[Connection]:
        async with passing(Bench()) as bench:
            await bench.given_task()
            yield bench.connection()
            told.append((await bench.report()).outcome)

    worker = Worker(connect=connect)

    @worker.task(FUNCTION)
    def handler(context: Context) -> None:
        began.set()
        assert context.shutting_down.wait_in_thread(DEADLINE)

    thread = threading.Thread(target=worker.run, daemon=True)
    thread.start()
    assert began.wait(DEADLINE)
    worker.stop()
    thread.join(DEADLINE)
    assert (thread.is_alive(), told) == (False, ["completed"])


def test_stop_before_the_begin_counts() -> None:
    worker = Worker(connect=lambda _: pytest.fail("it connected"))
    worker.stop()
    worker.run()


async def test_settings_replace_the_number_of_tasks() -> None:
    bench, worker = Bench(), Worker(concurrency=1)
    both, ended = asyncio.Barrier(2), asyncio.Event()

    @worker.task(FUNCTION)
    async def handler(_: Context) -> None:
        await both.wait()
        ended.set()

    await bench.given_tasks({"a": (), "b": ()})
    connection = Connection(bench.log, bench.channel, bench.clock, concurrency=2)
    async with asyncio.timeout(DEADLINE), passing(bench), worker.running(connection):
        await ended.wait()
