"""`doctor` and `status` on the log of commits, on a real server."""

import asyncio
import io
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from tests.conformance.worlds import nats_world
from tests.system.running import Running, running
from tocsin import Context, Worker, bootstrap, subjects
from tocsin.adapters.nats.log import follow
from tocsin.cli.installation.status import shown
from tocsin.domain.commit import FORMAT
from tocsin.domain.events import Completed, Trigger
from tocsin.engine.presence import Present, StreamPlace, processes
from tocsin.services import health
from tocsin.services.health import Finding
from tocsin.services.health import status as look
from tocsin.services.health.status import as_json
from tocsin.subjects import Bucket, Stream, process_key


@asynccontextmanager
async def at_work(url: str, folder: Path) -> AsyncIterator[Running]:
    worker = Worker()

    @worker.task("f")
    async def f(_: Context) -> None: ...

    async with running(url, folder, worker=worker) as tocsin:
        yield tocsin


async def found(tocsin: Running, *codes: str) -> list[Finding]:
    """The findings with these codes that are not well."""
    target = bootstrap.health_target(tocsin.installation)
    return [one for one in await health.examine(target) if one.code in codes and one.level != "ok"]


def reports(tocsin: Running, code: str) -> Callable[[], Awaitable[list[Finding]]]:
    return lambda: found(tocsin, code)


async def show(tocsin: Running, **fields: Any) -> None:  # noqa: ANN401 - of the entry
    """Have another process shown."""
    present = Present("other-1", (FORMAT,), tocsin.installation.clock.now(), **fields)
    await tocsin.installation.projections.put(Bucket.LEADER, process_key("other-1"), msgspec.json.encode(present))


async def test_healthy_installation_shows_the_position_of_each_process(nats_url: str, tmp_path: Path) -> None:
    async with at_work(nats_url, tmp_path) as tocsin:
        await tocsin.apply({"name": "j", "function": "f"})
        number = await tocsin.log.tail("ledger.j.>")
        projections = tocsin.installation.projections

        async def is_shown() -> list[Present]:
            return [one for one in await processes(projections) if "planner" in one.led and one.floor >= number]

        [present] = await tocsin.until(is_shown)
        assert set(present.led) == set(present.stages) >= {"planner", "ticker", "dag_advancer"}
        assert (present.formats, present.unanswered, present.lost) == ((FORMAT,), None, {})
        codes = "stage-absent", "stage-late", "reader-lost", "commit-unanswered", "format-held-up", "stream-drift"
        assert await found(tocsin, *codes, "stream-missing", "durable-missing") == []
        seen = await look(bootstrap.health_target(tocsin.installation))
        stream = seen.streams[tocsin.installation.names.commits_stream]
        assert stream is not None
        assert stream.messages > 0
        page = Console(width=400, record=True, file=io.StringIO())
        for part in shown(seen):
            page.print(part)
        [row] = [line for line in page.export_text().splitlines() if line.lstrip(" │").startswith(present.name)]
        assert "REQUESTS" in row
        answer = json.loads(json.dumps(as_json(seen), default=str))
        assert [one["name"] for one in answer["processes"]] == [present.name]


async def test_what_holds_a_process_up_is_named(nats_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tocsin.services.health.checks.processes.LATE_AFTER", timedelta(0))
    async with at_work(nats_url, tmp_path) as tocsin:
        await tocsin.apply({"name": "j", "function": "f"})
        await tocsin.trigger("j")
        await show(
            tocsin,
            led=("lock_keeper",),
            streams={"REQUESTS": StreamPlace(("trigger.>", "trigger.*"), 0)},
            unanswered=("no space left on device", 61.0),
            lost={"REPORTS": 7.0},
        )
        [unanswered] = await found(tocsin, "commit-unanswered")
        assert "other-1 (lock-keeper)" in unanswered.what
        assert "no space left on device" in unanswered.what
        [lost] = await found(tocsin, "reader-lost")
        assert "REPORTS for 7 s" in lost.what
        assert {one.details["stream"] for one in await found(tocsin, "stage-late")} == {"REQUESTS", "COMMITS"}
        problems = as_json(await look(bootstrap.health_target(tocsin.installation)))["problems"]
        assert sum("other-1" in problem for problem in problems) == 2
        monkeypatch.setattr("tocsin.services.health.checks.processes.FORMAT", FORMAT + 1)
        [held] = await found(tocsin, "format-held-up")
        assert "other-1" in held.what


async def test_stages_that_no_process_leads_are_named(nats_url: str, tmp_path: Path) -> None:
    async with at_work(nats_url, tmp_path) as tocsin:

        async def are_led() -> bool:
            return not await found(tocsin, "stage-absent")

        await tocsin.until(are_led)
    async with bootstrap.connect(tocsin.settings) as installation:
        target = bootstrap.health_target(installation)
        absent = [one.details["stage"] for one in await health.examine(target) if one.code == "stage-absent"]
        assert "planner" in absent


async def test_full_commit_stream_is_named_and_loses_nothing(nats_url: str, tmp_path: Path) -> None:
    async with at_work(nats_url, tmp_path) as tocsin:
        await tocsin.apply({"name": "j", "function": "f", "overlap_policy": "allow"})
        await tocsin.trigger("j")
        await tocsin.ended("j", Completed)
        connection, stream = tocsin.installation.connection, tocsin.installation.names.commits_stream
        info = await connection.manage(f"STREAM.INFO.{stream}")

        async def limit(size: int) -> None:
            config = {**info["config"], "max_bytes": size}
            await connection.manage(f"STREAM.UPDATE.{stream}", json.dumps(config).encode())

        await limit(info["state"]["bytes"])
        await tocsin.trigger("j")
        [unanswered] = await tocsin.until(reports(tocsin, "commit-unanswered"))
        assert "maximum bytes exceeded" in unanswered.what
        await limit(-1)
        await tocsin.ended("j", Completed, 2)

        async def is_well() -> bool:
            return not await found(tocsin, "commit-unanswered", "stage-absent")

        await tocsin.until(is_well)


async def test_reader_reports_its_consumer_lost_and_made_again(nats_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "HEARTBEAT_INTERVAL_S", 0.3)
    states, received = list[bool](), asyncio.Queue[int]()
    async with nats_world(nats_url) as world:
        stream, connection = world.names.stream(Stream.REQUESTS), world.connection

        async def read() -> None:
            follow.READER.set(states.append)
            async for batch in world.log.follow(Stream.REQUESTS, "trigger.>", after=0):
                for recorded in batch.messages:
                    await received.put(recorded.sequence)

        async def publish(number: int) -> int:
            await world.log.publish(subjects.trigger("j"), Trigger(), message_id=f"t{number}")
            async with asyncio.timeout(30):
                return await received.get()

        task = asyncio.create_task(read())
        assert await publish(1) == 1
        assert states == [True]
        [name] = (await connection.manage(f"CONSUMER.NAMES.{stream}"))["consumers"]
        await connection.manage(f"CONSUMER.DELETE.{stream}.{name}")
        assert await publish(2) == 2
        assert states[:3] == [True, False, True]
        task.cancel()
