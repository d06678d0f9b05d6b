"""A connection whose task is cancelled again while it closes."""

import asyncio
import gc

import pytest

from tocsin.adapters.nats.client.connection import connect


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
