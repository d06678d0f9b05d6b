"""Batches of events: one execution with a list, and each event in exactly one."""

from collections.abc import Sequence
from typing import Any

import pytest

from tests.stages.test_event_listener import Message, listening, messages, triggers
from tests.stages.world import World
from tocsin.domain import ledger
from tocsin.engine.ledger_reader import LedgerReader
from tocsin.ports import WEBHOOK_DELIVERY, Delivery, LogUnavailable, Write, Written
from tocsin.settings import Triggers
from tocsin.stages.event_listener.batcher import MAX_KNOWN

TRIGGER: dict[str, Any] = {
    "nats": "orders.>",
    "when": "body.n > 1",
    "input": {"n": "body.n"},
    "batch": {"max": 3, "within": "5s"},
}
JOB = {"name": "invoice", "function": "f", "triggers": [TRIGGER]}


def orders(world: World, *numbers: int, first: int = 1) -> list[Message]:
    return [Message(b'{"n": %d}' % n, sequence, world.clock.now()) for sequence, n in enumerate(numbers, first)]


async def batches(world: World) -> list[list[Any]]:
    inputs: list[Any] = [trigger.input for trigger in await triggers(world) if trigger.input]
    return [[event["n"] for event in given["events"]] for given in inputs]


async def test_events_of_a_take_are_one_batch(world: World) -> None:
    await world.define(JOB)
    async with listening(world) as listener:
        [name] = listener.index.active
        delivered = [*orders(world, 2, 3, 1), *messages(world, "{")]
        await listener.handle(name, delivered)
    assert await batches(world) == [[2, 3]]
    assert [message.answers for message in delivered] == [["ack"]] * 4


@pytest.mark.parametrize("again", [(2, 3), (2, 3, 4), (3, 4, 5), (4, 5, 2)])
async def test_redelivered_events_are_in_one_batch(world: World, again: tuple[int, ...]) -> None:
    await world.define(JOB)
    async with listening(world) as one, listening(world) as other:
        [name] = one.index.active
        await one.handle(name, orders(world, 2, 3))
        for listener in (other, one):
            await listener.handle(name, [message for n in again for message in orders(world, n, first=n - 1)])
    assert sorted(n for batch in await batches(world) for n in batch) == sorted({2, 3, *again})


async def seal_and_die(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a copy seal a batch of 2 and 3, and die before it stores the request."""

    async def fail(writes: Sequence[Write]) -> list[Written]:
        return [Written((), LogUnavailable("no leader")) for _ in writes]

    async with listening(world) as listener:
        [name] = listener.index.active
        with monkeypatch.context() as patched:
            patched.setattr(world.log, "write", fail)
            delivered = orders(world, 2, 3)
            await listener.handle(name, delivered)
        assert [message.answers for message in delivered] == [["again after 2 s"]] * 2


async def test_sealed_batch_is_requested_after_a_crash(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await world.define(JOB)
    await seal_and_die(world, monkeypatch)
    async with listening(world) as listener:
        [name] = listener.index.active
        await listener.handle(name, [*orders(world, 3, first=2), *orders(world, 4, first=3)])
    assert await batches(world) == [[2, 3], [4]]


async def test_sealed_batch_of_deleted_job_starts_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A later job of its name, perhaps of another author, does not get its events."""
    await world.define(JOB)
    await seal_and_die(world, monkeypatch)
    again = orders(world, 2, 3)
    state, _ = await LedgerReader(world.log).load("invoice")
    await world.given(*ledger.delete(state, "invoice"))
    world.clock.advance(1)
    await world.define(JOB)
    async with listening(world) as listener:
        [name] = listener.index.active
        await listener.handle(name, [*again, *orders(world, 4, first=3)])
    assert await batches(world) == [[4]]


async def test_large_events_are_several_batches(world: World) -> None:
    trigger = {**TRIGGER, "input": {"n": "body.n", "text": "body.text"}, "batch": {"max": 10, "within": 5}}
    await world.define({**JOB, "triggers": [trigger]})
    async with listening(world) as listener:
        [name] = listener.index.active
        bodies = [b'{"n": %d, "text": "%s"}' % (n, b"x" * 30_000) for n in (2, 3, 4, 5, 6)]
        await listener.handle(name, [Message(body, n, world.clock.now()) for n, body in enumerate(bodies, 1)])
    assert await batches(world) == [[2, 3], [4, 5], [6]]


async def test_known_events_have_a_limit(world: World) -> None:
    await world.define({**JOB, "triggers": [{**TRIGGER, "batch": {"max": 500, "within": 5}}]})
    async with listening(world) as listener:
        [name] = listener.index.active
        for first in range(1, MAX_KNOWN, 500):
            await listener.handle(name, orders(world, *[2] * 500, first=first))
        delivered = orders(world, 2, first=MAX_KNOWN + 1)
        await listener.handle(name, delivered)
    assert delivered[0].answers == ["again after 2 s"]
    assert sum(map(len, await batches(world))) == MAX_KNOWN


class Reader:
    """A durable that brings a message at a time."""

    def __init__(self, world: World, interval: float) -> None:
        self.world = world
        self.interval = interval
        self.next = interval + world.clock.monotonic()
        self.taken: list[Message] = []

    async def take(self, limit: int, *, wait: float) -> Sequence[Delivery]:
        assert limit > 0
        until = self.next - self.world.clock.monotonic()
        self.world.clock.advance(min(wait, until))
        if wait < until:
            return []
        self.next += self.interval
        self.taken += orders(self.world, 2, first=len(self.taken) + 1)
        return self.taken[-1:]


@pytest.mark.parametrize(("interval", "within", "size"), [(1, 5, 3), (4, 5, 2), (6, 5, 1), (12, 30, 3)])
async def test_batch_ends_by_number_or_time(world: World, interval: float, within: float, size: int) -> None:
    await world.define({**JOB, "triggers": [{**TRIGGER, "batch": {"max": 3, "within": within}}]})
    async with listening(world) as listener:
        [active] = listener.index.active.values()
        assert len(await listener.take(active, Reader(world, interval))) == size


async def test_input_of_the_job_has_room(world: World) -> None:
    trigger = {**TRIGGER, "input": {"n": "body.n", "text": "body.text"}, "batch": {"max": 10, "within": 5}}
    await world.define({**JOB, "input": {"text": "y" * 20_000}, "triggers": [trigger]})
    async with listening(world) as listener:
        [name] = listener.index.active
        bodies = [b'{"n": %d, "text": "%s"}' % (n, b"x" * 20_000) for n in (2, 3, 4, 5, 6)]
        await listener.handle(name, [Message(body, n, world.clock.now()) for n, body in enumerate(bodies, 1)])
    assert await batches(world) == [[2, 3], [4, 5], [6]]


async def test_acknowledged_batch_is_not_requested_again(world: World) -> None:
    await world.define(JOB)
    async with listening(world) as listener:
        [name] = listener.index.active
        await listener.handle(name, orders(world, 2, 3))
    world.clock.advance(86_400)
    async with listening(world, floor=2) as listener:
        await listener.handle(name, orders(world, 4, first=3))
    assert await batches(world) == [[2, 3], [4]]


async def test_repeated_delivery_loses_no_other_event(world: World) -> None:
    """A sender repeats a delivery after its batch, together with others."""
    trigger = {"webhook": "/hooks/shop", "input": {"n": "body.n"}, "batch": {"max": 3, "within": 5}}
    await world.define({**JOB, "triggers": [trigger]})
    settings = Triggers.model_validate({"webhooks": {"SECRET": ["/hooks/*"]}})
    sent = [(1, 2, "a"), (2, 3, "b"), (3, 2, "a"), (4, 4, "c")]
    async with listening(world, floor=2, opened=settings) as listener:
        [name] = listener.index.active
        for two in (sent[:2], sent[2:]):
            requests = [
                Message(b'{"n": %d}' % n, sequence, world.clock.now(), headers={WEBHOOK_DELIVERY: delivery})
                for sequence, n, delivery in two
            ]
            await listener.handle(name, requests)
    assert await batches(world) == [[2, 3], [2, 4]]
