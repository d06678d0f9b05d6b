"""Many readers of stored events: bounded buffers, and nothing lost or repeated."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

import pytest

from tests.system.running import DEADLINE
from tocsin.domain.definition import JobDefinition
from tocsin.services import event_feeds
from tocsin.services.event_feeds import EventFeeds, FeedEvent, TooManyReaders
from tocsin.services.jobs import Registry
from tocsin.subjects import Stream
from tocsin.testing import InMemoryEventLog, InMemoryProjections, ManualClock

Follower = AsyncGenerator[Sequence[FeedEvent], None]


class World:
    """A log with one job, which `change` changes."""

    def __init__(self) -> None:
        clock = ManualClock()
        self.log = InMemoryEventLog(clock)
        self.registry = Registry(self.log, InMemoryProjections(clock), clock)

    async def define(self) -> None:
        await self.registry.apply(
            [JobDefinition.model_validate({"name": "job", "schedule": "@daily", "function": "f"})]
        )

    async def change(self, count: int) -> None:
        """Append `count` events."""
        for _ in range(count // 2):
            await self.registry.pause("job")
            await self.registry.resume("job")
            await asyncio.sleep(0)


@pytest.fixture
async def world() -> World:
    made = World()
    await made.define()
    return made


async def sequences(follower: Follower, count: int) -> list[int]:
    """Return the sequences of the next `count` events."""
    received = list[int]()
    async with asyncio.timeout(DEADLINE):
        while len(received) < count:
            received += [event.recorded.sequence for event in await anext(follower)]
    return received


async def test_slow_reader_is_dropped_alone(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_feeds, "MAX_BUFFERED", 20)
    feeds = EventFeeds(world.log)
    async with aclosing(feeds.follow(None)) as slow, aclosing(feeds.follow(None)) as fast:
        waiting = [asyncio.ensure_future(anext(follower)) for follower in (slow, fast)]
        await asyncio.sleep(0.05)
        reading = asyncio.create_task(sequences(fast, 99))
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        await world.change(2)
        async with asyncio.timeout(DEADLINE):
            first = [event.recorded.sequence for event in await waiting[1]]
        received = asyncio.create_task(sequences(fast, 100 - len(first) + 2))
        await world.change(100)
        assert first + await received == list(range(2, 104))
        await waiting[0]
        [feed] = feeds._feeds.values()
        assert [len(reader.events) for reader in feed.readers if reader.is_dropped] == [0]
        async with asyncio.timeout(DEADLINE):
            assert [events async for events in slow] == []


async def test_reader_continues_from_its_position(world: World) -> None:
    await world.change(50)
    feeds = EventFeeds(world.log)
    async with aclosing(feeds.follow("job", {Stream.LEDGER: 10, Stream.LOG: 0})) as follower:
        received = asyncio.create_task(sequences(follower, 81))
        await world.change(40)
        assert await received == list(range(11, 92))


async def test_reader_far_behind_reads_the_log_first(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_feeds, "MAX_BUFFERED", 10)
    await world.change(200)
    feeds = EventFeeds(world.log)
    async with aclosing(feeds.follow(None, {})) as follower:
        received = asyncio.create_task(sequences(follower, 201))
        assert await received == list(range(1, 202))


async def test_position_names_the_last_event(world: World) -> None:
    await world.change(6)
    feeds = EventFeeds(world.log)
    async with aclosing(feeds.follow(None, {})) as follower:
        events = await anext(follower)
    assert [event.places[Stream.LEDGER] for event in events] == [event.recorded.sequence for event in events]


async def test_readers_share_a_follower(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    follow, followed = world.log.follow, list[Stream]()

    def counted_follow(stream: Stream, *filters: str, **options: Any) -> Any:  # noqa: ANN401 - those of `follow`
        followed.append(stream)
        return follow(stream, *filters, **options)

    monkeypatch.setattr(world.log, "follow", counted_follow)
    feeds = EventFeeds(world.log)
    followers = [feeds.follow(None) for _ in range(20)]
    waiting = [asyncio.ensure_future(anext(follower)) for follower in followers]
    await asyncio.sleep(0.05)
    await world.change(2)
    async with asyncio.timeout(DEADLINE):
        assert len(await asyncio.gather(*waiting)) == 20
    for follower in followers:
        await follower.aclose()
    assert sorted(followed) == sorted((Stream.LEDGER, Stream.LOG))
    assert not feeds._feeds


def test_readers_beyond_the_limit_are_refused(world: World) -> None:
    feeds = EventFeeds(world.log, most=1)
    with feeds.place(), pytest.raises(TooManyReaders), feeds.place():
        pass
    with feeds.place():
        pass


def test_namespace_may_use_half_of_the_streams(world: World) -> None:
    feeds, a, b = EventFeeds(world.log, most=4), frozenset({"a"}), frozenset({"b"})
    with feeds.place("", a), feeds.place("", a), feeds.place("", b):
        with pytest.raises(TooManyReaders), feeds.place("", a):
            pass
        with feeds.place(), pytest.raises(TooManyReaders), feeds.place("", b):
            pass
    with feeds.place("", a):
        pass


def test_caller_may_use_its_share_of_the_streams(world: World) -> None:
    feeds = EventFeeds(world.log, most_of_caller=2)
    with feeds.place("ada"), feeds.place("bea"), feeds.place("ada"):
        with pytest.raises(TooManyReaders), feeds.place("ada"):
            pass
        with feeds.place("bea"):
            pass
    with feeds.place("ada"):
        pass


async def test_readers_of_older_events_take_turns(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await world.change(250)
    follow, open_now, most_open = world.log.follow, 0, 0

    async def counted(stream: Stream, *filters: str, **options: Any) -> Any:  # noqa: ANN401 - those of `follow`
        nonlocal open_now, most_open
        open_now += 1
        most_open = max(most_open, open_now)
        try:
            async with aclosing(follow(stream, *filters, **options)) as batches:
                async for batch in batches:
                    await asyncio.sleep(0)  # as a server answers
                    yield batch
        finally:
            open_now -= 1

    monkeypatch.setattr(world.log, "follow", counted)
    feeds = EventFeeds(world.log)
    followers = [feeds.follow(None, {}) for _ in range(30)]
    of_the_feed = 2  # one for each stream
    async with asyncio.timeout(DEADLINE):
        first = await asyncio.gather(*(anext(follower) for follower in followers))
        assert open_now <= of_the_feed  # none is open while the clients do not read on
        rest = await asyncio.gather(*(sequences(each, 251 - len(first[0])) for each in followers))
    assert most_open <= of_the_feed + event_feeds.MAX_TURNS
    for events, more in zip(first, rest, strict=True):
        assert [event.recorded.sequence for event in events] + more == list(range(1, 252))
    for follower in followers:
        await follower.aclose()
