"""Workers whose NATS users may use no JetStream: everything that a worker does, with no more than is granted."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import JsonValue

from tests.security.installations import connected, installed
from tests.security.server import Server
from tests.security.test_roles import everybody
from tocsin import Context, Worker
from tocsin.bootstrap.nats_roles import permissions
from tocsin.domain.events import AgentEnded, Cancelled, Completed, ExecutionFact, Released, Report, Started
from tocsin.ports import NotAllowed
from tocsin.services.agents import AgentRegistry
from tocsin.services.operations import execution_requests
from tocsin.services.operations.execution_output import read_output
from tocsin.services.operations.lookup import find
from tocsin.settings import Settings


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with installed(tmp_path_factory.mktemp("workers")) as running:
        yield running


def test_worker_may_use_no_jetstream() -> None:
    rules = permissions(Settings())["worker"]
    assert not [subject for subject in rules.publish if subject.startswith("$")]
    assert set(rules.subscribe) == {
        *("tocsin.task.*.*", "tocsin.task.*.*.run", "tocsin.task.*.*.end"),
        "tocsin.agents",
    }


@pytest.mark.parametrize("verb", ["INFO", "STREAM.NAMES", "STREAM.INFO.TOCSIN_LOG", "DIRECT.GET.TOCSIN_PROGRESS"])
async def test_worker_is_refused_every_request(secured: Server, tmp_path: Path, verb: str) -> None:
    async with connected(secured, tmp_path, "worker") as installation:
        with pytest.raises(NotAllowed):
            await installation.connection.request(f"$JS.API.{verb}")


async def test_worker_does_everything_without_jetstream(
    secured: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OF_THE_WORKER", "a-secret-value")
    worker, held, stopped = Worker(name="all-1", secrets=["OF_THE_WORKER"]), asyncio.Event(), asyncio.Event()
    read: list[JsonValue] = []
    secrets: list[JsonValue] = []

    @worker.task("load")
    async def load(context: Context, *, secret: str) -> None:
        read.append(context.last_heartbeat)
        secrets.append(secret)
        context.logger.info("loading", secret=secret)
        await context.progress(0.5, "half")
        await context.heartbeat({"row": 1_200})
        if context.attempt == 1:
            raise ConnectionError("away")

    @worker.task("hold")
    async def hold(_: Context) -> None:
        held.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    before = len(secured.log)
    async with everybody(secured, tmp_path, worker) as tocsin:
        retry = {"max_attempts": 2, "initial_delay": 0.1}
        await tocsin.apply(
            {"name": "etl", "function": "load", "retry": retry, "input": {"secret": "${env:OF_THE_WORKER}"}},
            {"name": "held", "function": "hold"},
        )
        await tocsin.trigger("etl")
        [completed] = await tocsin.ended("etl", Completed)
        assert (read, secrets) == ([None, {"row": 1_200}], ["a-secret-value"] * 2)

        async def lines() -> list[str]:
            output = await read_output(tocsin.log, await find(tocsin.log, completed.execution_id))
            return [line.text for line in output.lines] if output.progress and len(output.lines) == 2 else []

        assert await tocsin.until(lines) == ["loading secret=${env:OF_THE_WORKER}"] * 2

        await tocsin.trigger("held")
        [started] = await tocsin.ended("held", Started)
        await held.wait()
        await execution_requests.cancel(tocsin.log, started.execution_id, reason="enough")
        async with asyncio.timeout(tocsin.patience):
            await stopped.wait()
        await tocsin.ended("held", Cancelled)

        held.clear()
        await tocsin.trigger("held")
        await tocsin.ended("held", Started, 2)
        await held.wait()
        assert await AgentRegistry(tocsin.log, tocsin.installation.projections).drain("all-1")
        worker.stop()
        worker.stop()  # at once
        await tocsin.until(lambda: tocsin.facts("agent.all-1.*.ended", AgentEnded))
        [released] = await tocsin.ended("held", Released)
        assert released.reason == "handed_back"
        assert len(await tocsin.facts("report.>", Report)) == 2
        assert await tocsin.of_executions("held", ExecutionFact)
    assert "Violation" not in secured.log[before:]
