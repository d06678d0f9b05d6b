"""Messages without a stream of their own start executions, also those of a time without any stage."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

import pytest

from tests.services.health.test_status import program
from tests.system.running import Running, running
from tocsin import Context, Worker, bootstrap
from tocsin.adapters.nats.admin.provision_errors import SubjectsOverlap
from tocsin.adapters.nats.event_streams import NatsEventStreams
from tocsin.bootstrap import STAGE_NAMES
from tocsin.domain.events import Completed

OTHERS = [name for name in STAGE_NAMES if name != "event_listener"]
JOB = {"name": "read", "function": "echo", "overlap_policy": "allow"}


@asynccontextmanager
async def listening(tocsin: Running) -> AsyncIterator[NatsEventStreams]:
    """Run an event listener."""
    ready = asyncio.Event()
    listener = asyncio.create_task(bootstrap.run_stages(tocsin.installation, ["event_listener"], ready=ready))
    try:
        await ready.wait()
        yield NatsEventStreams(tocsin.installation.connection, tocsin.installation.names)
    finally:
        listener.cancel()
        await asyncio.gather(listener, return_exceptions=True)


@pytest.fixture
def root() -> str:
    return f"sensor{uuid4().hex[:8]}"


async def test_messages_wait_while_no_listener_runs(nats_url: str, tmp_path: Path, root: str) -> None:
    worker = Worker()

    @worker.task("echo")
    async def echo(context: Context) -> object:
        return dict(context.input)

    opened = {"subjects": [f"{root}.>"]}
    trigger = {"nats": f"{root}.*.read", "input": {"n": "body.n", "at": "subject"}}
    async with running(nats_url, tmp_path, stages=OTHERS, worker=worker, triggers=opened) as tocsin:
        stream = tocsin.installation.names.captured_stream
        await tocsin.apply({**JOB, "triggers": [trigger]})
        async with listening(tocsin) as streams:

            async def has_durable() -> bool:
                return bool(await streams.names(stream))

            await tocsin.until(has_durable)
        client = tocsin.installation.connection.client
        for number in range(50):
            await client.publish(f"{root}.{number}.read", json.dumps({"n": number}).encode())
        await client.publish(f"{root}.50.other", b"{}")
        await client.flush()
        async with listening(tocsin):
            ends = await tocsin.ended("read", Completed, 50)
        results = sorted((end.result for end in ends), key=lambda result: result["n"])  # type: ignore[index, call-overload, arg-type, return-value]
        assert results == [{"n": number, "at": f"{root}.{number}.read"} for number in range(50)]
        audited = await program(tocsin.settings, "audit", "-o", "json")
        assert audited.returncode == 0, audited.stdout


async def test_subject_of_another_stream_is_refused(nats_url: str, tmp_path: Path, root: str) -> None:
    async with running(nats_url, tmp_path, stages=[]) as tocsin:
        config = {"name": root.upper(), "subjects": [f"{root}.>"], "storage": "memory"}
        await tocsin.installation.connection.manage(f"STREAM.CREATE.{root.upper()}", json.dumps(config).encode())
        triggers = tocsin.settings.triggers.model_copy(update={"subjects": (f"{root}.new",)})
        settings = tocsin.settings.model_copy(update={"triggers": triggers})
        async with bootstrap.connect(settings) as installation:
            with pytest.raises(SubjectsOverlap) as caught:
                await bootstrap.initialize(installation)
        assert caught.value.other == root.upper()


async def test_republished_work_queue_is_heard(nats_url: str, tmp_path: Path, root: str) -> None:
    worker, queue = Worker(), root.upper()

    @worker.task("echo")
    async def echo(context: Context) -> object:
        return dict(context.input)

    opened = {"subjects": [f"heard.{root}.>"], "streams": {queue: [f"{root}.>"]}}
    async with running(nats_url, tmp_path, worker=worker, triggers=opened) as tocsin:
        manage, captured = tocsin.installation.connection.manage, tocsin.installation.names.captured_stream
        republish = {"src": f"{root}.>", "dest": f"heard.{root}.>"}
        config = {"name": queue, "subjects": [f"{root}.>"], "retention": "workqueue", "republish": republish}
        await manage(f"STREAM.CREATE.{queue}", json.dumps(config).encode())
        reader = {"stream_name": queue, "config": {"durable_name": "reader", "ack_policy": "explicit"}}
        await manage(f"CONSUMER.DURABLE.CREATE.{queue}.reader", json.dumps(reader).encode())

        file = tmp_path / "jobs.yaml"
        file.write_text(f"jobs: [{{name: a, function: f, triggers: [{{nats: {root}.new}}]}}]\n")
        applied = await program(tocsin.settings, "jobs", "apply", "-f", str(file), "--dry-run")
        assert f"the stream `{queue}` of `{root}.new` is a work queue" in applied.stderr

        await tocsin.apply({**JOB, "triggers": [{"nats": f"heard.{root}.*", "input": {"n": "body.n"}}]})
        streams = NatsEventStreams(tocsin.installation.connection, tocsin.installation.names)

        async def has_durable() -> bool:
            return bool(await streams.names(captured))

        await tocsin.until(has_durable)
        await tocsin.installation.connection.store(f"{root}.new", b'{"n": 1}', {})
        [end] = await tocsin.ended("read", Completed, 1)
        assert end.result == {"n": 1}
        waiting = await manage(f"CONSUMER.INFO.{queue}.reader")
        assert waiting["num_pending"] == 1
