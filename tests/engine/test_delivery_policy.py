"""The outcome of a delivered message."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.domain.given import JOB, admitted
from tests.stages.world import World
from tocsin import subjects
from tocsin.domain.events import Message, PoisonMessage, Recorded
from tocsin.engine.delivery_policy import MAX_FAILURES, DeliveryPolicy
from tocsin.engine.stage import BoundStage, BoundSubscription
from tocsin.ports import LogUnavailable, SequenceConflict
from tocsin.subjects import Stream

Errors = Sequence[Exception | None]


class Scripted:
    """A handler with a scripted result for each message."""

    def __init__(self, *errors: Exception | None) -> None:
        self.errors = list(errors)
        self.handled: list[int] = []

    async def __call__(self, recorded: Recorded[Message]) -> None:
        self.handled.append(recorded.sequence)
        error = self.errors.pop(0) if self.errors else None
        if error is not None:
            raise error

    @property
    def stage(self) -> BoundStage:
        return BoundStage("scripted", (self.subscription,))

    @property
    def subscription(self) -> BoundSubscription:
        return BoundSubscription("scripted", Stream.LOG, ("execution.>",), self)


def execution(number: int, execution_id: str | None = None) -> Message:
    return admitted().model_copy(update={"execution_id": execution_id or str(number)})


async def test_what_is_handled_is_acknowledged(world: World) -> None:
    handler = Scripted()
    await world.given(execution(1))
    await world.run(handler.stage)
    assert (handler.handled, world.pending) == ([1], 0)


async def test_a_conflict_is_handled_again_at_once(world: World) -> None:
    handler = Scripted(SequenceConflict(), SequenceConflict())
    await world.given(execution(1))
    await world.handle(handler.subscription)
    assert (handler.handled, world.pending) == ([1, 1, 1], 0)


async def test_a_conflict_that_lasts_comes_again_later(world: World) -> None:
    handler = Scripted(*[SequenceConflict()] * 6)
    await world.given(execution(1))
    await world.handle(handler.subscription)
    assert (len(handler.handled), world.pending) == (6, 1)
    world.clock.advance(1)
    await world.handle(handler.subscription)
    assert (len(handler.handled), world.pending) == (7, 0)


async def test_unavailable_log_condemns_no_message(world: World) -> None:
    handler = Scripted(*[LogUnavailable("no answer")] * 20)
    await world.given(execution(1))
    for _ in range(21):
        await world.handle(handler.subscription)
        world.clock.advance(5)
    assert world.pending == 0
    assert await world.stored(PoisonMessage) == []


async def test_undecodable_message_becomes_a_dead_letter_with_bytes(world: World) -> None:
    handler = Scripted()
    world.log.receive("execution.nightly.1.admitted", b"\xff\x00")
    await world.run(handler.stage)
    [letter] = await refused(world)
    assert (letter.body, letter.subject, letter.sequence) == ("/wA=", "execution.nightly.1.admitted", 1)
    assert (handler.handled, world.pending) == ([], 0)


async def test_message_with_a_failing_handler_becomes_dead_letter(world: World) -> None:
    handler = Scripted(*[ValueError("a bug")] * MAX_FAILURES)
    await world.given(execution(1))
    for _ in range(MAX_FAILURES):
        await world.handle(handler.subscription)
        world.clock.advance(60)
    [letter] = await world.stored(PoisonMessage)
    assert (letter.reason, letter.job, letter.durable) == ("ValueError: a bug", JOB, "scripted")
    assert len(handler.handled) == MAX_FAILURES
    assert world.pending == 0


async def test_a_crash_of_the_process_condemns_no_message(world: World) -> None:
    """Redelivery alone counts nothing: the delivery number only separates suspects."""
    handler = Scripted()
    await world.given(execution(1))
    for _ in range(20):
        await world.durable(handler.subscription).take(10, wait=0)
        world.clock.advance(31)
    await world.handle(handler.subscription)
    assert (handler.handled, world.pending) == ([1], 0)


async def test_messages_of_one_entity_wait_for_a_failure(world: World) -> None:
    handler = Scripted(ValueError("not now"))
    first = admitted()
    await world.given(first)
    world.log.receive(subjects.subject_of(first).replace("admitted", "planned"), b"{}")
    await world.given(execution(3, "other"))
    await world.handle(handler.subscription)
    assert handler.handled == [1, 3]
    world.clock.advance(1)
    await world.handle(handler.subscription)
    assert handler.handled[:3] == [1, 3, 1]


async def test_different_entities_are_handled_concurrently(world: World) -> None:
    met = asyncio.Barrier(3)

    async def meet(_: Recorded[Message]) -> None:
        await met.wait()

    await world.given(*(execution(n) for n in range(3)))
    subscription = BoundSubscription("meeting", Stream.LOG, ("execution.>",), meet)
    await asyncio.wait_for(world.handle(subscription), 5)
    assert world.pending == 0


async def test_batch_is_prepared_without_poison_messages(
    world: World,
) -> None:
    handler, prepared = Scripted(), list[list[int]]()

    async def prepare(several: Sequence[Recorded[Message]]) -> None:
        assert not handler.handled
        prepared.append([recorded.sequence for recorded in several])

    subscription = replace(handler.subscription, prepare=prepare)
    await world.given(execution(1), execution(2))
    world.log.receive(f"execution.{JOB}.3.admitted", b"{")
    deliveries = await world.durable(subscription).take(256, wait=0)
    await world.outcomes.apply(subscription, deliveries)
    assert (prepared, handler.handled) == ([[1, 2]], [1, 2])
    assert len(await world.stored(PoisonMessage)) == 1


@pytest.mark.parametrize("error", [LogUnavailable(), SequenceConflict(), RuntimeError("a defect")])
async def test_failed_preparation_does_not_stop_handling(world: World, error: Exception) -> None:
    handler = Scripted()

    async def prepare(_: Sequence[Recorded[Message]]) -> None:
        raise error

    await world.given(execution(1))
    await world.handle(replace(handler.subscription, prepare=prepare))
    assert (handler.handled, world.pending) == ([1], 0)


async def test_stored_dead_letter_is_not_stored_again(world: World) -> None:
    world.log.receive("execution.nightly.1.admitted", b"no")
    durable = world.durable(Scripted().subscription)
    slow = await durable.take(10, wait=0)
    world.clock.advance(31)
    await DeliveryPolicy(world.log).apply(Scripted().subscription, await durable.take(10, wait=0))
    await DeliveryPolicy(world.log).apply(Scripted().subscription, slow)
    assert len(await refused(world)) == 1


async def refused(world: World) -> list[PoisonMessage]:
    return [r.message for r in await world.log.read("dead-letter.>") if isinstance(r.message, PoisonMessage)]
