"""The queue of requests to webhooks on a real server."""

import asyncio

import pytest

from tests.conformance.worlds import NatsWorld
from tocsin.adapters.nats.admin.desired_state import webhook_config
from tocsin.adapters.nats.admin.resources import ensure_stream
from tocsin.adapters.nats.event_streams import NatsEventStreams, NatsWebhookQueue
from tocsin.ports import EventDurable, RequestRefused, acknowledge


async def test_full_queue_refuses_requests_and_loses_none(nats: NatsWorld) -> None:
    names, streams = nats.names, NatsEventStreams(nats.connection, nats.names)
    await ensure_stream(nats.connection, webhook_config(names, 4_000), 1, is_plan=False)
    queue = NatsWebhookQueue(nats.connection, names)
    for message_id in ("1", "1", "2", "3"):
        await queue.store("build", b"x" * 1_000, {}, message_id=message_id)
    with pytest.raises(RequestRefused, match="maximum bytes exceeded"):
        await queue.store("build", b"y" * 1_000, {}, message_id="4")
    durable = EventDurable("build", names.webhook_stream, (names.webhook("build"),), is_queue=True)
    await streams.create(durable)
    async with streams.reading(durable) as reader:
        deliveries = await reader.take(10, wait=5)
        assert [delivery.body for delivery in deliveries] == [b"x" * 1_000] * 3
        await acknowledge(deliveries)
    async with asyncio.timeout(30):
        while not await _is_stored(queue):  # noqa: ASYNC110 - the server makes room a moment after the acknowledgement
            await asyncio.sleep(0.05)


async def _is_stored(queue: NatsWebhookQueue) -> bool:
    try:
        await queue.store("build", b"y" * 1_000, {}, message_id="4")
    except RequestRefused:
        return False
    return True
