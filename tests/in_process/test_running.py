"""An application that runs its stages and its worker in its own event loop."""

import asyncio
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from examples.fastapi_app import web

from tocsin import Context, Tocsin, bootstrap, subjects
from tocsin.adapters.nats.server.embedded import ANY_PORT, EmbeddedServer
from tocsin.adapters.nats.server.process import StoreInUseError
from tocsin.app.application import AlreadyRunning
from tocsin.app.errors import ConnectedElsewhereError
from tocsin.app.operations import NotConnectedError
from tocsin.app.stand_ins import UntraceableError
from tocsin.bootstrap.in_process import NotInMemory
from tocsin.domain.events import AgentEnded, Released, Started
from tocsin.domain.ledger import JobNotFound
from tocsin.settings import Metrics, Nats, Server, Settings


def shop(kind: str, folder: Path, **options: Any) -> Tocsin:  # noqa: ANN401 - those of an application
    app = (
        Tocsin.in_memory("shop", **options) if kind == "memory" else Tocsin.embedded("shop", data_dir=folder, **options)
    )

    @app.job()
    async def greet(context: Context, name: str) -> str:
        return f"{context.job} {name}"

    @app.job(schedule="@every 1s", overlap_policy="allow")
    def tick(context: Context) -> str:
        return context.trigger

    return app


@pytest.mark.parametrize("kind", ["memory", "embedded"])
async def test_application_runs_its_jobs(kind: str, tmp_path: Path) -> None:
    app = shop(kind, tmp_path)
    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    for _ in range(2):  # also a second time, after its end
        async with app.running() as running:
            run = await running.client.trigger("greet", {"name": "Ada"})
            assert await run.result(timeout=60) == "greet Ada"
            assert (await app.trigger("greet", name="Ada")).job == "greet"
            assert running.url is None
            assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == handlers


async def test_embedded_jobs_survive_a_restart(tmp_path: Path) -> None:
    async with shop("embedded", tmp_path).running() as running:
        run = await running.client.trigger("greet", {"name": "Ada"})
        await run.result(timeout=60)
    smaller = Tocsin.embedded("shop", data_dir=tmp_path)

    @smaller.job()
    async def other(context: Context) -> None: ...

    async with smaller.running() as running:
        assert [job.name for job in await running.client.jobs()] == ["other"]
        while not (rows := [row async for row in running.client.executions(job="greet")]):  # noqa: ASYNC110 - as it is read
            await asyncio.sleep(0.05)
        assert [row.execution_id for row in rows] == [run.execution_id]


@pytest.mark.parametrize("kind", ["memory", "embedded"])
async def test_job_is_paused_listed_and_removed(kind: str, tmp_path: Path) -> None:
    app = shop(kind, tmp_path)
    greet = app.declared["greet"]
    async with app.running():
        assert await app.pause(greet, reason="a holiday")
        run = await app.trigger(greet, name="Ada")
        assert await run.result(timeout=60) == "greet Ada"
        while not (rows := [row async for row in app.executions(greet, status="completed")]):  # noqa: ASYNC110 - as it is read
            await asyncio.sleep(0.05)
        assert [row.execution_id for row in rows] == [run.execution_id]
        assert (await app.get_status(greet)).is_paused
        assert await app.resume(greet)
        assert not await app.resume("greet")
        await app.remove(greet)
        with pytest.raises(JobNotFound):
            await app.pause(greet)


async def test_policy_applies_to_registered_jobs(tmp_path: Path) -> None:
    async with shop("embedded", tmp_path).running() as running:
        await running.client.operator.change_policy({"job_timeout": 60})
    async with shop("embedded", tmp_path).running() as running:
        assert (await running.client.job("greet")).definition.timeout == 60


async def test_data_folder_belongs_to_one_process(tmp_path: Path) -> None:
    async with shop("embedded", tmp_path).running():
        with pytest.raises(StoreInUseError, match="in use"):
            async with shop("embedded", tmp_path).running():
                pass


@pytest.mark.parametrize("kind", ["memory", "embedded"])
async def test_application_starts_once(kind: str, tmp_path: Path) -> None:
    app = shop(kind, tmp_path)
    async with app.running():
        with pytest.raises(AlreadyRunning):
            async with app.running():
                pass
        async with Tocsin.in_memory("second").running():  # several applications in one process
            pass


async def test_error_of_the_body_stops_everything(tmp_path: Path) -> None:
    app = shop("embedded", tmp_path)
    with pytest.raises(ZeroDivisionError):
        async with app.running():
            raise ZeroDivisionError
    async with app.running():
        pass


async def test_failed_start_cleans_up(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("no folder")
    app = shop("embedded", file / "data")
    before = asyncio.all_tasks()
    for _ in range(2):
        with pytest.raises(Exception, match="cannot be used"):
            async with app.running():
                pass
    assert asyncio.all_tasks() == before


async def test_wrong_graph_can_be_corrected() -> None:
    app = Tocsin.in_memory("shop")
    is_right = False

    @app.step
    async def load() -> int:
        return 3

    @app.dag
    async def report() -> int | None:
        return await load() if is_right else 3

    for _ in range(2):
        with pytest.raises(UntraceableError):
            async with app.running():
                pass
    is_right = True
    async with app.running():
        assert await (await app.trigger(report)).result(timeout=60) == 3


@pytest.mark.parametrize("kind", ["memory", "embedded"])
async def test_own_installation_is_used_alone(kind: str, tmp_path: Path) -> None:
    app = shop(kind, tmp_path)
    with pytest.raises(NotConnectedError, match=r"app\.running\(\)"):
        app.run()
    with pytest.raises(NotConnectedError):
        await app.apply()
    with pytest.raises(NotConnectedError):
        async with app.connected():
            pass
    async with app.running():
        assert {change.job for change in (await app.apply()).of("unchanged")} == {"greet", "tick"}


async def test_connected_application_does_not_run(tmp_path: Path) -> None:
    app, other = shop("embedded", tmp_path), Tocsin.in_memory("other")
    async with other.running() as running:
        async with app.connected(running.client.operator):
            with pytest.raises(ConnectedElsewhereError):
                async with app.running():
                    pass
        assert not list(tmp_path.iterdir())  # noqa: ASYNC240 - a test
    async with app.running() as running, app.connected() as client:
        assert client is running.client


async def test_cancelled_start_cleans_up(tmp_path: Path) -> None:
    app = shop("embedded", tmp_path)

    async def run() -> None:
        async with app.running():
            await asyncio.Event().wait()

    for turns in (1, 5, 50):
        start = asyncio.create_task(run())
        for _ in range(turns):
            await asyncio.sleep(0)
        start.cancel()
        with suppress(asyncio.CancelledError):
            await start
    async with app.running():
        pass


async def test_handlers_finish_before_the_end() -> None:
    app = Tocsin.in_memory("shop", shutdown_timeout=30)
    begun, ended = asyncio.Event(), list[bool]()

    @app.job()
    async def slow(context: Context) -> None:
        begun.set()
        await context.shutting_down.wait()
        ended.append(True)

    async with app.running() as running:
        await running.client.trigger("slow")
        await begun.wait()
    assert ended == [True]


async def test_handlers_are_cancelled_after_the_timeout() -> None:
    app = Tocsin.in_memory("shop", shutdown_timeout=0.05)
    begun, ended = asyncio.Event(), list[str]()

    @app.job()
    async def slow(context: Context) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cancelled" if context.cancelled else "")

    async with app.running() as running:
        await running.client.trigger("slow")
        await begun.wait()
    assert ended == ["cancelled"]


async def test_unfinished_task_is_released_before_the_end(tmp_path: Path) -> None:
    app = Tocsin.embedded("shop", data_dir=tmp_path, shutdown_timeout=0)
    deliveries = asyncio.Queue[int]()

    @app.job()
    async def slow(context: Context) -> None:
        deliveries.put_nowait(context.delivery)
        if context.delivery == 1:
            await asyncio.Event().wait()

    async with app.running() as running:
        run = await running.client.trigger("slow")
        assert await deliveries.get() == 1
    async with EmbeddedServer(tmp_path / "nats", ANY_PORT).running() as server:
        settings = Settings(nats=Nats(url=server.url), data_dir=tmp_path)
        async with bootstrap.connect(settings, within=30) as installation:
            facts = [each.message for each in await installation.log.load(subjects.execution("slow", run.execution_id))]
            started = next(fact for fact in facts if isinstance(fact, Started))
            scope = subjects.agent(started.worker, str(started.agent))
            of_agent = [each.message for each in await installation.log.load(scope)]
    assert [fact.reason for fact in facts if isinstance(fact, Released)] == ["handed_back"]
    assert isinstance(of_agent[-1], AgentEnded)
    async with app.running():
        assert await deliveries.get() == 2


async def test_late_end_of_a_handler_leaves_no_task(tmp_path: Path) -> None:
    app = Tocsin.embedded("shop", data_dir=tmp_path, shutdown_timeout=0)
    begun, release = asyncio.Event(), asyncio.Event()

    @app.job()
    async def stubborn() -> str:
        begun.set()
        while not release.is_set():
            with suppress(asyncio.CancelledError):
                await release.wait()
        return "late"

    before = asyncio.all_tasks()
    async with app.running() as running:
        await running.client.trigger("stubborn")
        await begun.wait()
    release.set()
    left = asyncio.all_tasks() - before
    assert left
    await asyncio.wait_for(asyncio.gather(*left), 60)


async def test_api_of_an_embedded_installation(tmp_path: Path) -> None:
    app = shop("embedded", tmp_path, settings=Settings(server=Server(port=0), metrics=Metrics(port=0)))
    async with app.running(server=True) as running, httpx.AsyncClient() as http:
        assert running.url is not None
        assert (await http.get(f"{running.url}/v1/jobs")).status_code == 200


async def test_memory_has_no_server() -> None:
    app = Tocsin.in_memory("shop")
    with pytest.raises(NotInMemory):
        async with app.running(server=True):
            pass
    with pytest.raises(NotInMemory):
        async with app.running(stages=False):
            pass


async def test_fastapi_example_waits_for_its_job() -> None:
    async with served() as url, httpx.AsyncClient(timeout=60) as http:
        answer = await http.post(f"{url}/reports/2026-11-26")
        assert (answer.status_code, answer.json()) == (200, {"report": {"day": "2026-11-26", "rows": 3}})


@asynccontextmanager
async def served() -> AsyncIterator[str]:
    """Serve the example by uvicorn, which runs its lifespan."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(web, log_level="warning", lifespan="on"))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield "http://{}:{}".format(*listener.getsockname())
    finally:
        server.should_exit = True
        await serving
