"""Durables of triggers."""

import json

import pytest

from tests.conformance.worlds import NatsWorld
from tocsin.adapters.memory.clock import LoopClock
from tocsin.adapters.memory.event_log import InMemoryEventLog
from tocsin.adapters.memory.event_streams import InMemoryEventStreams
from tocsin.adapters.nats import event_streams
from tocsin.adapters.nats.event_streams import NatsEventStreams
from tocsin.ports import EventDurable, EventReader, acknowledge


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


async def test_last_message_says_whether_others_wait(nats: NatsWorld) -> None:
    streams, durable, subject = await opened(nats)
    for number in range(3):
        await nats.connection.store(subject, b"%d" % number, {})
    async with streams.reading(durable) as reader:
        await _others_wait(reader)


async def test_last_message_says_so_in_memory() -> None:
    streams = InMemoryEventStreams(InMemoryEventLog(LoopClock()), {"SHOP": ["shop.new"]})
    durable = EventDurable("a", "SHOP", ("shop.new",))
    await streams.create(durable)
    for number in range(3):
        streams.publish("shop.new", b"%d" % number)
    async with streams.reading(durable) as reader:
        await _others_wait(reader)


async def _others_wait(reader: EventReader) -> None:
    """Read three messages, of which the last is delivered twice."""
    first, second = await reader.take(2, wait=5)
    assert second.has_more
    [third] = await reader.take(2, wait=5)
    assert not third.has_more
    await third.nak(0)
    [again] = await reader.take(2, wait=5)
    assert (again.delivered, again.has_more) == (2, False)
    await acknowledge([first, second, again])
