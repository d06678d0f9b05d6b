"""The outcome of a delivered message."""

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from io import StringIO
from typing import Any

import pytest

from tests.domain.given import JOB, admitted
from tests.guards import guarded
from tests.stages.world import World
from tocsin import subjects, telemetry
from tocsin.domain.events import Message, PoisonMessage, Recorded
from tocsin.engine import items
from tocsin.engine.delivery_policy import MAX_FAILURES, DeliveryPolicy
from tocsin.engine.kinds import execution_state
from tocsin.engine.stage import BoundStage, BoundSubscription
from tocsin.engine.step import DONE, Known, States, Step, again, done, refuse
from tocsin.engine.waves import CONFLICT_LIMIT
from tocsin.ports import LogUnavailable, MessageTooLarge, SequenceConflict, Write, Written
from tocsin.subjects import Stream


class Scripted:
    """A decision with a scripted error, or none, for each call."""

    def __init__(self, *errors: Exception | None) -> None:
        self.errors = list(errors)
        self.handled: list[int] = []

    def __call__(self, recorded: Recorded[Message], states: States, now: datetime) -> Step:
        del states, now
        self.handled.append(recorded.sequence)
        error = self.errors.pop(0) if self.errors else None
        if error is not None:
            raise error
        return DONE

    @property
    def stage(self) -> BoundStage:
        return BoundStage("scripted", (self.subscription,))

    @property
    def subscription(self) -> BoundSubscription:
        return BoundSubscription("scripted", Stream.LOG, ("execution.>",), self)


def execution(number: int, execution_id: str | None = None) -> Message:
    return admitted().changed(execution_id=execution_id or str(number))


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
    tries = 2 * (CONFLICT_LIMIT + 1)  # among others, and then alone
    handler = Scripted(*[SequenceConflict()] * tries)
    await world.given(execution(1))
    await world.handle(handler.subscription)
    assert (len(handler.handled), world.pending) == (tries, 1)
    world.clock.advance(1)
    await world.handle(handler.subscription)
    assert (len(handler.handled), world.pending) == (tries + 1, 0)


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
    world.log.receive("execution.nightly.1.admitted", b"\xff\x00", headers=guarded("execution.nightly.1.admitted"))
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


@pytest.mark.parametrize("fault", ["reads", "steps"])
async def test_endless_decision_makes_no_dead_letter(world: World, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(items, "MAX_STEPS", 100)
    most = 10_000

    def decide(_: Recorded[Message], states: States, __: datetime) -> Step:
        if fault == "steps":
            return again() if most else DONE
        for number in range(most):
            states(execution_state(JOB, str(number)))
        return DONE

    subscription = BoundSubscription("endless", Stream.LOG, ("execution.>",), decide)
    await world.given(execution(1))
    for _ in range(2 * MAX_FAILURES):
        assert await world.handle(subscription) == 1
        world.clock.advance(60)
    assert await world.stored(PoisonMessage) == []
    most = 0
    await world.handle(subscription)
    assert world.pending == 0


async def test_decision_too_large_is_refused_at_once(world: World) -> None:
    handler = Scripted(MessageTooLarge.of("a.subject", 2_000_000, 1_048_576))
    await world.given(execution(1))
    await world.handle(handler.subscription)
    [letter] = await world.stored(PoisonMessage)
    assert (letter.code, letter.job) == ("message-too-large", JOB)
    assert (handler.handled, world.pending) == ([1], 0)


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
    planned = subjects.subject_of(first).replace("admitted", "planned")
    world.log.receive(planned, b"{}", headers=guarded(planned))
    await world.given(execution(3, "other"))
    await world.handle(handler.subscription)
    assert handler.handled == [1, 3]
    world.clock.advance(1)
    await world.handle(handler.subscription)
    assert handler.handled[:3] == [1, 3, 1]


async def test_batch_is_learned_without_poison_messages(world: World) -> None:
    handler, learned = Scripted(), list[int]()

    def learn(recorded: Recorded[Message]) -> Sequence[Known]:
        assert not handler.handled
        learned.append(recorded.sequence)
        return ()

    subscription = replace(handler.subscription, learn=learn)
    await world.given(execution(1), execution(2))
    world.log.receive(f"execution.{JOB}.3.admitted", b"{", headers=guarded(f"execution.{JOB}.3.admitted"))
    await world.handle(subscription)
    assert (learned, handler.handled) == ([1, 2], [1, 2])
    assert len(await world.stored(PoisonMessage)) == 1


@pytest.mark.parametrize("error", [LogUnavailable(), SequenceConflict(), RuntimeError("a defect")])
async def test_failed_learning_does_not_stop_handling(world: World, error: Exception) -> None:
    handler = Scripted()

    def learn(_: Recorded[Message]) -> Sequence[Known]:
        raise error

    await world.given(execution(1))
    await world.handle(replace(handler.subscription, learn=learn))
    assert (handler.handled, world.pending) == ([1], 0)


async def test_postponed_messages_give_their_signals(world: World) -> None:
    signals = list[object]()

    def decide(recorded: Recorded[Message], states: States, now: datetime) -> Step:
        del states, now
        handled.append(recorded.sequence)
        if len(handled) == 1:
            return again(signals=("first",), low_priority=True)
        return done(signals=("second",))

    handled = list[int]()
    subscription = replace(Scripted().subscription, decide=decide, on_signal=signals.append)
    await world.given(execution(1))
    deliveries = await world.durable(subscription).take(256, wait=0)
    postponed = await world.outcomes.apply(subscription, deliveries, is_rush=True)
    assert postponed is not None
    assert (signals, world.pending) == (["first"], 1)
    await world.outcomes.finish(postponed)
    assert (signals, world.pending) == (["first", "second"], 0)


async def test_batch_is_acknowledged_at_once_after_its_decisions(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    handler, batches = Scripted(None, ValueError("a bug")), list[list[int]]()
    await world.given(*(execution(n) for n in range(1, 4)))
    deliveries = await world.durable(handler.subscription).take(256, wait=0)
    kind = type(deliveries[0])
    ack_many = kind.ack_many

    async def acknowledge(acknowledged: Sequence[Any]) -> None:
        assert len(handler.handled) == 3
        batches.append([delivery.sequence for delivery in acknowledged])
        await ack_many(acknowledged)

    monkeypatch.setattr(kind, "ack_many", staticmethod(acknowledge))
    await world.outcomes.apply(handler.subscription, deliveries)
    assert batches == [[1, 3]]
    assert world.pending == 1


async def test_dead_letters_of_a_batch_are_stored_together(world: World) -> None:
    for number in range(3):
        world.log.receive(
            f"execution.{JOB}.{number}.admitted", b"no", headers=guarded(f"execution.{JOB}.{number}.admitted")
        )
    sizes, write = list[int](), world.log.write

    async def counted(writes: Sequence[Write]) -> list[Written]:
        sizes.append(len(writes))
        return await write(writes)

    world.log.write = counted  # type: ignore[method-assign]
    await world.handle(Scripted().subscription)
    assert (sizes, len(await refused(world)), world.pending) == ([3], 3, 0)


async def test_message_returns_until_its_dead_letter_is_stored(world: World) -> None:
    world.log.receive(f"execution.{JOB}.1.admitted", b"no", headers=guarded(f"execution.{JOB}.1.admitted"))
    errors: list[Exception] = [LogUnavailable("no answer"), RuntimeError("a defect")]
    write = world.log.write

    async def failing(writes: Sequence[Write]) -> list[Written]:
        if errors:
            raise errors.pop(0)
        return await write(writes)

    world.log.write = failing  # type: ignore[method-assign]
    for _ in range(2):
        await world.handle(Scripted().subscription)
        assert (await refused(world), world.pending) == ([], 1)
        world.clock.advance(15)
    await world.handle(Scripted().subscription)
    assert (len(await refused(world)), world.pending) == (1, 0)


async def test_message_twice_in_batch_is_one_dead_letter(world: World) -> None:
    world.log.receive(f"execution.{JOB}.1.admitted", b"no", headers=guarded(f"execution.{JOB}.1.admitted"))
    durable = world.durable(Scripted().subscription)
    slow = await durable.take(10, wait=0)
    world.clock.advance(31)
    await world.outcomes.apply(Scripted().subscription, [*slow, *await durable.take(10, wait=0)])
    assert (len(await refused(world)), world.pending) == (1, 0)


async def test_stored_dead_letter_is_not_stored_again(world: World) -> None:
    world.log.receive("execution.nightly.1.admitted", b"no", headers=guarded("execution.nightly.1.admitted"))
    durable = world.durable(Scripted().subscription)
    slow = await durable.take(10, wait=0)
    world.clock.advance(31)
    await DeliveryPolicy(world.store).apply(Scripted().subscription, await durable.take(10, wait=0))
    await DeliveryPolicy(world.store).apply(Scripted().subscription, slow)
    assert len(await refused(world)) == 1


async def refused(world: World) -> list[PoisonMessage]:
    return [r.message for r in await world.log.read("dead-letter.>") if isinstance(r.message, PoisonMessage)]


# --- foreign messages ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body", [b'{"stream":"TOCSIN_LOG", "seq":7}', b"\xff", None], ids=["reply", "junk", "decision"]
)
async def test_no_stage_decides_on_a_foreign_message(world: World, body: bytes | None) -> None:
    handler = Scripted()
    event = admitted()
    world.log.receive(subjects.subject_of(event), event.encode() if body is None else body)
    await world.given(execution(3, "other"))
    await world.handle(handler.subscription)
    assert (handler.handled, world.pending) == ([2], 0)
    assert await world.log.read("dead-letter.>") == []


@pytest.mark.parametrize(("origin", "handled"), [("TOCSIN_INPUTS", []), ("SHOP_REQUESTS", [1])])
async def test_copy_of_an_input_is_refused(world: World, origin: str, handled: list[int]) -> None:
    """A program may have the server publish messages of its own stream again, as triggers."""
    handler = Scripted()
    world.log.receive(f"trigger.{JOB}", b"{}", headers={"Nats-Stream": origin})
    subscription = replace(handler.subscription, stream=Stream.REQUESTS, filters=("trigger.>",))
    policy = DeliveryPolicy(world.store, streams=subjects.stream_names("tocsin"))
    await policy.apply(subscription, await world.durable(subscription).take(10, wait=0))
    assert (handler.handled, world.pending) == (handled, 0)
    assert len(await refused(world)) == 1 - len(handled)


async def test_dead_letter_is_stored_beside_a_foreign_message(world: World) -> None:
    """A scope with an event would mean that an earlier delivery stored it."""
    handler = Scripted()
    subject = f"execution.{JOB}.1.admitted"
    sequence = world.log.receive(subject, b"no", headers=guarded(subject))
    letter = PoisonMessage.id_of(handler.subscription.durable, 0, sequence)
    world.log.receive(f"dead-letter.{JOB}.{letter}.refused", b"{}")
    await world.handle(handler.subscription)
    [stored] = await world.log.read("dead-letter.>")
    assert isinstance(stored.message, PoisonMessage)
    assert world.pending == 0


@pytest.mark.usefixtures("restored_logging")
async def test_line_of_a_dead_letter_has_no_input(world: World) -> None:
    """The reason repeats what was sent; the dead letter has it."""

    def refusing(recorded: Recorded[Message], states: States, now: datetime) -> Step:
        del recorded, states, now
        return refuse("`input.pin`: 'hunter2' is not of type 'integer'", code="invalid-input")

    stream = StringIO()
    telemetry.configure(stream=stream)
    await world.given(execution(1))
    await world.run(BoundStage("refusing", (BoundSubscription("refusing", Stream.LOG, ("execution.>",), refusing),)))
    [letter] = await world.stored(PoisonMessage)
    [line] = [json.loads(text) for text in stream.getvalue().splitlines() if "message-refused" in text]
    assert "hunter2" in letter.reason
    assert (line["code"], line["dead_letter"]) == ("invalid-input", letter.id)
    assert "hunter2" not in stream.getvalue()
