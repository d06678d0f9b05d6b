"""A worker's messages about tasks of others change nothing, and are not shown."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
from pydantic import JsonValue

from tests.security.installations import connected, installed
from tests.security.server import Server
from tests.system.running import Running
from tocsin import Context, Worker, bootstrap, subjects
from tocsin.domain import ids
from tocsin.domain.events import (
    Completed,
    Dispatched,
    HeartbeatDetails,
    OutputLine,
    OutputMessage,
    PoisonMessage,
    Report,
    Started,
    StepProgress,
    validated,
)
from tocsin.services.operations.execution_output import read_output
from tocsin.services.operations.lookup import find


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with installed(tmp_path_factory.mktemp("reports")) as running:
        yield running


def forged(task: Dispatched, own: Dispatched) -> Iterator[tuple[str, bytes]]:
    """Yield reports on a task by a worker that lacks its token.

    It received the task `own`.
    """
    fields = {"step": task.step, "attempt": task.attempt, "delivery": 1}
    for outcome in ("completed", "failed"):
        meant = validated(
            Report,
            {"job": task.job, "execution_id": task.execution_id, "outcome": outcome, "token": own.token, **fields},
        )
        another = meant.changed(job=own.job, execution_id=own.execution_id)
        subject = subjects.subject_of(meant)
        yield subject, meant.encode()
        yield subject, another.encode()
        yield subject, b"no json"
        yield subject.removesuffix(".1"), meant.encode()
        yield ".".join(subject.split(".")[:4]), meant.encode()


def ids_of(task: Dispatched, own: Dispatched, subject: str) -> Iterator[str]:
    """Yield the message ids that such a worker can give.

    With them, the report of the other would look like a copy.
    """
    place = f"{task.execution_id}.{task.step}.{task.attempt}"
    for known in ("", own.token, task.execution_id):
        yield from (ids.report_id(known, text) for text in (subject, place, subjects.scope_of(task)))
    yield from (subject, place, place.replace(".", "-"))


STAGES: Final = ("planner", "dag_advancer", "matcher", "retrier", "agent_keeper")


@asynccontextmanager
async def at_work(at: Server, folder: Path, worker: Worker) -> AsyncIterator[Running]:
    """Run stages and a worker of another account; the test is an operator."""
    async with (
        connected(at, folder, "scheduler") as scheduler,
        connected(at, folder, "worker") as outside,
        connected(at, folder, "operator") as operator,
        bootstrap.worker_connection(outside, worker.options) as connection,
    ):
        tasks = [
            asyncio.create_task(bootstrap.run_stages(scheduler, STAGES)),
            asyncio.create_task(worker.serve(connection)),
        ]
        try:
            yield Running(operator)
        finally:
            worker.stop()
            tasks[0].cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


MARKERS: Final = 2
"""Executions in a row that end after a message was stored: then every stage and the matcher handled that message."""


async def test_reports_on_tasks_of_others_change_nothing(secured: Server, tmp_path: Path) -> None:
    held, let_go = asyncio.Event(), asyncio.Event()
    worker = Worker(name="all-1", concurrency=9)

    @worker.task("hold")
    async def hold(_: Context) -> None:
        held.set()
        await let_go.wait()

    worker.task("pass")(lambda _: None)
    limited = {"name": "limited", "function": "hold", "overlap_policy": "allow", "concurrency": {"limit": 1}}
    async with (
        at_work(secured, tmp_path, worker) as tocsin,
        connected(secured, tmp_path, "worker-mail") as mail,
    ):
        await tocsin.apply(limited, {"name": "marker", "function": "pass"})
        await tocsin.trigger("marker")
        await tocsin.ended("marker", Completed)
        [own] = await tocsin.of_executions("marker", Dispatched)
        await tocsin.trigger("limited")
        await tocsin.trigger("limited")
        tasks = await tocsin.ended("limited", Dispatched, 2)
        await held.wait()
        [claim] = await tocsin.of_executions("limited", Started)
        [task] = [task for task in tasks if task.execution_id == claim.execution_id]
        for subject, body in forged(task, own):
            for message_id in ids_of(task, own, subject):
                headers = {"Nats-Msg-Id": message_id}
                await mail.connection.client.publish(mail.names.to_wire(subject), body, headers=headers)
        await mail.connection.client.flush()
        for number in range(MARKERS):
            await tocsin.trigger("marker")
            await tocsin.ended("marker", Completed, number + 2)
        assert len(await tocsin.of_executions("limited", Started)) == 1
        assert await tocsin.facts("dead-letter.>", PoisonMessage) == []
        let_go.set()
        assert len(await tocsin.ended("limited", Completed, 2)) == 2


async def test_output_of_tasks_of_others_is_not_read(secured: Server, tmp_path: Path) -> None:
    held, let_go = asyncio.Event(), asyncio.Event()
    read: list[JsonValue] = []
    worker = Worker(name="all-1")

    @worker.task("load")
    async def load(context: Context) -> None:
        read.append(context.last_heartbeat)
        if context.attempt == 1:
            context.logger.info("loading")
            await context.heartbeat({"row": 1_200})
            held.set()
            await let_go.wait()
            raise ConnectionError("away")

    async with (
        at_work(secured, tmp_path, worker) as tocsin,
        connected(secured, tmp_path, "worker-mail") as mail,
    ):
        retry = {"max_attempts": 2, "initial_delay": 0.1}
        await tocsin.apply({"name": "etl", "function": "load", "retry": retry})
        await tocsin.trigger("etl")
        await held.wait()
        [task] = await tocsin.of_executions("etl", Dispatched)
        heartbeats = f"heartbeat.etl.{task.execution_id}.>"
        await tocsin.until(partial(tocsin.log.last, heartbeats))
        for message in said_of(task):
            for subject in (subjects.output_of(message, "guessed"), subjects.output_of(message, "").rpartition(".")[0]):
                await mail.connection.client.publish(mail.names.to_wire(subject), message.encode())
        await mail.connection.client.flush()
        let_go.set()
        await tocsin.ended("etl", Completed)
        assert read == [None, {"row": 1_200}]
        output = await read_output(tocsin.log, await find(tocsin.log, task.execution_id))
        assert [line.text for line in output.lines] == ["loading"]
        assert output.progress == {}


def said_of(task: Dispatched) -> Iterator[OutputMessage]:
    """Yield output of a task that another worker makes up."""
    attempt: dict[str, Any] = {"job": task.job, "execution_id": task.execution_id, "step": task.step, "attempt": 1}
    now = datetime.now(UTC)
    yield OutputLine(**attempt, time=now, text="forged")
    yield StepProgress(**attempt, time=now, fraction=0.9)
    yield HeartbeatDetails(**attempt, time=now, details="forged")
