"""Output of a handler while it runs, on a real server."""

import asyncio
from pathlib import Path

from pydantic import JsonValue

from tests.system.running import running
from tocsin import Context, Worker
from tocsin.domain.events import Completed, Started
from tocsin.services.operations.execution_output import ExecutionOutput, read_output
from tocsin.services.operations.lookup import find
from tocsin.subjects import Stream


async def test_output_of_running_step_is_seen(nats_url: str, tmp_path: Path) -> None:
    worker, go_on = Worker(), asyncio.Event()
    read: list[JsonValue] = []

    @worker.task("load")
    async def load(context: Context) -> None:
        read.append(context.last_heartbeat)
        context.logger.info("loading", rows=3)
        await context.progress(0.4, "loading")
        await context.heartbeat({"row": 1_200})
        if context.attempt == 1:
            await go_on.wait()
            raise ConnectionError("away")
        context.logger.info("loaded")

    async with running(nats_url, tmp_path, worker=worker) as tocsin:
        await tocsin.apply({"name": "etl", "function": "load", "retry": {"max_attempts": 2, "initial_delay": "10ms"}})
        await tocsin.trigger("etl")
        started = (await tocsin.ended("etl", Started))[0]

        async def output() -> ExecutionOutput | None:
            found = await read_output(tocsin.log, await find(tocsin.log, started.execution_id))
            return found if found.lines and found.progress else None

        seen = await tocsin.until(output)
        assert seen is not None
        assert not seen.is_over
        assert seen.lines[0].text == "loading rows=3"
        assert seen.progress["main"].fraction == 0.4
        go_on.set()
        await tocsin.ended("etl", Completed)

        async def whole() -> list[str]:
            found = await output()
            texts = [line.text for line in found.lines] if found else []
            return texts if "loaded" in texts else []

        assert await tocsin.until(whole) == ["loading rows=3", "loading rows=3", "loaded"]
        assert read == [None, {"row": 1_200}]


async def test_heartbeats_end_with_their_execution(nats_url: str, tmp_path: Path) -> None:
    worker, go_on = Worker(), asyncio.Event()

    @worker.task("load")
    async def load(context: Context) -> None:
        await context.heartbeat({"row": 1})
        await context.progress(0.5)
        if context.input:
            await go_on.wait()

    async with running(nats_url, tmp_path, worker=worker, archive={"interval": 0.2}) as tocsin:
        await tocsin.apply({"name": "etl", "function": "load", "overlap_policy": "allow"})
        await tocsin.trigger("etl", input={"waits": True})
        [waiting] = await tocsin.ended("etl", Started)

        async def kept() -> set[str]:
            return {recorded.subject.split(".")[2] for recorded in await tocsin.log.read("heartbeat.>")}

        await tocsin.until(kept)
        await tocsin.trigger("etl")
        [ended] = await tocsin.ended("etl", Completed)

        async def only_one() -> bool:
            progress = {recorded.subject.split(".")[2] for recorded in await tocsin.log.read("progress.>")}
            return ended.execution_id in progress and await kept() == {waiting.execution_id}

        await tocsin.until(only_one)
        go_on.set()
        await tocsin.ended("etl", Completed, 2)

        async def is_empty() -> bool:
            return not await kept()

        await tocsin.until(is_empty)


async def test_lines_outlive_their_stream_in_the_archive(nats_url: str, tmp_path: Path) -> None:
    worker = Worker()

    @worker.task("load")
    async def load(context: Context) -> None:
        context.logger.info("loading")
        context.logger.info("loaded")

    archive = {"hot_window": 1, "interval": 0.2, "output": True}
    async with running(nats_url, tmp_path, worker=worker, archive=archive) as tocsin:
        await tocsin.apply({"name": "etl", "function": "load"})
        await tocsin.trigger("etl")
        [ended] = await tocsin.ended("etl", Completed)

        async def is_archived() -> bool:
            return len(await tocsin.installation.commits.archive.lines(ended.execution_id)) > 1

        await tocsin.until(is_archived)
        await tocsin.installation.connection.manage(f"STREAM.PURGE.{tocsin.installation.names.stream(Stream.OUTPUT)}")
        stored = tocsin.installation.stored
        match = await find(tocsin.log, ended.execution_id)
        found = await read_output(tocsin.log, match, stored=stored)
        assert [line.text for line in found.lines] == ["loading", "loaded"]
        assert (await read_output(tocsin.log, match)).lines == ()
