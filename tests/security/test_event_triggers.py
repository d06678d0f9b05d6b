"""The event listener with exactly its own permissions: it reads the subjects that the settings open, and no others."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import pytest

from tests.security.installations import connected, installed
from tests.security.server import Server
from tests.system.running import Running, deciding
from tocsin import bootstrap, subjects
from tocsin.adapters.nats.event_streams import NatsEventStreams, NatsWebhookQueue
from tocsin.bootstrap import health_target
from tocsin.domain import ids
from tocsin.domain.events import Admitted, Completed, Queued, Skipped
from tocsin.ports import WEBHOOK_DELIVERY, WEBHOOK_PATH, EventDurable, LogUnavailable, NotAllowed
from tocsin.subjects import Bucket, Stream

STREAM = {"name": "SHOP", "subjects": ["shop.>"], "storage": "memory"}
FLAGS = {"name": "KV_flags", "subjects": ["$KV.flags.>"], "storage": "memory", "max_msgs_per_subject": 1}
JOB = {"function": "f", "overlap_policy": "allow"}


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("secured")
    with installed(folder) as running:
        asyncio.run(_create(running, folder))
        yield running


async def _create(at: Server, folder: Path) -> None:
    async with connected(at, folder, "shop") as shop:
        for stream in (STREAM, FLAGS):
            await shop.connection.manage(f"STREAM.CREATE.{stream['name']}", json.dumps(stream).encode())


async def test_events_start_executions_with_granted_rights_alone(secured: Server, tmp_path: Path) -> None:
    before = len(secured.log)
    async with AsyncExitStack() as stack:
        tasks, installations = [], {}
        for role in ("event-listener", "planner"):
            installations[role] = await stack.enter_async_context(connected(secured, tmp_path, role))
            ready, stage = asyncio.Event(), role.replace("-", "_")
            tasks.append(asyncio.create_task(bootstrap.run_stages(installations[role], [stage], ready=ready)))
            await ready.wait()
        tocsin = Running(await stack.enter_async_context(connected(secured, tmp_path, "operator")))
        shop = await stack.enter_async_context(connected(secured, tmp_path, "shop"))
        await tocsin.apply(
            {**JOB, "name": "invoice", "triggers": [{"nats": "shop.orders.*", "key": "body.id"}]},
            {**JOB, "name": "report", "triggers": [{"job": "invoice"}]},
            {**JOB, "name": "build", "triggers": [{"webhook": "/hooks/github", "input": {"ref": "body.ref"}}]},
            {**JOB, "name": "sync", "triggers": [{"kv": "flags/checkout.>"}]},
            {**JOB, "name": "thief", "triggers": [{"nats": "shop.salaries"}]},
        )
        streams = NatsEventStreams(installations["event-listener"].connection, tocsin.installation.names)
        api = await stack.enter_async_context(connected(secured, tmp_path, "api"))
        await NatsWebhookQueue(api.connection, api.names).store(
            ids.event_durable("build", ("webhook", "/hooks/github")),
            b'{"ref": "main"}',
            {WEBHOOK_PATH: "/hooks/github", WEBHOOK_DELIVERY: "d1"},
            message_id="m1",
        )
        [built] = await tocsin.ended("build", Admitted)
        assert built.plan.input == {"ref": "main"}
        for stream in ("SHOP", "KV_flags"):
            await tocsin.until(partial(streams.names, stream))
        projections = tocsin.installation.projections
        await tocsin.until(partial(projections.entries, Bucket.TRIGGERS, subjects.ends_key(">")))
        await shop.connection.store("shop.orders.new", b'{"id": 1}', {})
        await shop.connection.store("$KV.flags.checkout.a", b"1", {})
        await tocsin.ended("sync", Admitted)
        [admitted] = await tocsin.ended("invoice", Admitted)
        end = Completed(
            job="invoice",
            execution_id=admitted.execution_id,
            scheduled_time=admitted.scheduled_time,
            trigger="event",
        )
        async with connected(secured, tmp_path, "dag-advancer") as one, deciding(one) as advancer:
            await advancer.log.append(end, expect=await advancer.log.tail(subjects.scope_of(end)))
        await tocsin.ended("report", Admitted)
        for role in ("operator", "viewer", "api"):
            observer = await stack.enter_async_context(connected(secured, tmp_path, role))
            inspection = health_target(observer).inspection
            found = [await inspection.triggers(stream) for stream in ("SHOP", "KV_flags")]
            assert [len(names or ()) for names in found] == [1, 1]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    assert "Violation" not in secured.log[before:]


async def test_listener_reads_waiting_lists_with_granted_rights(secured: Server, tmp_path: Path) -> None:
    before = len(secured.log)
    turns = {"name": "turns", "function": "f", "overlap_policy": "enqueue", "max_waiting": 2}
    async with AsyncExitStack() as stack:
        tasks = []
        for role in ("event-listener", "planner", "lock-keeper"):
            installation = await stack.enter_async_context(connected(secured, tmp_path, role))
            ready, stage = asyncio.Event(), role.replace("-", "_")
            tasks.append(asyncio.create_task(bootstrap.run_stages(installation, [stage], ready=ready)))
            await ready.wait()
        tocsin = Running(await stack.enter_async_context(connected(secured, tmp_path, "operator")))
        shop = await stack.enter_async_context(connected(secured, tmp_path, "shop"))
        await tocsin.apply({**turns, "triggers": [{"nats": "shop.orders.turns"}]})
        listener = await stack.enter_async_context(connected(secured, tmp_path, "event-listener"))
        streams = NatsEventStreams(listener.connection, listener.names)
        durable = ids.event_durable("turns", ("nats", "shop.orders.turns", ""))

        async def is_heard() -> bool:
            return durable in await streams.names("SHOP")

        await tocsin.until(is_heard)
        for number in range(4):
            await shop.connection.store("shop.orders.turns", json.dumps(number).encode(), {})
        [first] = await tocsin.ended("turns", Admitted)
        await tocsin.stored("lock.turns.queued", Queued, 1)
        async with connected(secured, tmp_path, "dag-advancer") as one, deciding(one) as advancer:
            end = Completed(
                job="turns",
                execution_id=first.execution_id,
                scheduled_time=first.scheduled_time,
                trigger="event",
                fence=first.fence,
            )
            await advancer.log.append(end, expect=await advancer.log.tail(subjects.scope_of(end)))
        await tocsin.stored("lock.turns.queued", Queued, 2)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert await tocsin.of_executions("turns", Skipped) == []
    assert "Violation" not in secured.log[before:]


async def test_listener_reads_opened_keys_only(secured: Server, tmp_path: Path) -> None:
    async with connected(secured, tmp_path, "event-listener") as installation:
        streams = NatsEventStreams(installation.connection, installation.names)
        for subject in ("$KV.flags.>", "$KV.flags.other", f"$KV.{installation.names.root}_tokens.>"):
            with pytest.raises(NotAllowed):
                await streams.create(EventDurable("a", "KV_flags", (subject,)))


@pytest.mark.parametrize("subject", ["shop.salaries", "shop.>", ">"])
async def test_listener_may_not_read_what_is_not_opened(secured: Server, tmp_path: Path, subject: str) -> None:
    async with connected(secured, tmp_path, "event-listener") as installation:
        streams = NatsEventStreams(installation.connection, installation.names)
        with pytest.raises(NotAllowed):
            await streams.create(EventDurable("a", "SHOP", (subject,)))
        with pytest.raises(NotAllowed):
            await streams.create(EventDurable("a", "SHOP", ("shop.orders.new", subject)))
        with pytest.raises(LogUnavailable):
            await installation.connection.manage("STREAM.MSG.GET.SHOP", b'{"seq": 1}')


async def test_listener_may_not_acknowledge_for_other_stages(secured: Server, tmp_path: Path) -> None:
    async with connected(secured, tmp_path, "event-listener") as installation:
        log = installation.names.stream(Stream.LOG)
        with pytest.raises(NotAllowed):
            await installation.connection.request(f"$JS.ACK.{log}.lock-keeper-ends.1.1.1.1.0", b"+ACK")
        with pytest.raises(NotAllowed):
            await installation.connection.manage(f"CONSUMER.DELETE.{log}.lock-keeper-ends")


@pytest.mark.parametrize("role", ["event-listener", "planner", "operator", "viewer"])
async def test_only_the_api_stores_requests_to_webhooks(secured: Server, tmp_path: Path, role: str) -> None:
    async with connected(secured, tmp_path, role) as installation:
        queue = NatsWebhookQueue(installation.connection, installation.names)
        with pytest.raises(NotAllowed):
            await queue.store("a", b"{}", {}, message_id="m2")


async def test_api_may_not_read_requests_to_webhooks(secured: Server, tmp_path: Path) -> None:
    async with connected(secured, tmp_path, "api") as installation:
        stream = installation.names.webhook_stream
        for verb in (f"STREAM.MSG.GET.{stream}", f"CONSUMER.CREATE.{stream}.a.{installation.names.webhook('*')}"):
            with pytest.raises(LogUnavailable):
                await installation.connection.manage(verb, b'{"seq": 1}')
