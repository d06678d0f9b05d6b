"""Durables of triggers."""

import asyncio
import json

import pytest

from tests.conformance.worlds import NatsWorld
from tocsin.adapters.memory.clock import LoopClock
from tocsin.adapters.memory.event_log import InMemoryEventLog
from tocsin.adapters.memory.event_streams import InMemoryEventStreams
from tocsin.adapters.nats import event_streams
from tocsin.adapters.nats.event_streams import NatsEventStreams
from tocsin.ports import EventDurable, EventStreams, LogUnavailable, Progress, acknowledge


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


async def test_progress_is_that_of_all_readers(nats: NatsWorld) -> None:
    streams, durable, subject = await opened(nats)
    for number in range(3):
        await nats.connection.store(subject, b"%d" % number, {})
    await _progress(streams, durable)


async def test_progress_in_memory_is_the_same() -> None:
    streams = InMemoryEventStreams(InMemoryEventLog(LoopClock()), {"SHOP": ["shop.new"]})
    durable = EventDurable("a", "SHOP", ("shop.new",))
    await streams.create(durable)
    for number in range(3):
        streams.publish("shop.new", b"%d" % number)
    await _progress(streams, durable)


async def _progress(streams: EventStreams, durable: EventDurable) -> None:
    """Read three messages by two readers; the first message is acknowledged last."""

    async def is_at(floor: int, *, is_idle: bool) -> None:
        async with asyncio.timeout(10):
            while await streams.progress(durable) != Progress(floor, is_idle):  # noqa: ASYNC110 - no event says so
                await asyncio.sleep(0.05)

    async with streams.reading(durable) as one, streams.reading(durable) as other:
        [first] = await one.take(1, wait=5)
        later = [*await other.take(1, wait=5), *await other.take(1, wait=5)]
        await acknowledge(later)
        await is_at(first.sequence - 1, is_idle=False)
        await first.nak(0)
        [again] = await other.take(1, wait=5)
        assert again.sequence == first.sequence
        await is_at(first.sequence - 1, is_idle=False)
        await acknowledge([again])
        await is_at(later[-1].sequence, is_idle=True)


async def test_progress_in_a_lost_stream_is_unknown(nats: NatsWorld) -> None:
    streams, durable, _ = await opened(nats)
    await nats.connection.manage(f"STREAM.DELETE.{durable.stream}")
    with pytest.raises(LogUnavailable, match="is gone"):
        await streams.progress(durable)


async def test_progress_in_no_stream_is_unknown() -> None:
    streams = InMemoryEventStreams(InMemoryEventLog(LoopClock()), {})
    with pytest.raises(LogUnavailable, match="is gone"):
        await streams.progress(EventDurable("a", "SHOP", ("shop.new",)))
