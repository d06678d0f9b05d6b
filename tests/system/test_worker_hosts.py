"""A worker does the same in each kind of host, over a real nats-server.

Hosts are the lifespan of an application, a thread, and `tocsin worker`.
"""

import asyncio
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Final, TypeAlias

import pytest
from fastapi import FastAPI

from tests.system.hosted_worker import SEEN_FILE, worker
from tests.system.processes import REPOSITORY, environment_of
from tests.system.running import DEADLINE, Running, running
from tocsin import subjects
from tocsin.domain.events import AgentEnded, Cancelled, CancelRequest, Completed, OutputLine, Started

JOBS: Final = (
    {"name": "describe", "function": "describe", "input": {"day": "monday"}, "tags": ["a"]},
    {"name": "compute", "function": "compute"},
    {"name": "resume", "function": "resume", "retry": {"max_attempts": 2, "initial_delay": 0}},
    {"name": "watch", "function": "watch"},
    {"name": "last", "function": "last"},
)

Host: TypeAlias = Callable[[Running], AbstractAsyncContextManager[None]]


@asynccontextmanager
async def in_a_lifespan(_: Running) -> AsyncIterator[None]:
    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with worker.running():
            yield

    app = FastAPI(lifespan=lifespan)
    async with app.router.lifespan_context(app):
        yield


@asynccontextmanager
async def in_a_thread(_: Running) -> AsyncIterator[None]:
    thread = threading.Thread(target=worker.run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        worker.stop()
        await asyncio.to_thread(thread.join, DEADLINE)
    assert not thread.is_alive()


@asynccontextmanager
async def as_a_command(tocsin: Running) -> AsyncIterator[None]:
    command = (sys.executable, "-m", "tocsin", "worker", "tests.system.hosted_worker:worker")
    process = await asyncio.create_subprocess_exec(*command, cwd=REPOSITORY, env=environment_of(tocsin.settings))
    try:
        yield
    finally:
        process.terminate()
        code = await process.wait()
    assert code == 0


@pytest.mark.parametrize("host", [in_a_lifespan, in_a_thread, pytest.param(as_a_command, marks=pytest.mark.full)])
async def test_worker_does_the_same_in_any_host(
    nats_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: Host
) -> None:
    seen = tmp_path / "seen"
    monkeypatch.setenv(SEEN_FILE, str(seen))
    async with running(nats_url, tmp_path, metrics={"enabled": False}) as tocsin:
        for name, value in environment_of(tocsin.settings).items():
            if name.startswith("TOCSIN_"):
                monkeypatch.setenv(name, value)
        await tocsin.apply(*JOBS)
        async with host(tocsin):
            for job in JOBS:
                await tocsin.trigger(str(job["name"]))
            [described] = await tocsin.ended("describe", Completed)
            assert described.result == {"day": "monday", "queue": "default", "tags": ["a"]}
            [computed] = await tocsin.ended("compute", Completed)
            assert computed.result is True
            [resumed] = await tocsin.ended("resume", Completed)
            assert (resumed.attempt, resumed.result) == (2, {"row": 7})

            [watching] = await tocsin.ended("watch", Started)
            request = subjects.cancel("watch", watching.execution_id)
            await tocsin.log.publish(request, CancelRequest(), message_id="cancel")
            await tocsin.ended("watch", Cancelled)
            await tocsin.until(lambda: asyncio.to_thread(seen.exists))
            await tocsin.ended("last", Started)
            assert await tocsin.of_executions("last", Completed) == []
        [finished] = await tocsin.ended("last", Completed)
        assert finished.result == "finished"
        await tocsin.stored(subjects.agent_events(), AgentEnded, 1)
        [line] = await tocsin.stored(f"output.describe.{described.execution_id}.>", OutputLine, 1)
        assert (line.message.level, line.message.text) == ("info", "seen day=monday")
