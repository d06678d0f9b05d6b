"""Durables of triggers on a real server."""

import json

import pytest

from tests.conformance.worlds import NatsWorld
from tocsin.adapters.nats import event_streams
from tocsin.adapters.nats.event_streams import NatsEventStreams
from tocsin.ports import EventDurable, acknowledge


async def test_large_messages_are_read_few_at_a_time(nats: NatsWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_streams, "MAX_BYTES", 10_000)
    name, subject = f"SHOP-{nats.names.root}", f"shop-{nats.names.root}.new"
    config = {"name": name, "subjects": [subject], "storage": "memory"}
    await nats.connection.manage(f"STREAM.CREATE.{name}", json.dumps(config).encode())
    streams, durable = NatsEventStreams(nats.connection, nats.names), EventDurable("a", name, (subject,))
    await streams.create(durable)
    sizes = [4_000, 4_000, 4_000, 50_000, 1, 2]
    for size in sizes:
        await nats.connection.store(subject, b"x" * size, {})
    taken: list[list[int]] = []
    async with streams.reading(durable) as reader:
        while sum(map(len, taken)) < len(sizes):
            deliveries = await reader.take(32, wait=5)
            await acknowledge(deliveries)
            taken.append([len(delivery.body) for delivery in deliveries])
    assert taken == [[4_000, 4_000], [4_000], [50_000], [1, 2]]
