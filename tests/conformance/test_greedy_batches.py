"""A stage's subscription over NATS fetches the available messages immediately."""

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import pytest
import structlog
from faststream.nats import NatsBroker
from typing_extensions import override

from tests.conformance.given import dispatched, report
from tests.conformance.worlds import World, nats_world
from tests.servers import FAST_CLIENT
from tocsin.adapters.nats.consumers import stage_router as routers
from tocsin.adapters.nats.consumers.greedy_batches import GreedyBatches
from tocsin.adapters.nats.consumers.priority import GROWTH, RUSH_SIZE, PriorityGate
from tocsin.domain.events import Message, Recorded
from tocsin.engine.delivery_policy import DeliveryPolicy, Postponed
from tocsin.engine.stage import READ_AHEAD, BoundStage, BoundSubscription
from tocsin.engine.states import StateStore
from tocsin.engine.step import DONE, Sources, States, Step, again
from tocsin.ports import Delivery, DurableSpec
from tocsin.subjects import Stream, subject_of
from tocsin.testing import ManualClock


def policy_of(world: World) -> DeliveryPolicy:
    return DeliveryPolicy(StateStore(Sources.of(world.log, world.projections, ManualClock())))


async def test_message_after_a_pause_is_not_delayed(nats_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests end while nothing is there; none of them may linger and swallow a later message."""
    monkeypatch.setattr(routers, "PULL_WAIT_S", 0.2)
    async with nats_world(nats_url) as world:
        filters = ("execution.>",)
        await world.durable(DurableSpec("patient", Stream.LOG, filters))
        came: asyncio.Queue[int] = asyncio.Queue()

        def decide(recorded: Recorded[Message], _: States, __: datetime) -> Step:
            came.put_nowait(recorded.sequence)
            return DONE

        stage = BoundStage("patient", (BoundSubscription("patient", Stream.LOG, filters, decide),))
        broker = NatsBroker(nats_url, logger=None, apply_types=False)
        broker.include_router(
            routers.stage_router(stage, policy_of(world), world.names, marks=world.marks, fast_client=FAST_CLIENT)
        )
        async with broker:
            await broker.start()
            for round_ in range(8):
                await asyncio.sleep(0.21)
                for n in range(3):
                    sequence = await world.log.append(dispatched(f"e{round_}-{n}"), expect=0)
                    assert await asyncio.wait_for(came.get(), 10) == sequence


async def test_missing_durable_is_reported_and_awaited(nats_url: str) -> None:
    """As for a stage that is new, before `tocsin init` was run again."""
    filters = ("execution.>",)
    came = asyncio.Event()

    def decide(_: Recorded[Message], __: States, ___: datetime) -> Step:
        came.set()
        return DONE

    async with nats_world(nats_url) as world:
        await world.log.append(dispatched("e1"), expect=0)
        stage = BoundStage("late", (BoundSubscription("late", Stream.LOG, filters, decide),))
        broker = NatsBroker(nats_url, logger=None, apply_types=False)
        broker.include_router(
            routers.stage_router(stage, policy_of(world), world.names, marks=world.marks, fast_client=FAST_CLIENT)
        )
        with structlog.testing.capture_logs() as said:
            async with broker:
                await broker.start()
                while not said:  # noqa: ASYNC110 - what is waited for is a line of the log
                    await asyncio.sleep(0.01)
                assert said[0]["action"] == "durable-missing"
                await world.durable(DurableSpec("late", Stream.LOG, filters))
                await asyncio.wait_for(came.wait(), 10)


async def test_low_priority_follows_other_messages_of_a_batch(nats_url: str) -> None:
    heard: list[str] = []
    came: asyncio.Queue[None] = asyncio.Queue()

    def decide(recorded: Recorded[Message], _: States, __: datetime) -> Step:
        heard.append(type(recorded.message).__name__)
        came.put_nowait(None)
        return DONE

    async with nats_world(nats_url) as world:
        stage = BoundStage(
            "both",
            (
                BoundSubscription("waiting", Stream.REPORTS, ("report.>",), decide, low_priority=True),
                BoundSubscription("first", Stream.LOG, ("execution.>",), decide),
            ),
        )
        for subscription in stage.subscriptions:
            await world.durable(DurableSpec(subscription.durable, subscription.stream, subscription.filters))
        await world.log.publish(subject_of(report()), report(), message_id="report")
        precedence = PriorityGate(patience=1e9)
        broker = NatsBroker(nats_url, logger=None, apply_types=False)
        broker.include_router(
            routers.stage_router(
                stage,
                policy_of(world),
                world.names,
                marks=world.marks,
                precedence=precedence,
                fast_client=FAST_CLIENT,
            )
        )
        async with broker:
            with precedence.rush():
                await broker.start()
                for number in range(5):
                    await world.log.append(dispatched(f"e{number}"), expect=0)
                    await asyncio.wait_for(came.get(), 10)
            await asyncio.wait_for(came.get(), 10)
        assert heard == ["Dispatched"] * 5 + ["Report"]


def _waits(seen: list[str]) -> Callable[[Recorded[Message], States, datetime], Step]:
    """A decision whose second step can wait; it records both."""
    begun: set[int] = set()

    def decide(recorded: Recorded[Message], states: States, now: datetime) -> Step:
        del states, now
        seen.append("second" if recorded.sequence in begun else "first")
        if recorded.sequence in begun:
            return DONE
        begun.add(recorded.sequence)
        return again(low_priority=True)

    return decide


async def test_low_priority_waits_for_its_growing_backlog(nats_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if other processes started executions: each time that the backlog is measured, it has grown."""
    grown = 3
    handled: list[int] = []

    def decide(recorded: Recorded[Message], _: States, __: datetime) -> Step:
        handled.append(recorded.sequence)
        return DONE

    async with nats_world(nats_url) as world:
        subscription = BoundSubscription("ends", Stream.LOG, ("execution.>",), decide, low_priority=True)
        await world.durable(DurableSpec(subscription.durable, Stream.LOG, subscription.filters))
        sizes: list[int] = []
        backlog = GreedyBatches._backlog

        async def measured(batches: GreedyBatches) -> int:
            if len(sizes) < grown:
                for number in range(GROWTH):
                    await world.log.append(dispatched(f"e{len(sizes)}-{number}"), expect=0)
            assert handled == []
            sizes.append(await backlog(batches))
            return sizes[-1]

        monkeypatch.setattr(GreedyBatches, "_backlog", measured)
        for number in range(RUSH_SIZE):
            await world.log.append(dispatched(f"e{number}"), expect=0)
        broker = NatsBroker(nats_url, logger=None, apply_types=False)
        stage = BoundStage("test", (subscription,))
        broker.include_router(
            routers.stage_router(stage, policy_of(world), world.names, marks=world.marks, fast_client=FAST_CLIENT)
        )
        async with broker:
            await broker.start()
            await _until(lambda: len(handled) == RUSH_SIZE + grown * GROWTH)
            await broker.stop()
        assert sizes == [GROWTH, 2 * GROWTH, 3 * GROWTH, 3 * GROWTH]


@pytest.mark.parametrize("ends", ["calm", "stop"])
async def test_postponed_messages_are_settled(nats_url: str, ends: str) -> None:
    async with nats_world(nats_url) as world:
        seen: list[str] = []
        subscription = BoundSubscription("rush", Stream.LOG, ("execution.>",), _waits(seen))
        durable = await world.durable(DurableSpec(subscription.durable, Stream.LOG, subscription.filters))
        for number in range(RUSH_SIZE):
            await world.log.append(dispatched(f"e{number}"), expect=0)
        gate = PriorityGate(patience=1e9)
        broker = NatsBroker(nats_url, logger=None, apply_types=False)
        stage = BoundStage("test", (subscription,))
        broker.include_router(
            routers.stage_router(
                stage,
                policy_of(world),
                world.names,
                marks=world.marks,
                precedence=gate,
                fast_client=FAST_CLIENT,
            )
        )
        async with broker:
            with gate.rush():
                await broker.start()
                await _until(lambda: len(seen) >= RUSH_SIZE)
                await asyncio.sleep(0.1)
                assert seen == ["first"] * RUSH_SIZE
                if ends == "stop":
                    await broker.stop()
            await _until(lambda: len(seen) == 2 * RUSH_SIZE)
            assert seen[RUSH_SIZE:] == ["second"] * RUSH_SIZE
            await broker.stop()
        assert not await durable.take(RUSH_SIZE, wait=0.2)


async def _until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not holds():  # noqa: ASYNC110 - the stage does not signal
            await asyncio.sleep(0.01)


class _Hanging(DeliveryPolicy):
    """Decides some batches, and hangs in the next."""

    batches: int
    hangs: asyncio.Event

    @override
    async def apply(
        self, subscription: BoundSubscription, deliveries: Sequence[Delivery], **options: Any
    ) -> Postponed | None:
        if self.batches == 0:
            self.hangs.set()
            await asyncio.Event().wait()
        self.batches -= 1
        return await super().apply(subscription, deliveries, **options)


@pytest.mark.parametrize(("read_ahead", "held"), [(READ_AHEAD, 3), (routers.BATCH, 2)])
async def test_messages_read_ahead_are_handed_back(read_ahead: int, held: int, nats_url: str) -> None:
    """A stage that hangs in its second batch has read ahead; the next copy gets all at once, and reads nothing ahead.

    `held`: the batches that the first copy gets. The subscription leaves the rest to other copies.
    """
    decided = list[int]()

    def decide(recorded: Recorded[Message], _: States, __: datetime) -> Step:
        decided.append(recorded.sequence)
        return DONE

    async with nats_world(nats_url) as world:
        subscription = BoundSubscription(
            "fair", Stream.LOG, ("execution.>",), decide, takes_turns=True, read_ahead=read_ahead
        )
        await world.durable(DurableSpec("fair", Stream.LOG, subscription.filters, ack_wait=3_600))
        for number in range(3 * routers.BATCH):
            await world.log.append(dispatched(f"e{number}"), expect=0)
        delivered = list[int]()
        for batches in (1, 0, 9):
            policy = _Hanging(StateStore(Sources.of(world.log, world.projections, ManualClock())))
            policy.batches, policy.hangs = batches, asyncio.Event()
            broker = NatsBroker(nats_url, logger=None, apply_types=False)
            stage = BoundStage("test", (subscription,))
            broker.include_router(
                routers.stage_router(
                    stage, policy, world.names, marks=world.marks, finish_within=0.1, fast_client=FAST_CLIENT
                )
            )
            async with broker:
                await broker.start()
                if batches == 9:
                    await _until(lambda: len(decided) == 3 * routers.BATCH)
                else:
                    await asyncio.wait_for(policy.hangs.wait(), 10)
                    info = await world.connection.manage(f"CONSUMER.INFO.{world.names.stream(Stream.LOG)}.fair")
                    delivered.append(int(info["delivered"]["consumer_seq"]))
                await broker.stop()
        assert delivered == [held * routers.BATCH, (held + 1) * routers.BATCH]
        assert len(set(decided)) == 3 * routers.BATCH


class _Slow(DeliveryPolicy):
    """Takes long for the first batch, and notes the number of messages of each."""

    sizes: list[int]

    @override
    async def apply(
        self, subscription: BoundSubscription, deliveries: Sequence[Delivery], **options: Any
    ) -> Postponed | None:
        if not self.sizes:
            await asyncio.sleep(1.5)
        self.sizes.append(len(deliveries))
        return await super().apply(subscription, deliveries, **options)


async def test_batch_after_a_slow_batch_is_full(nats_url: str) -> None:
    """The time of a batch on a slow disk hardly depends on its size, so shorter batches would handle less in all."""
    decided = list[str]()

    def decide(recorded: Recorded[Message], _: States, __: datetime) -> Step:
        decided.append(recorded.subject)
        return DONE

    async with nats_world(nats_url) as world:
        subscription = BoundSubscription("fair", Stream.LOG, ("execution.>",), decide, takes_turns=True)
        await world.durable(DurableSpec("fair", Stream.LOG, subscription.filters, ack_wait=3_600))
        for number in range(2 * routers.BATCH):
            await world.log.append(dispatched(f"e{number}"), expect=0)
        policy = _Slow(StateStore(Sources.of(world.log, world.projections, ManualClock())))
        policy.sizes = []
        broker = NatsBroker(nats_url, logger=None, apply_types=False)
        stage = BoundStage("test", (subscription,))
        broker.include_router(
            routers.stage_router(stage, policy, world.names, marks=world.marks, fast_client=FAST_CLIENT)
        )
        async with broker:
            await broker.start()
            await _until(lambda: len(decided) == 2 * routers.BATCH)
            await broker.stop()
    assert policy.sizes[:2] == [routers.BATCH, routers.BATCH]
