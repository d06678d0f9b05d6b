"""Requests of programs outside: they have a stream of their own, no identity, and cannot fill that of the API."""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import JsonValue

from tests.security.installations import connected, installed
from tests.security.server import Server
from tests.system.running import DEADLINE, Running
from tocsin import bootstrap, subjects
from tocsin.bootstrap import STAGE_NAMES
from tocsin.domain.events import CancelRequest, Requested, Trigger, unfold
from tocsin.subjects import DecodeError, Stream

ADMIN: JsonValue = {"identity": "admin", "role": "admin"}


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[Server]:
    with installed(tmp_path / "server") as running:
        yield running


async def ask(at: Server, folder: Path, subject: str, body: JsonValue, message_id: str) -> dict[str, JsonValue]:
    """Publish as a program outside, and return the server's reply."""
    async with connected(at, folder, "public") as outside:
        client = outside.connection.client
        headers = {"Nats-Msg-Id": message_id}
        reply = await client.request(subject, json.dumps(body).encode(), timeout=DEADLINE, headers=headers)
        answer: dict[str, JsonValue] = json.loads(reply.data)
        return answer


async def test_request_from_outside_has_no_identity(secured: Server, tmp_path: Path) -> None:
    async with connected(secured, tmp_path, "operator") as it, connected(secured, tmp_path, "scheduler") as scheduler:
        await Running(it).apply({"name": "j", "function": "f"})
        stages = asyncio.create_task(bootstrap.run_stages(scheduler, STAGE_NAMES))
        try:
            answer = await ask(secured, tmp_path, "cron.trigger.j", {"by": ADMIN, "reason": "mine"}, "one")
            assert answer["stream"] == "TOCSIN_INPUTS"
            async with asyncio.timeout(DEADLINE):
                while not (begun := await requested(Running(it))):  # noqa: ASYNC110 - the log announces nothing
                    await asyncio.sleep(0.02)
            assert begun[0].by is None
        finally:
            stages.cancel()
            await asyncio.gather(stages, return_exceptions=True)


async def requested(tocsin: Running) -> list[Requested]:
    recorded = unfold(await tocsin.installation.log.read("execution.j.>"))
    return [one.message for one in recorded if isinstance(one.message, Requested)]


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
        assert await it.log.publish(subjects.trigger("j"), Trigger(), message_id="m0") == 1
        assert await it.log.publish(subjects.cancel("j", "0198"), CancelRequest(), message_id="cancel") == 2
        assert await it.log.end(Stream.LEDGER) > 0


def test_claims_of_outsiders_are_not_believed() -> None:
    by = b'{"by": {"identity": "admin"}}'
    assert subjects.decode("trigger.j", by).model_dump()["by"] is not None
    assert subjects.decode("public.trigger.j", by) == Trigger()
    assert subjects.decode("public.cancel.j.0198", by) == CancelRequest()
    with pytest.raises(DecodeError, match="backfill"):
        subjects.decode("public.trigger.j", b'{"backfill": "b", "scheduled_time": "2026-01-01T00:00:00Z"}')
