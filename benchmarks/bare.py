"""The yardstick: messages a second that nats-py alone publishes, pulls and acknowledges."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar
from uuid import uuid4

from nats.aio.client import Client
from nats.js.api import ConsumerConfig, StorageType
from nats.js.errors import NoStreamResponseError, ServiceUnavailableError

MESSAGES: Final = 20_000
BODY: Final = b"x" * 400
PATIENCE: Final = 120.0
"""Seconds for the whole measurement."""
LEADERLESS: Final = 0.05
"""Seconds between two tries while a stream or consumer has no leader."""

T = TypeVar("T")


async def bare_rate(client: Client, *, replicas: int = 1) -> float:
    """Measure messages a second through a file stream of its own.

    Messages are published with 256 in flight, pulled in batches and acknowledged.

    Args:
        client: connected to the server.
        replicas: the number of replicas of the installation's streams.

    Raises:
        TimeoutError: the messages did not pass through in time.
    """
    name = f"bare-{uuid4().hex[:8]}"
    js = client.jetstream(publish_async_max_pending=256, timeout=30)
    await js.add_stream(name=name, subjects=[f"{name}.>"], storage=StorageType.FILE, num_replicas=replicas)
    pull = await js.pull_subscribe(
        f"{name}.>", durable="reader", stream=name, config=ConsumerConfig(max_ack_pending=MESSAGES)
    )

    async def publish() -> None:
        await asyncio.gather(*[await js.publish_async(f"{name}.{i % 100}", BODY) for i in range(MESSAGES)])

    async def take(limit: int) -> int:
        fetched = await _led(lambda: pull.fetch(limit, timeout=10))
        for message in fetched:
            await message.ack()
        return len(fetched)

    async with asyncio.timeout(PATIENCE):
        await _led(lambda: js.publish(f"{name}.first", BODY))
        await take(1)
        began = time.perf_counter()
        publishing, taken = asyncio.create_task(publish()), 0
        while taken < MESSAGES:
            taken += await take(256)
        await publishing
        elapsed = time.perf_counter() - began
    await js.delete_stream(name)
    return MESSAGES / elapsed


async def _led(ask: Callable[[], Awaitable[T]]) -> T:
    """Repeat a request until the cluster has elected a leader that answers it."""
    while True:
        try:
            return await ask()
        except (NoStreamResponseError, ServiceUnavailableError):
            await asyncio.sleep(LEADERLESS)
