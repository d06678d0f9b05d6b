"""The behaviour of every reader of the streams as stored."""

from datetime import timedelta

import pytest

from tests.conformance.given import cron_triggered, dispatched, due, report, started
from tests.conformance.worlds import World
from tocsin import subjects
from tocsin.domain.events import Trigger
from tocsin.ports import StaleRead, StoredMessage
from tocsin.subjects import Stream
from tocsin.testing import InMemoryEventLog, InMemoryStoredLog

ALL = 1_000_000


async def messages(world: World, stream: Stream, *filters: str, after: int = 0, upto: int = ALL) -> list[StoredMessage]:
    portions = world.stored.messages(stream, *filters, after=after, upto=upto)
    return [message async for portion in portions for message in portion]


async def test_stream_reports_its_extent(world: World) -> None:
    assert (await world.stored.extent(Stream.REPORTS)).messages == 0
    for execution_id in ("e1", "e2", "e3"):
        await world.receive(f"report.a_job.{execution_id}.completed", b"{}")
    extent = await world.stored.extent(Stream.REPORTS)
    assert (extent.first, extent.last, extent.messages) == (1, 3, 3)
    assert (await world.stored.extent(Stream.REQUESTS)).messages == 0


async def test_an_empty_stream_has_an_end(world: World) -> None:
    assert await messages(world, Stream.LOG, upto=0) == []
    assert await messages(world, Stream.LOG) == []


async def test_messages_are_read_as_they_are_stored(world: World) -> None:
    sequence = await world.log.append(dispatched(), expect=0)
    (message,) = await messages(world, Stream.LOG)
    known = await world.log.get(message.subject, sequence)
    assert known is not None
    assert (message.stream, message.sequence, message.time) == (Stream.LOG, known.sequence, known.time)
    assert (message.subject, message.body) == (known.subject, dispatched().encode())


async def test_any_stored_bytes_are_read(world: World) -> None:
    body = bytes(range(256))
    await world.receive("trigger.a", body, "once")
    (message,) = await messages(world, Stream.REQUESTS)
    assert (message.body, message.headers) == (body, {"Nats-Msg-Id": "once"})


async def test_filters_choose(world: World) -> None:
    await world.log.append(dispatched(), expect=0)
    await world.log.append(started(), expect=1)
    await world.log.append(cron_triggered(), expect=0)
    await world.log.publish(subjects.subject_of(report()), report(), message_id="r")
    stored = await messages(world, Stream.LOG, "execution.*.*.started.>", "cron.>")
    assert [message.sequence for message in stored] == [2, 3]


async def test_messages_of_a_job_match_any_spelling(world: World) -> None:
    """`a.job` is written `a_job` in subjects; the public may write the dots as they are."""
    for job in ("a.job", "another"):
        await world.log.append(due(job), expect=0)
    await world.log.publish(subjects.trigger("a.job"), Trigger(), message_id="own")
    await world.receive("public.trigger.a.job", b"", "public")
    await world.receive("public.cancel.a_job.e1", b"", "public-2")
    await world.receive("outside.shop.trigger.a.job", b"", "outside")
    await world.receive("outside.shop.cancel.a.job.e1", b"", "outside-2")
    await world.log.append(dispatched(), expect=0)
    await world.log.append(cron_triggered("another"), expect=0)
    filters = subjects.job_filters("a.job")
    read = [
        message for stream, of_job in filters.items() if of_job for message in await messages(world, stream, *of_job)
    ]
    assert [(message.subject, subjects.job_of(message.subject)) for message in read] == [
        ("ledger.a_job.due", "a.job"),
        ("public.trigger.a.job", "a.job"),
        ("public.cancel.a_job.e1", "a.job"),
        ("outside.shop.trigger.a.job", "a.job"),
        ("outside.shop.cancel.a.job.e1", "a.job"),
        ("trigger.a_job", "a.job"),
        ("execution.a_job.e1.dispatched.main.1", "a.job"),
    ]


async def test_a_part_is_read(world: World) -> None:
    for number in range(6):
        await world.log.append(dispatched(f"e{number}"), expect=0)
    assert [m.sequence for m in await messages(world, Stream.LOG, after=2, upto=4)] == [3, 4]
    assert await messages(world, Stream.LOG, after=4, upto=4) == []
    assert [m.sequence for m in await messages(world, Stream.LOG, "execution.*.e1.>", upto=5)] == [2]


async def test_reading_begins_at_an_instant(world: World) -> None:
    await world.log.append(dispatched("e1"), expect=0)
    (first,) = await messages(world, Stream.LOG)

    async def stored_later() -> bool:
        """The log's clock has gone on: its times are exact to the microsecond."""
        return await world.log.now() > first.time + timedelta(milliseconds=5)

    await world.until(stored_later)
    await world.log.append(dispatched("e2"), expect=0)
    *_, last = await messages(world, Stream.LOG)
    portions = world.stored.messages(Stream.LOG, after=last.time, upto=ALL)
    assert [message.sequence async for portion in portions for message in portion] == [2]
    portions = world.stored.messages(Stream.LOG, after=first.time - timedelta(hours=1), upto=ALL)
    assert [message.sequence async for portion in portions for message in portion] == [1, 2]


async def test_more_than_one_portion(world: World) -> None:
    for number in range(2_500):
        await world.receive("trigger.a", b"{}", f"m{number}")
    stored = await messages(world, Stream.REQUESTS, upto=2_400)
    assert [message.sequence for message in stored] == list(range(1, 2_401))


async def test_read_ends_only_at_the_leaders_end() -> None:
    streams = InMemoryEventLog()
    for number in range(6):
        streams.receive(f"report.a_job.e{number}.completed", b"{}")
    stored = InMemoryStoredLog(streams, lag=2)

    async def read(*filters: str, upto: int = ALL) -> list[int]:
        portions = stored.messages(Stream.REPORTS, *filters, after=0, upto=upto)
        return [message.sequence async for portion in portions for message in portion]

    assert await read(upto=4) == [1, 2, 3, 4]
    assert await read("report.*.e9.>") == []
    with pytest.raises(StaleRead):
        await read(upto=5)
    with pytest.raises(StaleRead):
        await read("report.*.e5.>")
    await streams.remove("report.a_job.e5.completed", 6)
    await streams.remove("report.a_job.e4.completed", 5)
    assert await read() == [1, 2, 3, 4]
