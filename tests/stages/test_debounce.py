"""Debounced triggers: one execution after the events of a key stop, by the last of them."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from tests.stages.test_event_listener import (
    OPENED,
    TRIGGER,
    Acknowledged,
    Message,
    ignored_events,
    listening,
    requested,
    triggers,
)
from tests.stages.world import World
from tocsin import subjects
from tocsin.domain import debounce, ids, ledger
from tocsin.engine.ledger_reader import LedgerReader
from tocsin.ports import WEBHOOK_DELIVERY, EventDurable, LogUnavailable, Progress
from tocsin.settings import Triggers
from tocsin.stages.event_listener import debouncer
from tocsin.stages.event_listener.debouncer import HOUR_S, KEPT_S
from tocsin.stages.event_listener.stage import EventListener
from tocsin.subjects import Bucket

JOB: dict[str, Any] = {
    "name": "invoice",
    "function": "f",
    "triggers": [{**TRIGGER, "input": {"n": "body.n"}, "debounce": {"quiet": "30s", "at_most": "1m"}}],
}


class Shop:
    """A program whose messages a listener hears, as a durable delivers them."""

    def __init__(self, world: World, listener: EventListener) -> None:
        self.world = world
        self.listener = listener
        [self.name] = listener.index.active
        self.published = 0

    def message(self, key: str, n: int = 2) -> Message:
        self.published += 1
        return Message(f'{{"id": "{key}", "n": {n}}}'.encode(), self.published, self.world.clock.now())

    def earlier(self, number: int, *, apart: int) -> list[Message]:
        """Messages of one key that were stored an hour ago, some seconds apart."""
        began = self.world.clock.now() - timedelta(hours=1)
        messages = [self.message("a", n) for n in range(2, number + 2)]
        return [replace(each, time=began + timedelta(seconds=n * apart)) for n, each in enumerate(messages)]

    async def publish(self, key: str, n: int = 2) -> Message:
        message = self.message(key, n)
        await self.deliver(message)
        return message

    async def deliver(self, *messages: Message) -> None:
        await self.listener.handle(self.name, messages)
        assert {answer for message in messages for answer in message.answers} == {"ack"}

    async def flood(self, streams: Acknowledged, messages: Sequence[Message]) -> None:
        """Let the listener read messages one by one, long after they were stored; its windows end between."""
        for number, message in enumerate(messages, 1):
            await self.deliver(message)
            streams.sequence, streams.is_idle = message.sequence, number == len(messages)
            await self.pass_time(1)

    async def pass_time(self, seconds: float) -> None:
        for _ in range(round(seconds)):
            self.world.clock.advance(timedelta(seconds=1).total_seconds())
            await self.listener.debouncer.run_once()


async def inputs(world: World) -> list[object]:
    return [trigger.input and trigger.input["n"] for trigger in await triggers(world)]


async def test_last_event_starts_one_execution(world: World) -> None:
    await world.define(JOB)
    async with listening(world) as listener:
        shop = Shop(world, listener)
        for n in (2, 3, 4):
            await shop.publish("a", n)
            await shop.pass_time(15)
        await shop.publish("b", 9)
        assert await requested(world) == []
        await shop.pass_time(15)
        assert await inputs(world) == [4]
        await shop.pass_time(100)
        assert await inputs(world) == [4, 9]
    records = await ignored_events(world)
    assert [(each.event.sequence, each.reason, each.key) for each in records] == [(n, "debounced", "a") for n in (1, 2)]


async def test_key_that_is_never_quiet_starts_at_last(world: World) -> None:
    await world.define(JOB)
    async with listening(world) as listener:
        shop = Shop(world, listener)
        for n in range(2, 16):
            await shop.publish("a", n)
            await shop.pass_time(10)
        assert await inputs(world) == [7, 13]


async def test_listener_behind_starts_one_execution(world: World) -> None:
    """The events of a key follow each other, but the listener reads each after its wait is over."""
    await world.define(JOB)
    async with listening(world, streams=(streams := Acknowledged(0))) as listener:
        shop = Shop(world, listener)
        stored = shop.earlier(5, apart=10)
        await shop.flood(streams, stored)
        await shop.pass_time(10)
    assert await inputs(world) == [6]


async def test_listener_behind_keeps_the_longest_wait(world: World) -> None:
    await world.define(JOB)
    async with listening(world, streams=(streams := Acknowledged(0))) as listener:
        shop = Shop(world, listener)
        await shop.flood(streams, shop.earlier(14, apart=10))
        await shop.pass_time(10)
    assert await inputs(world) == [8, 15]


async def test_window_waits_for_the_messages_of_another_copy(world: World) -> None:
    """A later message was taken here; an earlier message is not acknowledged yet."""
    await world.define(JOB)
    async with (
        listening(world, streams=(streams := Acknowledged(0))) as listener,
        listening(world, streams=streams) as other,
    ):
        shop, beside = Shop(world, listener), Shop(world, other)
        first, second, late = shop.earlier(3, apart=20)
        late.time += timedelta(hours=1)
        streams.is_idle = False
        await shop.deliver(first)
        streams.sequence = first.sequence
        await shop.deliver(late)
        await shop.pass_time(5)
        assert await inputs(world) == []
        await beside.deliver(second)
        streams.sequence = late.sequence
        await shop.pass_time(5)
    assert await inputs(world) == [4]


async def test_window_ends_if_the_durable_stands_still(world: World) -> None:
    """An event that waits for room among the keys is not acknowledged for hours."""
    await world.define(JOB)
    async with listening(world, streams=(streams := Acknowledged(0))) as listener:
        shop, streams.is_idle = Shop(world, listener), False
        await shop.publish("a", 2)
        await shop.pass_time(50)
        assert await inputs(world) == []
        await shop.pass_time(15)
        assert await inputs(world) == [2]
        world.clock.advance(3_600)
        await shop.publish("a", 3)
        await shop.pass_time(50)
        assert await inputs(world) == [2]
        await shop.pass_time(15)
    assert await inputs(world) == [2, 3]


async def test_window_of_a_lost_stream_ends(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def gone(_: EventDurable) -> Progress:
        raise LogUnavailable("the durable is gone")

    await world.define(JOB)
    async with listening(world, streams=(streams := Acknowledged(0))) as listener:
        shop = Shop(world, listener)
        await shop.publish("a")
        monkeypatch.setattr(streams, "progress", gone)
        await shop.pass_time(65)
    assert await inputs(world) == [2]


async def test_stream_made_again_is_read_from_its_start(world: World) -> None:
    await world.define(JOB)
    async with listening(world, streams=(streams := Acknowledged(0))) as listener:
        shop, streams.is_idle = Shop(world, listener), False
        shop.published = 900
        await shop.publish("b", 9)
        streams.sequence = 900  # that message is not acknowledged
        await shop.pass_time(61)
        shop.published, streams.sequence = 0, 0
        await shop.publish("a", 2)
        await shop.pass_time(31)
        await shop.publish("b", 8)
        streams.sequence = 2
        await shop.pass_time(5)
    assert await inputs(world) == [9, 2]


async def test_late_deliveries_start_nothing(world: World) -> None:
    await world.define(JOB)
    async with listening(world) as listener:
        shop = Shop(world, listener)
        first, last = await shop.publish("a", 2), await shop.publish("a", 3)
        await shop.deliver(last)
        await shop.pass_time(31)
        await shop.deliver(first, last)
        await shop.pass_time(100)
    assert await inputs(world) == [3]


async def test_window_of_a_lost_copy_ends(world: World) -> None:
    """A copy dies after it stored the window; another copy ends it, and a third finds nothing left."""
    await world.define(JOB)
    async with listening(world) as listener:
        await Shop(world, listener).publish("a")
    for _ in range(2):
        async with listening(world) as other:
            await Shop(world, other).pass_time(31)
    assert await inputs(world) == [2]


async def test_running_copy_finds_windows_of_a_lost_copy(world: World) -> None:
    await world.define(JOB)
    async with listening(world) as running, listening(world) as lost:
        await Shop(world, running).pass_time(1)
        await Shop(world, lost).publish("a")
        await Shop(world, running).pass_time(31)
    assert await inputs(world) == [2]


async def test_copies_that_end_a_window_request_it_once(world: World) -> None:
    await world.define(JOB)
    async with listening(world) as one, listening(world) as other:
        await Shop(world, one).publish("a")
        for listener in (one, other):
            await listener.debouncer.run_once()
        world.clock.advance(31)
        await asyncio.gather(one.debouncer.run_once(), other.debouncer.run_once())
        await Shop(world, one).pass_time(3)
    assert await inputs(world) == [2]


async def test_copies_of_the_stage_share_a_window(world: World) -> None:
    await world.define(JOB)
    async with listening(world) as one, listening(world) as other:
        shop, beside = Shop(world, one), Shop(world, other)
        early, late = shop.message("a", 2), shop.message("a", 3)
        await beside.deliver(late)
        await shop.deliver(early)
        await shop.pass_time(31)
        await beside.pass_time(31)
    assert await inputs(world) == [3]
    [record] = await ignored_events(world)
    assert (record.event.sequence, record.reason) == (1, "debounced")


async def test_window_of_a_paused_job_starts_nothing(world: World) -> None:
    await world.define(JOB)
    async with listening(world) as listener:
        shop = Shop(world, listener)
        await shop.publish("a")
        state, _ = await LedgerReader(world.log).load("invoice")
        await world.given(*ledger.pause(state, "invoice"))
        await shop.pass_time(31)
    assert await inputs(world) == []
    assert [record.reason for record in await ignored_events(world)] == ["trigger_removed"]


async def test_window_of_a_deleted_job_starts_nothing(world: World) -> None:
    """A later job of its name, perhaps of another author, does not get the event."""
    await world.define(JOB)
    async with listening(world) as listener:
        shop = Shop(world, listener)
        await shop.publish("a", 2)
        state, _ = await LedgerReader(world.log).load("invoice")
        await world.given(*ledger.delete(state, "invoice"))
        world.clock.advance(1)
        await world.define(JOB)
        await shop.pass_time(31)
        assert await inputs(world) == []
        await shop.publish("a", 3)
        await shop.pass_time(31)
    assert await inputs(world) == [3]
    assert [record.reason for record in await ignored_events(world)] == ["trigger_removed"]


async def test_event_too_large_for_a_request_is_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The input of a request may be larger than that of a message."""
    monkeypatch.setattr(debouncer, "MAX_REQUEST_SIZE", 10_000)
    await world.define({**JOB, "triggers": [{**JOB["triggers"][0], "input": {"n": "body.text"}}]})
    async with listening(world) as listener:
        shop = Shop(world, listener)
        await shop.deliver(Message(b'{"id": "a", "n": 2, "text": "%s"}' % (b"x" * 30_000), 1, world.clock.now()))
    [refused] = await triggers(world)
    assert refused.event_trigger is not None
    assert refused.event_trigger.refusal_code == "message-too-large"


async def test_webhook_that_repeats_its_body_starts_again(world: World) -> None:
    """Without a header of the delivery, equal bodies have one name."""
    trigger = {"webhook": "/hooks/shop", "input": {"n": "body.n"}, "key": "body.id", "debounce": 30}
    await world.define({**JOB, "triggers": [trigger]})
    opened = Triggers.model_validate({"webhooks": {"SECRET": ["/hooks/*"]}})
    async with listening(world, opened=opened) as listener:
        shop = Shop(world, listener)
        for n in (2, 3, 2):
            message = shop.message("a", n)
            message.headers[WEBHOOK_DELIVERY] = f"digest of {n}"
            await shop.deliver(message)
            await shop.pass_time(31)
    assert await inputs(world) == [2, 3, 2]
    assert len(set(await requested(world))) == 3


async def test_closed_window_that_a_copy_left_ends(world: World) -> None:
    """A copy dies between the close of a window and its request."""
    await world.define(JOB)
    async with listening(world) as listener:
        shop = Shop(world, listener)
        await shop.publish("a", 2)
        key = subjects.debounce_key(ids.debounce_window(shop.name, "a"))
        value, revision = await world.projections.get(Bucket.TRIGGERS, key) or (b"", 0)
        closed = debounce.Window.model_validate_json(value).model_copy(update={"is_closed": True})
        await world.projections.put(Bucket.TRIGGERS, key, closed.encode(), expect=revision)
        late = shop.message("a", 3)
        await listener.handle(shop.name, [late])
        assert late.answers == ["again after 2 s"]
        await shop.pass_time(31)
        assert await inputs(world) == [2]
        await listener.handle(shop.name, [late])
        await shop.pass_time(31)
    assert await inputs(world) == [2, 3]


async def test_damaged_window_holds_up_no_other(world: World) -> None:
    """Another copy lists the windows too. The events of the key wait until an operator deletes the entry."""
    await world.define(JOB)
    async with listening(world) as listener, listening(world) as other:
        shop = Shop(world, listener)
        await shop.publish("a", 2)
        await shop.publish("b", 3)
        key = subjects.debounce_key(ids.debounce_window(shop.name, "a"))
        _, revision = await world.projections.get(Bucket.TRIGGERS, key) or (b"", 0)
        await world.projections.put(Bucket.TRIGGERS, key, b'{"job":', expect=revision)
        late = shop.message("a", 4)
        await listener.handle(shop.name, [late])
        assert late.answers == ["again after 2 s"]
        await Shop(world, other).pass_time(31)
        assert await inputs(world) == [3]
        await shop.pass_time(31)
        await world.projections.remove(Bucket.TRIGGERS, key)
        await listener.handle(shop.name, [late])
        await shop.pass_time(31)
    assert await inputs(world) == [3, 4]


async def test_keys_of_a_trigger_are_limited(world: World) -> None:
    """Events beyond the limit stay in their stream, and open windows when others are forgotten."""
    await world.define(JOB)
    opened = OPENED.model_copy(update={"max_keys": 2})
    async with listening(world, opened=opened) as listener:
        shop = Shop(world, listener)
        await shop.publish("a", 2)
        await shop.publish("b", 3)
        late = [shop.message("c", 4), shop.message("d", 5)]
        for _ in range(3):
            await listener.handle(shop.name, late)
        assert {answer for message in late for answer in message.answers} == {"again after 60 s"}
        await shop.publish("a", 6)  # its window is open
        await shop.pass_time(61)
        assert await inputs(world) == [3, 6]
        await shop.publish("b", 7)  # its window is remembered, and counted
        await listener.handle(shop.name, late)
        await shop.pass_time(31)
        assert await inputs(world) == [3, 6, 7]
        world.clock.advance(KEPT_S + 3 * HOUR_S)
        await shop.deliver(*(replace(message, answers=[]) for message in late))
        await shop.pass_time(31)
        assert await inputs(world) == [3, 6, 7, 4, 5]
    full = [record for record in await ignored_events(world) if record.reason == "too_many_keys"]
    assert {(record.event.sequence, record.key) for record in full} == {(3, "c")}


async def test_copies_count_keys_together(world: World) -> None:
    await world.define(JOB)
    opened = OPENED.model_copy(update={"max_keys": 3})
    async with listening(world, opened=opened) as one, listening(world, opened=opened) as other:
        shop = Shop(world, one)
        messages = [shop.message(key) for key in "abcdef"]
        await asyncio.gather(one.handle(shop.name, messages[:3]), other.handle(shop.name, messages[3:]))
        for _ in range(3):
            await one.handle(shop.name, [message for message in messages if message.answers[-1:] != ["ack"]])
    assert [message.answers[-1] for message in messages].count("ack") == 3
