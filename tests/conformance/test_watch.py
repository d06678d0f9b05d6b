"""Watching events without their bodies."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, aclosing
from datetime import datetime, timedelta

import pytest

from tests.conformance.given import dispatched, due, started
from tests.conformance.worlds import World
from tocsin import subjects
from tocsin.ports import Heading, Headings
from tocsin.subjects import Stream

TASKS = subjects.filter_for("execution.dispatched")


def watching(
    world: World, stream: Stream, *filters: str, after: int | datetime
) -> AbstractAsyncContextManager["AsyncGenerator[Headings, None]"]:
    return aclosing(world.log.watch(stream, *filters, after=after))


async def until_caught_up(batches: "AsyncGenerator[Headings, None]") -> list[Heading]:
    seen: list[Heading] = []
    async for batch in batches:
        seen += batch.headings
        if batch.caught_up:
            break
    return seen


async def test_watcher_receives_stored_and_new_headings(world: World) -> None:
    first = await world.log.append(dispatched("e1"), expect=0)
    await world.log.append(started("e1"), expect=first)
    async with watching(world, Stream.LOG, TASKS, subjects.COMPLETIONS[0], after=0) as batches:
        [heading] = await until_caught_up(batches)
        stored = await world.log.get(TASKS, first)
        assert stored is not None
        assert heading == Heading(stored.subject, first, stored.time)

        waiting = asyncio.ensure_future(anext(batches))
        second = await world.log.append(dispatched("e2"), expect=0)
        batch = await waiting

    assert [(one.subject, one.sequence) for one in batch.headings] == [(subjects.subject_of(dispatched("e2")), second)]
    assert (batch.caught_up, batch.upto) == (True, second)


async def test_watcher_resumes_after_a_number(world: World) -> None:
    for n in range(100):
        await world.log.append(dispatched(f"e{n}"), expect=0)
    async with watching(world, Stream.LOG, TASKS, after=70) as batches:
        seen = await until_caught_up(batches)

    assert [one.sequence for one in seen] == list(range(71, 101))


async def test_watcher_of_an_empty_stream_is_caught_up(world: World) -> None:
    sequence = await world.log.append(due(), expect=0)
    async with watching(world, Stream.LEDGER, after=sequence) as batches:
        assert await anext(batches) == Headings([], caught_up=True, upto=sequence)


async def test_watcher_starts_at_an_instant(world: World) -> None:
    await world.log.append(dispatched("e1"), expect=0)
    noon = await world.log.now()
    await world.until(lambda: passed(world, noon))
    second = await world.log.append(dispatched("e2"), expect=0)
    stored = await world.log.get(TASKS, second)
    assert stored is not None
    async with watching(world, Stream.LOG, TASKS, after=stored.time) as batches:
        assert [one.sequence for one in await until_caught_up(batches)] == [second]
    async with watching(world, Stream.LOG, TASKS, after=stored.time + timedelta(hours=1)) as batches:
        assert await until_caught_up(batches) == []
    async with watching(world, Stream.LOG, TASKS, after=noon - timedelta(hours=1)) as batches:
        assert len(await until_caught_up(batches)) == 2


async def test_a_watcher_ends_when_its_task_is_cancelled(world: World) -> None:
    notified = asyncio.Event()

    async def watch() -> None:
        async for _ in world.log.watch(Stream.LOG, after=0):
            notified.set()

    task = asyncio.create_task(watch())
    await notified.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def passed(world: World, instant: datetime) -> bool:
    return await world.log.now() > instant + timedelta(milliseconds=5)
