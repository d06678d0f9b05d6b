"""The yardstick: how many messages a second nats-py alone publishes, pulls and acknowledges on the same server."""

import asyncio
import time
from typing import Final
from uuid import uuid4

from nats.aio.client import Client
from nats.js.api import ConsumerConfig, StorageType
from nats.js.errors import ServiceUnavailableError

MESSAGES: Final = 20_000
BODY: Final = b"x" * 400
PATIENCE: Final = 120.0
"""Seconds for all of them."""
LEADERLESS: Final = 0.05
"""Seconds between two tries while a cluster elects who leads the consumer."""


async def bare_rate(client: Client, *, replicas: int = 1) -> float:
    """Messages a second through a file stream of their own: published with 256 in flight, pulled in batches, acked.

    `replicas`: as many as the streams of the installation have.

    Raises:
        TimeoutError: they did not come through in time.
    """
    name = f"bare-{uuid4().hex[:8]}"
    js = client.jetstream(publish_async_max_pending=256, timeout=30)
    await js.add_stream(name=name, subjects=[f"{name}.>"], storage=StorageType.FILE, num_replicas=replicas)
    pull = await js.pull_subscribe(
        f"{name}.>", durable="reader", stream=name, config=ConsumerConfig(max_ack_pending=MESSAGES)
    )

    async def publish() -> None:
        await asyncio.gather(*[await js.publish_async(f"{name}.{i % 100}", BODY) for i in range(MESSAGES)])

    began = time.perf_counter()
    publishing, taken = asyncio.create_task(publish()), 0
    async with asyncio.timeout(PATIENCE):
        while taken < MESSAGES:
            try:
                fetched = await pull.fetch(256, timeout=10)
            except ServiceUnavailableError:
                await asyncio.sleep(LEADERLESS)
                continue
            for message in fetched:
                await message.ack()
            taken += len(fetched)
        await publishing
    elapsed = time.perf_counter() - began
    await js.delete_stream(name)
    return MESSAGES / elapsed
