"""Public events on NATS, as a program in another language reads them by the AsyncAPI document."""

import asyncio
import json
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import nats
import pytest

from tests.system.running import running
from tocsin.adapters.nats.server.embedded import ANY_PORT, EmbeddedServer
from tocsin.domain.events import CronTriggered

ATTRIBUTES = ("specversion", "id", "source", "type", "subject", "time", "datacontenttype")
FOREIGN: tuple[tuple[dict[str, str] | None, bytes], ...] = (
    (None, b"no event"),
    ({"other": "1"}, b"{}"),
    ({f"ce-{name}": "%zz" for name in ATTRIBUTES}, b"{}"),
    ({f"ce-{name}": "1" for name in ATTRIBUTES}, b"no JSON"),
)
"""Messages of other programs, which are no CloudEvents."""
EXAMPLE = Path(__file__).parents[2] / "examples/cloud_events.mjs"


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node.js")
async def test_program_prints_what_fires_as_cloud_events(tmp_path: Path) -> None:
    with EmbeddedServer(port=ANY_PORT).start() as server:  # its own, because the document has the usual names
        await check_program(server.url, tmp_path)


async def check_program(url: str, folder: Path) -> None:
    prefixes = {"public_prefix": "cron", "trigger_prefix": "cron.trigger", "mq_prefix": "mq"}
    names: dict[str, Any] = {"root": "tocsin", **prefixes}
    async with listening(url, "cron.triggered") as fired, listening(url, "cron.answer") as answers:
        client = await nats.connect(url)
        for headers, body in FOREIGN:
            await client.publish("cron.triggered.each-second", body, headers=headers)
        await client.close()
        for _ in FOREIGN:
            assert b'skipped a message on "cron.triggered.each-second"' in await lines_of(fired.stderr).readline()
        async with running(url, folder, **names) as tocsin:
            await tocsin.apply({"name": "each-second", "schedule": "* * * * * *", "function": "f"})
            [stored] = await tocsin.stored("cron.triggered.each-second", CronTriggered, 1)
            await tocsin.trigger("each-second")  # its lock is held, because no worker runs
            async with asyncio.timeout(tocsin.patience):
                event, answer = [json.loads(await lines_of(each.stdout).readline()) for each in (fired, answers)]
    assert event["data"] == json.loads(stored.message.encode())
    assert (event["specversion"], event["source"]) == ("1.0", "/tocsin")
    assert (event["type"], event["subject"]) == ("org.openjobspec.cron.triggered", stored.message.data.job_id)
    assert answer["data"]["data"]["trigger_id"].startswith("api.")


@asynccontextmanager
async def listening(url: str, events: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run the example for a kind of events, and yield it once it listens."""
    program = await asyncio.create_subprocess_exec(
        *("node", str(EXAMPLE), events),
        env={**os.environ, "NATS_URL": url},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        assert f"listening to {events}" in (await lines_of(program.stderr).readline()).decode()
        yield program
    finally:
        program.kill()
        await program.wait()


def lines_of(stream: asyncio.StreamReader | None) -> asyncio.StreamReader:
    assert stream is not None
    return stream
