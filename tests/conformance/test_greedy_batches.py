"""A stage's subscription over NATS fetches the available messages immediately."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import pytest
import structlog
from faststream.nats import NatsBroker
from typing_extensions import override

from tests.conformance.worlds import NatsWorld
from tests.servers import FAST_CLIENT
from tocsin.adapters.nats.consumers import stage_router as routers
from tocsin.domain.events import Trigger
from tocsin.engine.edge import EdgeDecisions
from tocsin.engine.stage import BoundStage, BoundSubscription
from tocsin.engine.step import DONE
from tocsin.ports import Delivery, DurableSpec, acknowledge
from tocsin.subjects import Stream

FILTERS = ("trigger.>",)
TRIGGERS = DurableSpec("triggers", Stream.REQUESTS, FILTERS, ack_wait=3_600)
STAGE = BoundStage("taking", (BoundSubscription("triggers", Stream.REQUESTS, FILTERS, lambda *_: DONE),))


@dataclass
class _Taking(EdgeDecisions):
    """Passes batches on, and acknowledges them."""

    take: Callable[[Sequence[Delivery]], Awaitable[None]]

    @override
    async def apply(self, subscription: BoundSubscription, deliveries: Sequence[Delivery]) -> None:
        await self.take(deliveries)
        await acknowledge(deliveries)


def broker_of(
    nats: NatsWorld, nats_url: str, take: Callable[[Sequence[Delivery]], Awaitable[None]], *, finish_within: float = 30
) -> NatsBroker:
    broker = NatsBroker(nats_url, logger=None, apply_types=False)
    router = routers.stage_router(
        STAGE, _Taking(take), nats.names, finish_within=finish_within, fast_client=FAST_CLIENT
    )
    broker.include_router(router)
    return broker


async def publish(nats: NatsWorld, number: int) -> int:
    return await nats.log.publish("trigger.a_job", Trigger(), message_id=f"{number}")


async def test_message_after_a_pause_is_not_delayed(
    nats: NatsWorld, nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests end while nothing is there; none of them may linger and swallow a later message."""
    monkeypatch.setattr(routers, "PULL_WAIT_S", 0.2)
    await nats.durable(TRIGGERS)
    came: asyncio.Queue[int] = asyncio.Queue()

    async def take(deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            came.put_nowait(delivery.sequence)

    async with broker_of(nats, nats_url, take) as broker:
        await broker.start()
        for number in range(24):
            if number % 3 == 0:
                await asyncio.sleep(0.21)
            sequence = await publish(nats, number)
            assert await asyncio.wait_for(came.get(), 10) == sequence


async def test_missing_durable_is_reported_and_awaited(nats: NatsWorld, nats_url: str) -> None:
    """As for a stage that is new, before `tocsin init` was run again."""
    came = asyncio.Event()

    async def take(_: Sequence[Delivery]) -> None:
        came.set()

    await publish(nats, 1)
    with structlog.testing.capture_logs() as lines:
        async with broker_of(nats, nats_url, take) as broker:
            await broker.start()
            while not any(line["action"] == "durable-missing" for line in lines):  # noqa: ASYNC110 - a line of the log
                await asyncio.sleep(0.01)
            await nats.durable(TRIGGERS)
            await asyncio.wait_for(came.wait(), 10)


async def test_unfinished_messages_are_handed_back(nats: NatsWorld, nats_url: str) -> None:
    """The copies of a stage that hangs get all at once."""
    await nats.durable(TRIGGERS)
    for number in range(2 * routers.BATCH):
        await publish(nats, number)
    hangs, decided, batches = asyncio.Event(), list[int](), [1, 0, 9]

    async def take(deliveries: Sequence[Delivery]) -> None:
        if batches[0] == 0:
            hangs.set()
            await asyncio.Event().wait()
        batches[0] -= 1
        decided.extend(delivery.sequence for delivery in deliveries)

    while batches:
        hangs.clear()
        async with broker_of(nats, nats_url, take, finish_within=0.1) as broker, asyncio.timeout(20):
            await broker.start()
            while not hangs.is_set() and len(decided) < 2 * routers.BATCH:  # noqa: ASYNC110 - either ends it
                await asyncio.sleep(0.01)
            await broker.stop()
        del batches[0]
    assert sorted(decided) == [*range(1, 2 * routers.BATCH + 1)]
