"""The event listener: a message is acknowledged after its request is stored, and makes the same request each time."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import compress
from operator import not_
from typing import Any, cast

import pytest
from typing_extensions import override

from tests.domain.given import KEY
from tests.stages.world import World
from tocsin import subjects
from tocsin.adapters.nats.client.connection import Connection
from tocsin.adapters.nats.client.names import Names
from tocsin.adapters.nats.event_streams import NatsEventStreams
from tocsin.domain.events import Admitted, EventIgnored, Paused, Resumed, Trigger
from tocsin.ports import (
    WEBHOOK_DELIVERY,
    WEBHOOK_PATH,
    WEBHOOK_REGISTRATION,
    EventDurable,
    Loaded,
    LogUnavailable,
    MessageTooLarge,
    Progress,
    Publish,
    Write,
    Written,
    acknowledge_each,
)
from tocsin.settings import Settings, Triggers
from tocsin.stages.event_listener.batcher import Batcher
from tocsin.stages.event_listener.debouncer import Debouncer
from tocsin.stages.event_listener.read_progress import ReadProgress
from tocsin.stages.event_listener.stage import EventListener, TriggerMetrics
from tocsin.stages.event_listener.trigger_index import TriggerIndex
from tocsin.stages.event_listener.waiting_room import WaitingRoom

TRIGGER = {"nats": "orders.>", "when": "body.n > 1", "key": "body.id"}
OPENED = Triggers(streams={"ORDERS": ("orders.>",)}, webhooks={"SECRET": ("/hooks/shop",)})
MAX_JOBS = 2
"""Jobs with metrics of their own."""
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
JOB = {"name": "invoice", "function": "f", "triggers": [TRIGGER]}


@dataclass
class Message:
    """A delivery of a stream of another program."""

    body: bytes
    sequence: int
    time: datetime
    subject: str = "orders.new"
    headers: dict[str, str] = field(default_factory=dict)
    message_id: str | None = None
    delivered: int = 1
    answers: list[str] = field(default_factory=list)

    async def ack(self) -> None:
        self.answers.append("ack")

    async def nak(self, delay: float) -> None:
        self.answers.append(f"again after {delay:g} s")

    async def in_progress(self) -> None: ...

    @staticmethod
    async def ack_many(deliveries: Sequence[Any]) -> None:
        await acknowledge_each(deliveries)


class Acknowledged(NatsEventStreams):
    """Streams whose messages are acknowledged up to a sequence; they are not read."""

    def __init__(self, sequence: int) -> None:
        super().__init__(cast("Connection", None), Names())
        self.sequence = sequence
        self.is_idle = True

    @override
    async def progress(self, durable: EventDurable) -> Progress:
        return Progress(self.sequence, self.is_idle)


@asynccontextmanager
async def listening(
    world: World, floor: int = 0, opened: Triggers = OPENED, streams: Acknowledged | None = None
) -> AsyncIterator[EventListener]:
    """A listener that knows the triggers; its durables are not read.

    `floor`: the sequence up to which their messages are acknowledged. `opened`: what the settings open. `streams`: in place of `floor`.
    """
    streams = streams or Acknowledged(floor)
    index = TriggerIndex(world.log, world.clock, streams, Settings(triggers=opened))
    progress = ReadProgress(streams, index, world.clock)
    debouncer = Debouncer(world.log, world.projections, world.clock, KEY, progress, max_keys=opened.max_keys)
    batcher = Batcher(world.log, streams, world.projections, KEY)
    metrics = TriggerMetrics(max_jobs=MAX_JOBS)
    room = WaitingRoom(world.clock, lambda: world.parts.fold)
    listener = EventListener(
        world.log, streams, index, debouncer, batcher, world.clock, KEY, metrics=metrics, room=room
    )
    following = asyncio.create_task(index.follow())
    try:
        await index.current()
        yield listener
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


async def triggers(world: World) -> list[Trigger]:
    """The stored requests."""
    stored = await world.log.read(subjects.trigger("invoice"))
    return [each.message for each in stored if isinstance(each.message, Trigger)]


async def ignored_events(world: World, job: str = "invoice") -> list[EventIgnored]:
    """The records of events that started nothing."""
    stored = await world.log.read(subjects.ignored_events(job))
    return [each.message for each in stored if isinstance(each.message, EventIgnored)]


async def requested(world: World) -> list[str | None]:
    """Their keys."""
    return [trigger.idempotency_key for trigger in await triggers(world)]


def messages(world: World, *bodies: str) -> list[Message]:
    return [Message(body.encode(), number, world.clock.now()) for number, body in enumerate(bodies, 1)]


async def test_redelivered_message_makes_one_request(world: World) -> None:
    await world.define(JOB)
    async with listening(world) as listener:
        [name] = listener.index.active
        for _ in range(2):
            delivered = messages(world, '{"n": 2, "id": "a"}', '{"n": 1, "id": "b"}', '{"n": 3, "id": "a"}', "{")
            await listener.handle(name, delivered)
            assert [message.answers for message in delivered] == [["ack"]] * 4
    first, second, third = await requested(world)
    assert (first, second) == ("a", "a")  # the planner finds the second to be a duplicate
    assert third not in {None, "a"}  # that of the message that is not JSON


async def test_unreadable_object_outside_of_the_prefix_starts_nothing(world: World) -> None:
    await world.define({**JOB, "triggers": [{"object": "up/in/"}]})
    async with listening(world, opened=OPENED.model_copy(update={"objects": ("up",)})) as listener:
        [name] = listener.index.active
        for place in ("out/a", "in/a"):
            token = base64.urlsafe_b64encode(place.encode()).decode()
            [message] = messages(world, "{")
            await listener.handle(name, [replace(message, subject=f"$O.up.M.{token}")])
    [trigger] = await triggers(world)
    assert trigger.event_trigger is not None
    assert trigger.event_trigger.refusal_code == "unreadable-event"
    assert trigger.event_trigger.subject.endswith("aW4vYQ==")


async def test_request_to_a_deleted_job_starts_nothing(world: World) -> None:
    """A later job of its name, perhaps of another author, does not get it."""
    await world.define({"name": "invoice", "function": "f", "triggers": [{"webhook": "/hooks/shop"}]})
    async with listening(world) as listener:
        [name] = listener.index.active
        registered = world.clock.now()
        times = {"old": (registered - timedelta(days=1)).isoformat(), "new": registered.isoformat(), "bare": None}
        delivered = messages(world, *("{}" for _ in times))
        for message, (delivery, time) in zip(delivered, times.items(), strict=True):
            message.headers = {WEBHOOK_PATH: "/hooks/shop", WEBHOOK_DELIVERY: delivery}
            message.headers |= {} if time is None else {WEBHOOK_REGISTRATION: time}
        await listener.handle(name, delivered)
        assert [message.answers for message in delivered] == [["ack"]] * 3
    assert await requested(world) == ["new", "bare"]


@pytest.mark.parametrize(
    ("headers", "expected"),
    [({"traceparent": TRACE}, TRACE), ({"Traceparent": TRACE}, TRACE), ({"traceparent": "00-zz"}, None), ({}, None)],
)
async def test_trace_of_an_event_is_continued(world: World, headers: dict[str, str], expected: str | None) -> None:
    await world.define(JOB)
    async with listening(world) as listener:
        [name] = listener.index.active
        [message] = messages(world, '{"n": 2, "id": "a"}')
        message.headers = headers
        await listener.handle(name, [message])
    [trigger] = await triggers(world)
    assert trigger.traceparent == expected


async def test_duplicate_is_recorded_once(world: World) -> None:
    await world.define({**JOB, "overlap_policy": "allow"})
    async with listening(world) as listener:
        [name] = listener.index.active
        bodies = ('{"n": 2, "id": "a"}', '{"n": 1, "id": "a"}', '{"n": 3, "id": "a"}')
        for _ in range(2):
            await listener.handle(name, messages(world, *bodies))
            await world.run(world.planner)
    [ignored] = await ignored_events(world)
    assert (ignored.event.stream, ignored.event.sequence, ignored.event.subject) == ("ORDERS", 3, "orders.new")
    assert (ignored.reason, ignored.key, ignored.trigger_id) == ("duplicate", "a", name)
    [admitted] = await world.stored(Admitted)
    assert admitted.execution_id == ignored.execution_id
    assert admitted.event is not None
    assert admitted.event.sequence == 1


async def test_false_conditions_are_recorded_with_record_all(world: World) -> None:
    await world.define({**JOB, "triggers": [{**TRIGGER, "record": "all"}]})
    async with listening(world) as listener:
        [name] = listener.index.active
        for _ in range(2):
            [message, _] = delivered = messages(world, '{"n": 1, "id": "a"}', '{"n": 2, "id": "b"}')
            await listener.handle(name, delivered)
            assert message.answers == ["ack"]
    [ignored] = await ignored_events(world)
    assert (ignored.event.sequence, ignored.reason) == (1, "condition_false")
    assert len(await triggers(world)) == 1


async def test_longest_texts_of_an_event_fit_a_record(world: World) -> None:
    await world.define({**JOB, "name": "j" * 255, "triggers": [{**TRIGGER, "record": "all"}]})
    async with listening(world) as listener:
        [name] = listener.index.active
        [message] = delivered = messages(world, '{"n": 1}')
        message.subject = "orders." + "\u2028" * 2_000
        await listener.handle(name, delivered)
        assert message.answers == ["ack"]
    assert len(await ignored_events(world, "j" * 255)) == 1


async def test_message_without_room_keeps_those_after_it(world: World) -> None:
    await world.define(JOB)
    async with listening(world) as listener:
        [name] = listener.index.active
        bodies = ('{"n": 1}', "{", '{"n": 2, "id": "a"}', '{"n": 1}', '{"n": 2, "id": "b"}', '{"n": 1}')
        delivered = messages(world, *bodies)
        kept = await listener.handle(name, delivered, room=0)
        assert [message.sequence for message in kept] == [3, 4, 5, 6]  # the others start nothing
        assert await listener.handle(name, kept, room=0) == kept
        kept = await listener.handle(name, kept, room=1)
        assert [message.sequence for message in kept] == [5, 6]
        assert not await listener.handle(name, kept, room=1)
        assert [message.answers for message in delivered] == [["ack"]] * 6
    assert [key for key in await requested(world) if key in {"a", "b"}] == ["a", "b"]


async def test_message_is_not_acknowledged_before_its_request(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await world.define(JOB)

    async def fail(writes: Sequence[Write]) -> list[Written]:
        return [Written((), LogUnavailable("no leader")) for _ in writes]

    async with listening(world) as listener:
        [name] = listener.index.active
        delivered = messages(world, '{"n": 2, "id": "a"}', '{"n": 1}')
        with monkeypatch.context() as patched:
            patched.setattr(world.log, "write", fail)
            await listener.handle(name, delivered)
        assert [message.answers for message in delivered] == [["again after 2 s"], ["ack"]]
        await listener.handle(name, messages(world, '{"n": 2, "id": "a"}'))
    assert await requested(world) == ["a"]


async def test_refused_request_is_recorded_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server may take smaller messages than the input of an event."""
    await world.define({**JOB, "triggers": [{"nats": "orders.>", "input": {"id": "body.id"}, "key": "body.id"}]})
    write = world.log.write

    async def refuse_large(writes: Sequence[Write]) -> list[Written]:
        are_large = [len(each.message.encode()) > 1_000 for each in writes if isinstance(each, Publish)]
        stored = iter(await write([*compress(writes, map(not_, are_large))]))
        refused = Written((), MessageTooLarge.of("trigger.invoice", 2_000, 1_000))
        return [refused if is_large else next(stored) for is_large in are_large]

    monkeypatch.setattr(world.log, "write", refuse_large)
    async with listening(world) as listener:
        [name] = listener.index.active
        for _ in range(2):
            delivered = messages(world, '{"id": "a"}', json.dumps({"id": "\u2028" * 255}), '{"id": "b"}')
            await listener.handle(name, delivered)
            assert [message.answers for message in delivered] == [["ack"]] * 3
    codes = [trigger.event_trigger and trigger.event_trigger.refusal_code for trigger in await triggers(world)]
    assert codes == [None, None, "message-too-large"]


async def test_longest_reason_fits_a_request(world: World) -> None:
    await world.define({**JOB, "triggers": [{"nats": "orders.>", "input": {"k" * 300_000: "body.id"}}]})
    async with listening(world) as listener:
        [name] = listener.index.active
        [message] = delivered = messages(world, "{}")
        await listener.handle(name, delivered)
    assert message.answers == ["ack"]
    [trigger] = await triggers(world)
    assert trigger.event_trigger is not None
    assert trigger.event_trigger.refusal_code == "evaluation-failed"


async def test_ledgers_without_triggers_are_not_read(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = {"invoice": await world.define(JOB), "plain": await world.define({"name": "plain", "function": "f"})}
    await world.given(*(Paused(job=job, definition=sequence) for job, sequence in jobs.items()))
    loaded: list[str] = []
    load_each = world.log.load_each

    async def counting(*scopes: str) -> Loaded:
        loaded.extend(scopes)
        return await load_each(*scopes)

    monkeypatch.setattr(world.log, "load_each", counting)
    async with listening(world) as listener:
        assert not listener.index.active
        await world.given(*(Resumed(job=job, definition=sequence) for job, sequence in jobs.items()))
        await listener.index.current()
        assert [active.job for active in listener.index.active.values()] == ["invoice"]
    assert set(loaded) == {subjects.ledger("invoice")}


async def test_message_of_a_lost_trigger_is_handed_back(world: World) -> None:
    await world.define(JOB)
    async with listening(world) as listener:
        [message] = delivered = messages(world, '{"n": 2, "id": "a"}')
        await listener.handle("another", delivered)
        assert message.answers == ["again after 2 s"]
    assert await requested(world) == []
