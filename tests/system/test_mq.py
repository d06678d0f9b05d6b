"""hip-62's MQ transport on a real server: the executors know only the specification's subjects and envelope."""

import asyncio
import json
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from nats.js import JetStreamContext

from tests.system.running import Running, event, running
from tocsin import subjects
from tocsin.bootstrap.provision import health_target
from tocsin.domain.agent import AgentRecord, AgentState
from tocsin.domain.events import (
    Cancelled,
    CancelRequest,
    Completed,
    Dispatched,
    Failed,
    PoisonMessage,
    Report,
    Started,
    StepProgress,
)
from tocsin.ports import ExecutionRow
from tocsin.services.agents import AgentRegistry
from tocsin.services.operations.errors import NotFound
from tocsin.subjects import Stream

EXAMPLE = Path(__file__).parents[2] / "examples/mq_executor.mjs"
QUEUES = {"default": {"transport": "mq"}}
NO_RETRY = {"max_attempts": 1}


class Outside:
    """An executor that knows the stream's consumer group, the subjects and the envelope of hip-62, and nothing else."""

    def __init__(self, tocsin: Running, tasks: JetStreamContext.PullSubscription) -> None:
        self._tocsin = tocsin
        self._tasks = tasks
        self._client = tocsin.installation.connection.client

    async def take(self) -> dict[str, Any]:
        """Take the next task, and acknowledge it."""
        [message] = await self._tasks.fetch(1, timeout=20)
        await message.ack()
        envelope: dict[str, Any] = json.loads(message.data)
        assert envelope["schema"] == "hanzo.mq.v1"
        data: dict[str, Any] = envelope["data"]
        return data

    async def answer(self, tail: str, body: object) -> None:
        """Publish on the completion subject, as any client of NATS does."""
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        await self._client.publish(f"{self._tocsin.settings.mq_prefix}.scheduler.complete.{tail}", raw)
        await self._client.flush()


@asynccontextmanager
async def outside(url: str, folder: Path) -> AsyncIterator[tuple[Running, Outside]]:
    """An installation whose default queue is handed over, and an executor."""
    async with running(url, folder, queues=QUEUES) as tocsin:
        tasks = await tocsin.installation.connection.client.jetstream().pull_subscribe(
            f"{tocsin.settings.mq_prefix}.scheduled.>",
            durable="job-executors",
            stream=tocsin.installation.names.stream(Stream.MQ),
        )
        yield tocsin, Outside(tocsin, tasks)


async def letters(tocsin: Running, number: int) -> list[PoisonMessage]:
    """Wait for dead letters of messages."""

    async def enough() -> list[PoisonMessage]:
        found = [recorded.message for recorded in await tocsin.facts("dead-letter.>", PoisonMessage)]
        return found if len(found) >= number else []

    return await tocsin.until(enough)


def enveloped(data: dict[str, object]) -> dict[str, object]:
    """An answer in the specification's envelope."""
    return {
        "schema": "hanzo.mq.v1",
        "id": "task_done",
        "type": "scheduler.complete",
        "source": "functions-7",
        "timestamp": "2026-02-23T02:00:00.000Z",
        "data": data,
    }


async def test_misaddressed_answer_holds_up_no_other(nats_url: str, tmp_path: Path) -> None:
    async with outside(nats_url, tmp_path) as (tocsin, executor):
        await tocsin.apply({"name": "outside", "function": "f", "retry": NO_RETRY})
        await tocsin.trigger("outside")
        task = await executor.take()
        await executor.answer("nobody-knows-me", {"status": "completed"})
        await executor.answer(task["execution_id"], {"status": "completed"})
        [first, second] = await letters(tocsin, 2)
        assert {first.code, second.code} == {"mq-answer-misaddressed"}
        named = {"job_name": "outside", "execution_id": task["execution_id"], "status": "completed", "result": 1}
        await executor.answer(task["execution_id"], enveloped(named))
        [completed] = await tocsin.ended("outside", Completed)
        assert completed.result == 1
        durables = await health_target(tocsin.installation).inspection.durables(Stream.MQ)
        [answers] = [durable for durable in durables if durable.name == "mq-bridge-completions"]
        assert (answers.redelivered, answers.ack_pending) == (0, 0)


async def test_executor_that_names_itself_is_listed(nats_url: str, tmp_path: Path) -> None:
    async with outside(nats_url, tmp_path) as (tocsin, executor):
        await tocsin.apply({"name": "outside", "function": "f", "retry": NO_RETRY})
        await tocsin.trigger("outside")
        task = await executor.take()
        named = {"job_name": "outside", "execution_id": task["execution_id"], "status": "completed"}
        await executor.answer(task["execution_id"], enveloped(named))
        registry = AgentRegistry(tocsin.installation.log, tocsin.installation.projections)

        async def listed() -> tuple[AgentRecord, ...]:
            return await registry.agents()

        [record] = await tocsin.until(listed)
        assert (record.name, record.kind, record.state) == ("functions-7", "mq", AgentState.ENABLED)
        assert (record.queues, record.functions) == (["default"], ["f"])
        with pytest.raises(NotFound, match="does not register"):
            await registry.drain("functions-7")


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "mq-status-missing"),
        ({"state": "failed"}, "mq-status-missing"),
        ({"success": False, "exit_code": 1}, "mq-status-missing"),
        (enveloped({"status": "splendid"}), "mq-status-unknown"),
        (b"[" * 500_000, "undecodable-message"),
        ({"status": "nonsense", "result": "x" * 900_000}, "mq-status-unknown"),
    ],
    ids=["empty", "state", "success", "unknown", "deep", "huge"],
)
async def test_answer_without_status_is_never_success(nats_url: str, tmp_path: Path, body: object, code: str) -> None:
    async with outside(nats_url, tmp_path) as (tocsin, executor):
        await tocsin.apply({"name": "outside", "function": "f", "retry": NO_RETRY})
        await tocsin.trigger("outside")
        task = await executor.take()
        await executor.answer(f"outside.{task['execution_id']}", body)
        [letter] = await letters(tocsin, 1)
        assert letter.code == code
        assert await tocsin.facts("report.>", Report) == []
        await executor.answer(f"outside.{task['execution_id']}", enveloped({"status": "COMPLETED"}))
        [completed] = await tocsin.ended("outside", Completed)
        assert completed.execution_id == task["execution_id"]


async def test_failure_inside_the_envelope_is_a_failure(nats_url: str, tmp_path: Path) -> None:
    async with outside(nats_url, tmp_path) as (tocsin, executor):
        retry = {"max_attempts": 2, "initial_delay": 0}
        await tocsin.apply({"name": "outside", "function": "f", "retry": retry})
        await tocsin.trigger("outside")
        for attempt, status in ((1, "failed"), (2, "completed")):
            task = await executor.take()
            assert task["attempt"] == attempt
            await executor.answer(f"outside.{task['execution_id']}", enveloped({"status": status}))
        [completed] = await tocsin.ended("outside", Completed)
        assert completed.attempt == 2
        assert len(await tocsin.of_executions("outside", Dispatched)) == 2


async def test_largest_result_is_a_clear_failure(nats_url: str, tmp_path: Path) -> None:
    async with outside(nats_url, tmp_path) as (tocsin, executor):
        await tocsin.apply({"name": "outside", "function": "f", "retry": NO_RETRY})
        await tocsin.trigger("outside")
        task = await executor.take()
        size = tocsin.installation.connection.client.max_payload - 40
        await executor.answer(f"outside.{task['execution_id']}", {"status": "completed", "result": "x" * size})

        [recorded] = await tocsin.until(partial(tocsin.facts, "report.>", Report))
        answered = recorded.message
        assert answered.error is not None
        assert (answered.outcome, answered.error.type, answered.error.retryable) == ("failed", "invalid_result", False)


async def test_execution_runs_from_the_hand_over_on(nats_url: str, tmp_path: Path) -> None:
    async with outside(nats_url, tmp_path) as (tocsin, executor):
        await tocsin.apply({"name": "outside", "function": "f", "timeout": 300, "retry": NO_RETRY})
        await tocsin.trigger("outside")
        task = await executor.take()
        assert json.dumps(task["timeout"]) == "300"
        id_ = task["execution_id"]
        assert (await recorded(tocsin, id_, "running")).worker == "mq-bridge"
        await executor.answer(f"outside.{id_}", enveloped({"status": "started"}))
        await tocsin.ended("outside", Started, 2)
        await executor.answer(f"outside.{id_}", enveloped({"status": "completed"}))
        row = await recorded(tocsin, id_, "completed")
        assert row.worker == "functions-7"
        assert row.duration_ms is not None


async def recorded(tocsin: Running, execution_id: str, status: str) -> ExecutionRow:
    """Wait until the history has an execution with a status."""

    async def row() -> ExecutionRow | None:
        async with tocsin.installation.history() as history:
            found = await history.execution(execution_id)
        return found if found is not None and found.status == status else None

    found = await tocsin.until(row)
    assert found is not None
    return found


async def test_executor_hears_of_a_cancel(nats_url: str, tmp_path: Path) -> None:
    async with outside(nats_url, tmp_path) as (tocsin, executor):
        heard = await tocsin.public(f"{tocsin.settings.mq_prefix}.scheduler.cancel.>")
        await tocsin.apply({"name": "out.side", "function": "f", "overlap_policy": "allow"})
        await tocsin.trigger("out.side")
        taken = await executor.take()
        await tocsin.trigger("out.side")
        waiting = (await tocsin.ended("out.side", Started, 2))[-1].execution_id
        for execution_id in (taken["execution_id"], waiting):
            request = CancelRequest(reason="wrong input")
            await tocsin.log.publish(subjects.cancel("out.side", execution_id), request, message_id=execution_id)
        notices = [await event(heard) for _ in range(2)]
        assert {notice["data"]["execution_id"] for notice in notices} == {taken["execution_id"], waiting}
        assert {(notice["type"], notice["data"]["reason"]) for notice in notices} == {
            ("scheduler.cancel", "wrong input")
        }

        async def is_empty() -> bool:
            return not await tocsin.log.read("mq.scheduled.>")

        await tocsin.until(is_empty)


@pytest.mark.skipif(shutil.which("node") is None, reason="the example needs Node.js")
async def test_node_executor_needs_only_the_specification(nats_url: str, tmp_path: Path) -> None:
    jobs = (
        {"name": "echo", "function": "demo/echo", "input": {"rows": 3}},
        {"name": "fail", "function": "demo/fail", "retry": NO_RETRY},
        {"name": "unknown", "function": "demo/unknown", "retry": {"max_attempts": 3}},
        {"name": "sleep", "function": "demo/sleep", "input": {"seconds": 600}},
        {"name": "late", "function": "demo/sleep", "input": {"seconds": 600}, "timeout": 1, "retry": NO_RETRY},
        {
            "name": "graph",
            "dag": [
                {"name": "a", "function": "demo/echo"},
                {"name": "b", "function": "demo/echo", "depends_on": ["a"]},
            ],
        },
    )
    async with running(nats_url, tmp_path, queues=QUEUES) as tocsin:
        await tocsin.apply(*jobs)
        environment = {
            "NATS_URL": nats_url,
            "MQ_STREAM": tocsin.installation.names.stream(Stream.MQ),
            "MQ_PREFIX": tocsin.settings.mq_prefix,
        }
        node = await asyncio.create_subprocess_exec(
            "node", str(EXAMPLE), env={**os.environ, **environment}, stdout=asyncio.subprocess.DEVNULL
        )
        try:
            for job in jobs:
                await tocsin.trigger(str(job["name"]))
            [echoed] = await tocsin.ended("echo", Completed)
            assert echoed.result == {"rows": 3}
            [failed] = await tocsin.ended("fail", Failed)
            assert failed.error is not None
            assert (failed.error.type, failed.error.message) == ("Error", "this function always fails")
            [unknown] = await tocsin.ended("unknown", Failed)
            assert unknown.error is not None
            assert (unknown.error.type, unknown.attempt) == ("FunctionNotFound", 1)
            [late] = await tocsin.ended("late", Failed)
            assert late.error is not None
            assert late.error.type == "timed_out"
            await tocsin.ended("graph", Completed)
            sleeping = (await tocsin.ended("sleep", Started, 2))[-1]
            assert sleeping.worker != "mq-bridge"
            [shown] = await tocsin.until(partial(tocsin.log.read, f"progress.sleep.{sleeping.execution_id}.>"))
            assert isinstance(shown.message, StepProgress)
            assert (shown.message.fraction, shown.message.message) == (0.0, "sleeping for 600 s")
            request = subjects.cancel("sleep", sleeping.execution_id)
            await tocsin.log.publish(request, CancelRequest(), message_id="cancel")
            await tocsin.ended("sleep", Cancelled)
            node.terminate()  # it finishes what runs: nothing, because the function heard of the cancel
            async with asyncio.timeout(tocsin.patience):
                assert await node.wait() == 0
        finally:
            if node.returncode is None:
                node.kill()
                await node.wait()
