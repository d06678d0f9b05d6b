"""Watching a stream without its bodies, and how far a durable has got."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, aclosing
from datetime import datetime, timedelta

import pytest

from tests.conformance.given import dispatched, due, report, started
from tests.conformance.worlds import World
from tests.durables import take
from tocsin import subjects
from tocsin.ports import DurableSpec, Heading, Headings, Progress
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


async def test_watcher_resumes_after_a_sequence_of_any_size(world: World) -> None:
    for n in range(1_500):
        await world.receive(subjects.subject_of(report(delivery=n)), report(delivery=n).encode())
    async with watching(world, Stream.REPORTS, "report.>", after=700) as batches:
        seen = await until_caught_up(batches)

    assert [one.sequence for one in seen] == list(range(701, 1_501))


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


async def test_watcher_sees_undecodable_messages(world: World) -> None:
    sequence = await world.decide("execution.a_job.e1.dispatched.main.1", b"not json")
    async with watching(world, Stream.LOG, TASKS, after=0) as batches:
        assert [one.sequence for one in await until_caught_up(batches)] == [sequence]


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


# --- progress --------------------------------------------------------------------------------------------------------

SPEC = DurableSpec("takers", Stream.LOG, (TASKS,))


async def progress(world: World) -> Progress:
    found = await world.log.progress(Stream.LOG, SPEC.name)
    assert found is not None
    return found


async def test_missing_durable_has_no_progress(world: World) -> None:
    assert await world.log.progress(Stream.LOG, "nobody") is None


async def test_durable_has_passed_acknowledged_and_earlier_messages(world: World) -> None:
    takers = await world.durable(SPEC)
    first = await world.log.append(dispatched("e1"), expect=0)
    other = await world.log.append(started("e1"), expect=first)
    second = await world.log.append(dispatched("e2"), expect=0)
    assert not (await progress(world)).is_past(first)

    one, two = await take(takers, 2)
    assert not (await progress(world)).is_past(first)
    await two.ack()
    assert not (await progress(world)).is_past(second), "the first is still out"
    await one.ack()
    await world.until(lambda: is_past(world, second))
    assert (await progress(world)).is_idle

    third = await world.log.append(started("e2"), expect=second)
    assert (await progress(world)).is_past(third), "it is not for this durable"
    fourth = await world.log.append(dispatched("e3"), expect=0)

    async def is_behind() -> bool:
        return not await is_past(world, fourth)

    await world.until(is_behind)  # a server counts a new message a moment after it is stored
    assert (await progress(world)).is_past(other)


async def test_a_durable_is_past_what_was_ended(world: World) -> None:
    takers = await world.durable(SPEC)
    sequence = await world.log.append(dispatched("e1"), expect=0)
    [task] = await takers.take(1, wait=5)
    await task.nak(3600)
    assert not (await progress(world)).is_past(sequence)
    sequence = await world.log.append(dispatched("e2"), expect=0)
    [task] = await takers.take(1, wait=5)
    await task.term()
    assert not (await progress(world)).is_past(sequence), "the one before waits to come again"


async def is_past(world: World, sequence: int) -> bool:
    return (await progress(world)).is_past(sequence)


async def passed(world: World, instant: datetime) -> bool:
    return await world.log.now() > instant + timedelta(milliseconds=5)
