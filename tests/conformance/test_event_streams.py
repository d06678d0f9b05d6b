"""Durables of triggers on a real server."""

import json

import pytest

from tests.conformance.worlds import NatsWorld
from tocsin.adapters.nats import event_streams
from tocsin.adapters.nats.event_streams import NatsEventStreams
from tocsin.ports import EventDurable, acknowledge


async def opened(nats: NatsWorld) -> tuple[NatsEventStreams, EventDurable, str]:
    """A durable on a stream of another program, and its subject."""
    name, subject = f"SHOP-{nats.names.root}", f"shop-{nats.names.root}.new"
    config = {"name": name, "subjects": [subject], "storage": "memory"}
    await nats.connection.manage(f"STREAM.CREATE.{name}", json.dumps(config).encode())
    streams, durable = NatsEventStreams(nats.connection, nats.names), EventDurable("a", name, (subject,))
    await streams.create(durable)
    return streams, durable, subject


async def test_large_messages_are_read_few_at_a_time(nats: NatsWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_streams, "MAX_BYTES", 10_000)
    streams, durable, subject = await opened(nats)
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


async def test_unfinished_takes_are_handed_back(nats: NatsWorld) -> None:
    """A reader that stops while it fills a batch keeps no message back until the acknowledgement wait is over."""
    streams, durable, subject = await opened(nats)
    for number in range(5):
        await nats.connection.store(subject, b"%d" % number, {})
    async with streams.reading(durable) as reader:
        done, *_ = [await reader.take(1, wait=5) for _ in range(4)]
        await acknowledge(done)
    left: set[bytes] = set()
    async with streams.reading(durable) as reader:
        while len(left) < 4:
            deliveries = await reader.take(32, wait=5)
            assert deliveries
            left |= {delivery.body for delivery in deliveries}
    assert left == {b"1", b"2", b"3", b"4"}
