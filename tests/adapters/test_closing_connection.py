"""A connection whose task is cancelled again while it closes, or whose event loop ends."""

import asyncio
import gc

import pytest

from tocsin.adapters.nats.client.connection import connect
from tocsin.ports import LogUnavailable


@pytest.mark.parametrize("steps", range(4))
async def test_cancelling_twice_leaves_no_socket_open(nats_url: str, steps: int) -> None:
    """A socket that stays open is reported as `ResourceWarning`, which fails the test."""
    connected = asyncio.Event()

    async def use() -> None:
        async with connect(nats_url):
            connected.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(use())
    await connected.wait()
    task.cancel()
    for _ in range(steps):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.sleep(0)
    del task
    gc.collect()


async def test_no_reply_is_awaited_without_a_reader(nats_url: str) -> None:
    """At a second Ctrl-C, `asyncio.run` cancels all tasks, also those in which the client reads."""
    before = asyncio.all_tasks()
    async with connect(nats_url) as connection:
        assert (await connection.manage("INFO"))["type"]
        pending = asyncio.create_task(connection.request("$JS.API.INFO"))
        own = asyncio.all_tasks() - before - {pending}
        for task in own:
            task.cancel()
        await asyncio.wait(own)
        for request in (pending, connection.request("$JS.API.INFO"), connection.store("lost", b"", {})):
            with pytest.raises(LogUnavailable) as failure:
                await request
            assert "ConnectionClosedError" in str(failure.value)
