"""The state of jobs and the counters of their runs, over each transport and in an application."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from tests.client.conftest import Site, in_thread
from tests.system.running import DEADLINE
from tocsin import Client, NonRetryableError, Tocsin
from tocsin.client import CountersUnknown, JobSnapshot, RunFailed
from tocsin.domain.ledger import JobNotFound
from tocsin.ports import HistoryNotFound

POLL_S = 0.01


async def recorded(read: Callable[[], Awaitable[JobSnapshot]], ended: int, *, running: bool = False) -> JobSnapshot:
    """Return a snapshot once the history has its events."""
    async with asyncio.timeout(DEADLINE):
        while True:
            with suppress(HistoryNotFound):  # nothing is recorded yet
                snapshot = await read()
                if snapshot.run_count >= ended and snapshot.is_running == running:
                    return snapshot
            await asyncio.sleep(POLL_S)


async def test_snapshot_follows_runs(client: Client, site: Site) -> None:
    async def fail() -> JobSnapshot:
        return await client.get_status("fail")

    async def hold() -> JobSnapshot:
        return await client.get_status("hold")

    before = await fail()
    assert (before.run_count, before.last_run, before.last_result, before.next_run) == (0, None, None, None)
    run = await client.trigger("fail")
    with pytest.raises(RunFailed):
        await run.result(DEADLINE)
    failed = await recorded(fail, 1)
    assert (failed.name, failed.run_count, failed.error_count, failed.skip_count) == ("fail", 1, 1, 0)
    assert failed.last_result is not None
    assert (failed.last_result.execution_id, failed.last_result.status) == (run.execution_id, "failed")
    assert failed.last_result.error is not None
    assert failed.last_result.error.endswith("no disk")
    assert failed.last_duration_ms is not None
    held = await client.trigger("hold")
    await recorded(hold, 0, running=True)
    assert await client.is_running("hold")
    await client.trigger("hold")  # skipped: the first holds the lock
    skipped = await recorded(hold, 1, running=True)
    assert (skipped.skip_count, skipped.error_count) == (1, 0)
    site.functions.released.set()
    await held.result(DEADLINE)
    ended = await recorded(hold, 2)
    assert ended.last_result is not None
    assert (ended.last_result.status, ended.last_result.result) == ("completed", "released")
    assert not await client.is_running("hold")


async def test_all_snapshots_are_read_at_once(client: Client) -> None:
    await (await client.trigger("echo", {"n": 1})).result(DEADLINE)
    one = await recorded(lambda: client.get_status("echo"), 1)
    await client.pause("graph")
    every = {snapshot.name: snapshot for snapshot in await client.get_all_status()}
    assert len(every) == await client.job_count() == 7
    assert one.last_result is not None
    assert one.last_result.result == {"n": 1}
    assert every["echo"] == replace(one, last_result=replace(one.last_result, result=None))
    assert (every["graph"].state, every["graph"].is_paused, every["echo"].is_paused) == ("paused", True, False)


async def test_unknown_job_has_no_snapshot(client: Client) -> None:
    for call in (client.get_status, client.is_running):
        with pytest.raises(JobNotFound):
            await call("nightly")


async def test_counters_of_an_emptied_history_are_unknown(client: Client, site: Site) -> None:
    await (await client.trigger("echo")).result(DEADLINE)
    await recorded(lambda: client.get_status("echo"), 1)
    async with site.running.installation.history() as history:

        async def emptied() -> str | None:
            """Return the code of the error, unless the recorder was faster."""
            await history.forget()
            try:
                await client.get_status("echo")
            except CountersUnknown as error:
                return error.code
            return None

        async with asyncio.timeout(DEADLINE):
            while (code := await emptied()) is None:
                pass
    assert code == "counters-unknown"


async def test_blocking_client_has_the_same_calls(site: Site, transport: str) -> None:
    def use() -> None:
        with site.blocking(transport) as client:
            assert client.job_count() == len(client.get_all_status()) == 7
            assert client.get_status("echo").state == "on demand"
            assert not client.is_running("echo")

    await in_thread(use)


@pytest.mark.parametrize("kind", ["memory", "embedded"])
async def test_application_in_process_has_counters(kind: str, tmp_path: Path) -> None:
    app = Tocsin.in_memory("shop") if kind == "memory" else Tocsin.embedded("shop", data_dir=tmp_path)

    @app.job(schedule="every day at 2am")
    async def nightly(limit: int = 3) -> int:
        if not limit:
            raise NonRetryableError("nothing to do")
        return limit

    async with app.running():
        await (await app.trigger(nightly)).result(DEADLINE)
        first = await recorded(lambda: app.get_status(nightly), 1)
        with pytest.raises(RunFailed):
            await (await app.trigger(nightly, limit=0)).result(DEADLINE)
        second = await recorded(lambda: app.get_status("nightly"), 2)
        assert (first.last_result and first.last_result.result, first.error_count, second.error_count) == (3, 0, 1)
        assert second.next_run == first.next_run is not None
        assert await app.job_count() == len(await app.get_all_status()) == 1
        assert not await app.is_running(nightly)
