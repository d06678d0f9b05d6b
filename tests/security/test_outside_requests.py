"""Requests of programs outside: they have a stream of their own, no identity, and cannot fill that of the API."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import JsonValue

from tests.security.installations import connected, installed
from tests.security.server import Server
from tests.system.running import DEADLINE, Running
from tocsin import bootstrap, subjects
from tocsin.bootstrap import STAGE_NAMES
from tocsin.domain.events import Actor, Admitted, CancelRequest, CronAnswer, Envelope, Requested, Trigger
from tocsin.subjects import DecodeError, Stream

PUBLIC = Actor(identity="public", kind="program", source="nats")
ADMIN: JsonValue = {"identity": "admin", "role": "admin"}


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[Server]:
    with installed(tmp_path / "server") as running:
        yield running


@asynccontextmanager
async def deciding(at: Server, folder: Path) -> AsyncIterator[None]:
    """Run all stages within the block."""
    async with connected(at, folder, "scheduler") as scheduler:
        stages = asyncio.create_task(bootstrap.run_stages(scheduler, STAGE_NAMES))
        try:
            yield
        finally:
            stages.cancel()
            await asyncio.gather(stages, return_exceptions=True)


async def ask(at: Server, folder: Path, subject: str, body: JsonValue, message_id: str) -> dict[str, JsonValue]:
    """Publish as a program outside, and return the server's reply."""
    async with connected(at, folder, "public") as outside:
        client = outside.connection.client
        headers = {"Nats-Msg-Id": message_id}
        reply = await client.request(subject, json.dumps(body).encode(), timeout=DEADLINE, headers=headers)
        answer: dict[str, JsonValue] = json.loads(reply.data)
        return answer


async def test_request_has_the_identity_of_its_account(secured: Server, tmp_path: Path) -> None:
    async with connected(secured, tmp_path, "operator") as it, deciding(secured, tmp_path):
        await Running(it).apply({"name": "j", "function": "f"})
        body: JsonValue = {"by": ADMIN, "reason": "mine", "trigger": "replay"}
        answer = await ask(secured, tmp_path, "cron.trigger.j", body, "one")
        assert answer["stream"] == "TOCSIN_INPUTS"
        [begun] = await requested(Running(it), 1)
        assert (begun.by, begun.trigger) == (PUBLIC, "event")


async def requested(tocsin: Running, number: int) -> list[Requested]:
    """Wait until so many executions of the job are requested."""
    return await tocsin.ended("j", Requested, number)


async def test_keys_of_outsiders_and_operators_never_meet(secured: Server, tmp_path: Path) -> None:
    async with connected(secured, tmp_path, "operator") as it:
        await Running(it).apply({"name": "j", "function": "f"})
        body: JsonValue = {"idempotency_key": "order-17", "input": {"from": "outside"}}
        await ask(secured, tmp_path, "cron.trigger.j", body, "one")
        await ask(secured, tmp_path, "cron.trigger.j", body, "two")
        await Running(it).trigger("j", idempotency_key="order-17")
        async with deciding(secured, tmp_path):
            begun = await requested(Running(it), 2)
        assert [one.plan.input for one in begun].count({}) == 1
        assert len({one.execution_id for one in begun}) == 2


async def test_numeric_message_id_swallows_no_trigger(secured: Server, tmp_path: Path) -> None:
    """Each trigger without an id is followed, within the millisecond, by one whose id is its sequence."""
    number = 200
    async with connected(secured, tmp_path, "operator") as it, connected(secured, tmp_path, "public") as outside:
        await Running(it).apply({"name": "j", "function": "f"})
        client = outside.connection.client
        for sequence in range(1, 2 * number, 2):
            await client.publish("cron.trigger.j", b"{}")
            await client.publish("cron.trigger.j", b"{}", headers={"Nats-Msg-Id": str(sequence)})
        await client.flush()
        triggers = await Running(it).stored("outside.public.trigger.j", Trigger, 2 * number)
        moments = [trigger.time.replace(microsecond=trigger.time.microsecond // 1000) for trigger in triggers]
        assert len(set(moments)) < number, "no two triggers were stored in the same millisecond"
        async with deciding(secured, tmp_path):
            assert len(await requested(Running(it), 2 * number)) == 2 * number


async def test_outsider_does_not_answer_for_the_api(secured: Server, tmp_path: Path) -> None:
    async with connected(secured, tmp_path, "operator") as it, deciding(secured, tmp_path):
        await Running(it).apply({"name": "j", "function": "f", "overlap_policy": "enqueue"})
        await Running(it).trigger("j")
        await Running(it).ended("j", Admitted)  # it holds the lock
        await ask(secured, tmp_path, "cron.trigger.j", {}, "order-17")
        await it.log.publish(subjects.trigger("j"), Trigger(), message_id="order-17")
        answers = await Running(it).stored("cron.answer.>", CronAnswer, 2)
        assert len({answer.message.data.job_id for answer in answers}) == 2
        assert {answer.message.data.trigger_id for answer in answers} == {"public.order-17", "api.order-17"}


async def test_full_stream_stops_only_programs_outside(secured: Server, tmp_path: Path) -> None:
    async with connected(secured, tmp_path, "admin") as installation:
        archive = installation.settings.archive.model_copy(update={"max_input_bytes": 1_048_576})
        small = installation.settings.model_copy(update={"archive": archive})
        await bootstrap.initialize(replace(installation, settings=small))
    large: JsonValue = {"input": {"text": "x" * 200_000}}
    answers = [await ask(secured, tmp_path, "cron.trigger.j", large, f"m{number}") for number in range(12)]
    assert "error" in answers[-1], answers
    assert "error" in await ask(secured, tmp_path, "cron.cancel.j.0198", {"reason": "x" * 200_000}, "cancel")
    async with connected(secured, tmp_path, "operator") as it:
        await Running(it).apply({"name": "j", "function": "f"})
        first = await it.log.publish(subjects.trigger("j"), Trigger(), message_id="m0")  # after the job's definition
        assert await it.log.publish(subjects.cancel("j", "0198"), CancelRequest(), message_id="cancel") == first + 1
        assert await it.log.end(Stream.LEDGER) > 0


async def test_executor_cannot_fill_the_disk(secured: Server, tmp_path: Path) -> None:
    """The bridge works off completions, and a flood may be faster; then the server refuses them."""
    async with connected(secured, tmp_path, "admin") as installation:
        archive = installation.settings.archive.model_copy(update={"max_input_bytes": 1_048_576})
        small = installation.settings.model_copy(update={"archive": archive})
        await bootstrap.initialize(replace(installation, settings=small))
    async with connected(secured, tmp_path, "mq-executor") as outside:
        client = outside.connection.client
        completions = (f"mq.scheduler.complete.j.{number}" for number in range(6))
        replies = [await client.request(subject, b"x" * 200_000, timeout=DEADLINE) for subject in completions]
        assert "error" in json.loads(replies[-1].data)
    async with connected(secured, tmp_path, "operator") as it, deciding(secured, tmp_path):
        await Running(it).apply({"name": "j", "function": "f", "queue": "outside"})
        await Running(it).trigger("j")
        await Running(it).stored("mq.scheduled.>", Envelope, 1)  # the bridge has made room


async def test_number_of_requests_from_outside_is_limited(secured: Server, tmp_path: Path) -> None:
    async with connected(secured, tmp_path, "admin") as installation:
        archive = installation.settings.archive.model_copy(update={"max_outside_messages": 3})
        small = installation.settings.model_copy(update={"archive": archive})
        await bootstrap.initialize(replace(installation, settings=small))
    answers = [await ask(secured, tmp_path, "cron.trigger.j", {}, f"m{number}") for number in range(4)]
    assert ["error" in answer for answer in answers] == [False, False, False, True], answers
    async with connected(secured, tmp_path, "operator") as it:
        for number in range(4):
            assert await it.log.publish(subjects.trigger("j"), Trigger(), message_id=f"m{number}") == number + 1


def test_claims_of_outsiders_are_not_believed() -> None:
    by = b'{"by": {"identity": "admin"}}'
    assert subjects.decode("trigger.j", by).document()["by"] is not None
    assert subjects.decode("public.trigger.j", by) == Trigger()
    assert subjects.decode("public.cancel.j.0198", by) == CancelRequest()
    assert subjects.decode("outside.public.trigger.j", by) == Trigger(by=PUBLIC)
    assert subjects.decode("outside.public.cancel.j.0198", by) == CancelRequest(by=PUBLIC)
    event = b'{"event_trigger": {"source": ["nats", "orders.>", "", "event"], "subject": "orders.new"}}'
    assert subjects.decode("trigger.j", event) != Trigger()
    assert subjects.decode("public.trigger.j", event) == Trigger()
    with pytest.raises(DecodeError, match="backfill"):
        subjects.decode("public.trigger.j", b'{"backfill": "b", "scheduled_time": "2026-01-01T00:00:00Z"}')
