"""The announcer over a real server: public events in order, and each once."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from tests.conformance.worlds import NatsWorld
from tocsin import subjects
from tocsin.adapters.nats.log.announcer import AT_ONCE, NUMBER, Announcer
from tocsin.adapters.system_clock import SystemClock
from tocsin.domain.events import CronTriggered, Message, Recorded
from tocsin.domain.events.public import CronTriggeredData
from tocsin.ports import Batch
from tocsin.subjects import Stream

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
    found = [await jetstream.get_msg(stream, seq=sequence) for sequence in range(1, last + 1)]
    return [cast("dict[str, str]", message.headers)[NUMBER] for message in found]


@pytest.mark.parametrize("announcers", [1, 3])
async def test_each_event_is_announced_once_in_order(nats: NatsWorld, announcers: int) -> None:
    events = [event(number) for number in range(1, 2 * AT_ONCE + 10)]
    view: Any = Past(events)
    running = [
        asyncio.create_task(Announcer(nats.connection, nats.names, view, SystemClock()).run())
        for _ in range(announcers)
    ]
    try:
        assert await announced(nats, len(events)) == [str(recorded.sequence) for recorded in events]
    finally:
        for task in running:
            task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*running)


async def test_announcer_goes_on_where_another_died(nats: NatsWorld) -> None:
    events = [event(number) for number in range(1, 31)]
    for upto in (7, 7, 30):
        view: Any = Past(events[:upto])
        task = asyncio.create_task(Announcer(nats.connection, nats.names, view, SystemClock()).run())
        numbers = await announced(nats, upto)
        task.cancel()
        assert numbers == [str(number) for number in range(1, upto + 1)]
