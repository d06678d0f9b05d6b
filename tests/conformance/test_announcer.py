"""The announcer over a real server: public events in order, and each once."""

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, cast

import pytest
from nats.errors import TimeoutError as NatsTimeoutError

from tests.conformance.worlds import NatsWorld
from tocsin import subjects
from tocsin.adapters.nats.log.announcer import AT_ONCE, NUMBER, Announcer
from tocsin.adapters.system_clock import SystemClock
from tocsin.domain.events import CronTriggered, Message, Recorded
from tocsin.domain.events.public import CronTriggeredData
from tocsin.domain.formats.cloud_events import headers_of
from tocsin.ports import Batch, SequenceConflict
from tocsin.subjects import ANNOUNCED, Bucket, Stream

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def event(number: int) -> Recorded[Message]:
    name = f"job-{number % 3}"
    data = CronTriggeredData(
        cron_name=name,
        cron_expression="* * * * *",
        timezone="UTC",
        job_id=f"run-{number}",
        job_type="f",
        run_count=number,
        scheduled_time=NOON,
        actual_time=NOON,
    )
    message = CronTriggered(timestamp=NOON, data=data)
    return Recorded(message, subjects.subject_of(message), number, NOON)


class Past:
    """The public events of a log that has ended."""

    def __init__(self, events: Sequence[Recorded[Message]]) -> None:
        self._events = events

    async def follow(self, stream: Stream, *filters: str, after: int) -> AsyncGenerator[Batch, None]:
        del stream, filters
        messages = [recorded for recorded in self._events if recorded.sequence > after]
        yield Batch(messages, caught_up=True, upto=len(self._events))
        await asyncio.Event().wait()


async def announced(nats: NatsWorld, number: int) -> list[str]:
    """Wait until as many events are stored, and a moment longer; return their numbers."""
    stream, jetstream = nats.names.stream(Stream.LOG), nats.connection.client.jetstream()
    while (await jetstream.stream_info(stream)).state.messages < number:  # noqa: ASYNC110 - a moment later
        await asyncio.sleep(0.02)
    await asyncio.sleep(0.2)
    last = (await jetstream.stream_info(stream)).state.last_seq
    first = (await jetstream.stream_info(stream)).state.first_seq
    found = [await jetstream.get_msg(stream, seq=sequence) for sequence in range(first, last + 1)]
    return [cast("dict[str, str]", message.headers)[NUMBER] for message in found]


def announcer(nats: NatsWorld, view: Any) -> Announcer:  # noqa: ANN401 - the part of a view that it uses
    return Announcer(nats.connection, nats.names, view, SystemClock(), nats.projections, lambda: True)


@pytest.mark.parametrize("announcers", [1, 3])
async def test_each_event_is_announced_once_in_order(nats: NatsWorld, announcers: int) -> None:
    events = [event(number) for number in range(1, 2 * AT_ONCE + 10)]
    view: Any = Past(events)
    running = [asyncio.create_task(announcer(nats, view).run()) for _ in range(announcers)]
    try:
        assert await announced(nats, len(events)) == [str(recorded.sequence) for recorded in events]
    finally:
        for task in running:
            task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*running)


async def test_only_the_leader_announces(nats: NatsWorld) -> None:
    view, leads = cast("Any", Past([event(1)])), [False]
    standby = Announcer(nats.connection, nats.names, view, SystemClock(), nats.projections, lambda: leads[0])
    task = asyncio.create_task(standby.run())
    await asyncio.sleep(0.2)
    stream = nats.names.stream(Stream.LOG)
    assert (await nats.connection.client.jetstream().stream_info(stream)).state.messages == 0
    leads[0] = True
    assert await announced(nats, 1) == ["1"]
    task.cancel()


async def test_event_has_the_headers_of_a_cloud_event(nats: NatsWorld) -> None:
    subscription = await nats.connection.client.subscribe(f"{nats.names.public_prefix}.>")
    await nats.connection.client.flush()
    running = announcer(nats, Past(()))
    await running._announce([event(1)], 0)
    headers = (await subscription.next_msg(timeout=20)).headers or {}
    assert headers.items() >= headers_of(cast("CronTriggered", event(1).message), f"/{nats.names.root}").items()


async def test_announcer_goes_on_where_another_died(nats: NatsWorld) -> None:
    events = [event(number) for number in range(1, 31)]
    for upto in (7, 7, 30):
        view: Any = Past(events[:upto])
        task = asyncio.create_task(announcer(nats, view).run())
        numbers = await announced(nats, upto)
        task.cancel()
        assert numbers == [str(number) for number in range(1, upto + 1)]


async def heard(nats: NatsWorld, events: Sequence[Recorded[Message]], number: int) -> list[str]:
    """Announce until as many messages came by, and a moment longer; return their numbers."""
    client = nats.connection.client
    subscription = await client.subscribe(nats.names.to_wire("cron.>"))
    await client.flush()
    task = asyncio.create_task(announcer(nats, Past(events)).run())
    numbers = list[str]()
    with suppress(NatsTimeoutError):
        while True:
            message = await subscription.next_msg(timeout=20 if len(numbers) < number else 1)
            numbers.append(cast("dict[str, str]", message.headers)[NUMBER])
    task.cancel()
    await subscription.unsubscribe()
    return numbers


def up_to(number: int) -> list[Recorded[Message]]:
    return [event(one) for one in range(1, number + 1)]


@pytest.mark.parametrize("removal", ["purge", "age"])
async def test_announcer_continues_after_all_events_left_their_stream(nats: NatsWorld, removal: str) -> None:
    stream, jetstream = nats.names.stream(Stream.LOG), nats.connection.client.jetstream()
    assert await heard(nats, up_to(10), 10) == [str(number) for number in range(1, 11)]
    if removal == "purge":
        await jetstream.purge_stream(stream)
    else:
        info = await nats.connection.manage(f"STREAM.INFO.{stream}")
        config = {**info["config"], "max_age": 200_000_000, "duplicate_window": 100_000_000}
        await nats.connection.manage(f"STREAM.UPDATE.{stream}", json.dumps(config).encode())
        while (await jetstream.stream_info(stream)).state.messages:  # noqa: ASYNC110 - the server removes them
            await asyncio.sleep(0.05)
    assert await heard(nats, up_to(13), 3) == ["11", "12", "13"]
    assert await heard(nats, up_to(13), 0) == []


async def test_bucket_place_is_restored_from_the_newest_event(nats: NatsWorld) -> None:
    await heard(nats, up_to(5), 5)
    await nats.projections.remove(Bucket.CURSORS, ANNOUNCED)
    assert await heard(nats, up_to(5), 0) == []
    await nats.connection.client.jetstream().purge_stream(nats.names.stream(Stream.LOG))
    assert await heard(nats, up_to(6), 1) == ["6"]


async def test_paused_announcer_is_refused_after_removal_of_events(nats: NatsWorld) -> None:
    """The announcer's guard holds although the stream is empty, as when the announcer looked its place up."""
    paused = announcer(nats, Past(()))
    expect, number = await paused._place()
    assert (expect, number) == (0, 0)
    assert await heard(nats, up_to(4), 4) == ["1", "2", "3", "4"]
    await nats.connection.client.jetstream().purge_stream(nats.names.stream(Stream.LOG))
    with pytest.raises(SequenceConflict):
        await paused._announce(up_to(4), expect)
    with pytest.raises(SequenceConflict):
        await paused._note(2)
    assert await heard(nats, up_to(5), 1) == ["5"]


async def test_running_announcer_goes_on_through_a_purge(nats: NatsWorld) -> None:
    running = announcer(nats, Past(()))
    expect, _ = await running._place()
    expect = await running._announce(up_to(3), expect)
    await running._note(3)
    await nats.connection.client.jetstream().purge_stream(nats.names.stream(Stream.LOG))
    await running._announce([event(4)], expect)
    assert await announced(nats, 1) == ["4"]
