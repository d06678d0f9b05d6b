"""Changes in buckets start executions: entries of a KV bucket, and objects."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
from nats.js import JetStreamContext
from nats.js.api import KeyValueConfig, ObjectStoreConfig, StorageType

from tests.services.health.test_status import program
from tests.system.running import Running, running
from tocsin import Context, Worker
from tocsin.bootstrap.api_server import serving
from tocsin.domain.events import Completed

JOB: dict[str, Any] = {"function": "echo", "overlap_policy": "allow"}


@asynccontextmanager
async def listening(
    nats_url: str, folder: Path, bucket: str, stream: str, *triggers: dict[str, Any]
) -> AsyncIterator[tuple[Running, JetStreamContext]]:
    """A job with triggers on a bucket that exists, and their durables."""
    worker = Worker()

    @worker.task("echo")
    async def echo(context: Context) -> object:
        return dict(context.input)

    opened = {"kv": {bucket: ["checkout.>"]}, "objects": [bucket]}
    queues = {"default": {"transport": "matched"}}
    async with running(nats_url, folder, worker=worker, queues=queues, triggers=opened) as tocsin:
        context = tocsin.installation.connection.client.jetstream()
        memory = StorageType.MEMORY
        await context.create_key_value(KeyValueConfig(bucket=bucket, history=8, storage=memory))
        await context.create_object_store(bucket, config=ObjectStoreConfig(storage=memory))
        await tocsin.apply({**JOB, "name": "sync", "triggers": [*triggers]})

        async def is_heard() -> bool:
            page = await tocsin.installation.connection.manage(f"CONSUMER.NAMES.{stream}")
            return len(page["consumers"] or []) == len(triggers)

        await tocsin.until(is_heard)
        yield tocsin, context


async def is_drained(tocsin: Running, stream: str) -> bool:
    page = await tocsin.installation.connection.manage(f"CONSUMER.LIST.{stream}")
    return all(each["num_pending"] == each["num_ack_pending"] == 0 for each in page["consumers"])


async def test_changed_entries_start_executions(nats_url: str, tmp_path: Path) -> None:
    bucket = f"flags{uuid4().hex[:8]}"
    trigger = {
        "kv": f"{bucket}/checkout.>",
        "when": 'operation == "delete" || body != "off"',
        "input": {"key": "key", "revision": "revision", "operation": "operation", "value": "body"},
    }
    async with listening(nats_url, tmp_path, bucket, f"KV_{bucket}", trigger) as (tocsin, context):
        entries = await context.key_value(bucket)
        await entries.put("other.a", b"1")
        first = await entries.put("checkout.new", b'{"on": true}')
        await entries.put("checkout.new", b"off")
        await entries.delete("checkout.new")
        await tocsin.until(partial(is_drained, tocsin, f"KV_{bucket}"))
        ends = await tocsin.ended("sync", Completed, 2)
        assert [end.result for end in ends] == [
            {"key": "checkout.new", "revision": first, "operation": "put", "value": {"on": True}},
            {"key": "checkout.new", "revision": first + 2, "operation": "delete", "value": None},
        ]
        audited = await program(tocsin.settings, "audit", "-o", "json")
        assert audited.returncode == 0, audited.stdout


async def test_finished_uploads_start_executions(nats_url: str, tmp_path: Path) -> None:
    bucket = f"up{uuid4().hex[:8]}"
    trigger = {"object": f"{bucket}/in/", "input": {"name": "object.name", "size": "object.size", "is": "operation"}}
    async with listening(nats_url, tmp_path, bucket, f"OBJ_{bucket}", trigger) as (tocsin, context):
        objects = await context.object_store(bucket)
        await objects.put("out/a.csv", b"1")
        await objects.put("in/a.csv", b"x" * 300_000)
        await tocsin.ended("sync", Completed)
        await objects.delete("in/a.csv")
        await tocsin.until(partial(is_drained, tocsin, f"OBJ_{bucket}"))
        ends = await tocsin.ended("sync", Completed, 2)
        assert [end.result for end in ends] == [
            {"name": "in/a.csv", "size": 300_000, "is": "put"},
            {"name": "in/a.csv", "size": 0, "is": "delete"},
        ]


async def test_closed_bucket_is_not_heard(nats_url: str, tmp_path: Path) -> None:
    bucket = f"flags{uuid4().hex[:8]}"
    async with listening(nats_url, tmp_path, bucket, f"KV_{bucket}", {"kv": f"{bucket}/checkout.a"}) as (tocsin, _):
        file = tmp_path / "jobs.yaml"
        file.write_text(f"jobs:\n  - {{name: a, function: f, triggers: [{{kv: {bucket}/>}}, {{object: other}}]}}\n")
        applied = await program(tocsin.settings, "jobs", "apply", "-f", str(file))
        assert applied.returncode == 0
        assert f"`{bucket}/>`" in applied.stderr
        assert "`triggers.objects`" in applied.stderr
        page = await tocsin.installation.connection.manage(f"CONSUMER.NAMES.KV_{bucket}")
        assert len(page["consumers"]) == 1


async def test_deleted_bucket_is_named_by_apply(nats_url: str, tmp_path: Path) -> None:
    bucket = f"flags{uuid4().hex[:8]}"
    async with listening(nats_url, tmp_path, bucket, f"KV_{bucket}", {"kv": f"{bucket}/checkout.a"}) as (
        tocsin,
        context,
    ):
        file = tmp_path / "jobs.yaml"
        file.write_text(
            f"jobs:\n  - {{name: a, function: f, triggers: [{{kv: {bucket}/checkout.b}}, {{object: {bucket}/}}]}}\n"
        )
        applied = await program(tocsin.settings, "jobs", "apply", "-f", str(file), "--dry-run")
        assert "does not exist" not in applied.stderr
        await context.delete_object_store(bucket)
        for arguments in (("--dry-run",), ()):
            applied = await program(tocsin.settings, "jobs", "apply", "-f", str(file), *arguments)
            assert applied.returncode == 0
            assert applied.stderr.count("does not exist") == 1
            assert f"the bucket `{bucket}` of `{bucket}/` does not exist (job a)" in applied.stderr
        async with (
            serving(tocsin.installation, any_port=("server.port", "metrics.port")) as url,
            httpx.AsyncClient(base_url=url) as client,
        ):
            answer = (await client.get("/v1/definition-settings")).json()
            assert answer["absent"] == [f"OBJ_{bucket}"]


async def test_entry_that_changes_often_starts_one_execution(nats_url: str, tmp_path: Path) -> None:
    bucket = f"flags{uuid4().hex[:8]}"
    trigger = {"kv": f"{bucket}/checkout.>", "key": "key", "input": {"n": "body.n"}, "debounce": "5s"}
    async with listening(nats_url, tmp_path, bucket, f"KV_{bucket}", trigger) as (tocsin, context):
        entries = await context.key_value(bucket)
        for n in range(20):
            await entries.put("checkout.new", b'{"n": %d}' % n)
        await entries.put("checkout.old", b'{"n": 50}')
        ends = await tocsin.ended("sync", Completed, 2)
        results: list[Any] = [end.result for end in ends]
        assert sorted(result["n"] for result in results) == [19, 50]


async def test_changed_entries_start_batches(nats_url: str, tmp_path: Path) -> None:
    bucket = f"flags{uuid4().hex[:8]}"
    trigger = {"kv": f"{bucket}/checkout.>", "input": {"n": "body.n"}, "batch": {"max": 4, "within": "5s"}}
    async with listening(nats_url, tmp_path, bucket, f"KV_{bucket}", trigger) as (tocsin, context):
        entries = await context.key_value(bucket)
        for n in range(8):
            await entries.put("checkout.new", b'{"n": %d}' % n)
        ends = await tocsin.ended("sync", Completed, 2)
        results: list[Any] = [end.result for end in ends]
        assert sorted(event["n"] for result in results for event in result["events"]) == [*range(8)]
