"""A trigger that does not run at once is answered on `cron.answer`, once."""

from typing import Any

import pytest

from tests.stages.world import World
from tocsin import subjects
from tocsin.domain.events import (
    Admitted,
    Completed,
    CronAnswer,
    CronAnswerData,
    CronSkipped,
    Message,
    Planned,
    PoisonMessage,
    Queued,
    Skipped,
)

JOB = "mail"


async def defined(world: World, policy: str = "enqueue", **fields: Any) -> None:  # noqa: ANN401 - fields of a definition
    await world.define({"name": JOB, "function": "f", "overlap_policy": policy, **fields})


async def triggered(world: World, *message_ids: str) -> None:
    for message_id in message_ids:
        await world.trigger(JOB, message_id)
    await run(world)


async def run(world: World) -> None:
    await world.run(world.planner, world.lock_keeper)


async def answers(world: World) -> list[tuple[str, str, str]]:
    """Return the answers, all of them to triggers of the API."""
    given = [a.data for a in await world.stored(CronAnswer)]
    assert all(answer.trigger_id.startswith("api.") for answer in given)
    return [(answer.trigger_id.removeprefix("api."), answer.answer, answer.code) for answer in given]


async def test_trigger_that_starts_at_once_has_no_answer(world: World) -> None:
    await defined(world)
    await triggered(world, "a")
    assert len(await world.stored(Admitted)) == 1
    assert await answers(world) == []


async def test_trigger_that_waits_is_answered(world: World) -> None:
    await defined(world)
    await triggered(world, "a", "b")
    [first] = await world.stored(Admitted)
    [second] = [p for p in await world.stored(Planned) if p.execution_id != first.execution_id]
    assert await world.stored(CronAnswer) == [
        CronAnswer(
            timestamp=world.clock.now(),
            data=CronAnswerData(
                cron_name=JOB,
                trigger_id="api.b",
                answer="queued",
                code="lock_held",
                job_id=second.execution_id,
                active_job_id=first.execution_id,
            ),
        )
    ]
    [stored] = await world.recorded(CronAnswer)
    assert stored.subject == f"cron.answer.{JOB}.api.b"


async def test_skipped_trigger_is_answered(world: World) -> None:
    await defined(world, "skip")
    await triggered(world, "a", "b")
    assert await answers(world) == [("b", "skipped", "overlap_skip")]
    assert len(await world.stored(CronSkipped)) == 1


async def test_refused_trigger_is_answered_without_its_input(world: World) -> None:
    await defined(world, input_schema={"properties": {"n": {"type": "integer"}}})
    await world.trigger(JOB, "a", input={"n": "a secret"})
    await world.trigger("no-such-job", "b")
    world.log.receive(subjects.trigger(JOB), b"\x00", message_id="c")
    await run(world)
    assert sorted(await answers(world)) == [
        ("a", "refused", "invalid-definition"),
        ("b", "refused", "job-not-found"),
        ("c", "refused", "undecodable-message"),
    ]
    [first] = [answer for answer in await world.stored(CronAnswer) if answer.data.trigger_id == "api.a"]
    [letter] = [letter for letter in await world.stored(PoisonMessage) if letter.message_id == "a"]
    assert (first.data.dead_letter, first.data.job_id) == (letter.id, None)
    assert b"secret" not in first.encode()


@pytest.mark.parametrize("more", [b"", b', "event_trigger": {"source": ["nats"], "subject": "orders.paid"}'])
@pytest.mark.parametrize("subject", [subjects.trigger(JOB), f"outside.shop.trigger.{JOB}"])
@pytest.mark.parametrize("field", [b'"input": {"a": ["x${env:TOKEN}"]}', b'"args": ["${file:/run/secrets/token}"]'])
async def test_no_trigger_refers_to_a_secret(world: World, subject: str, field: bytes, more: bytes) -> None:
    """Not one of the API, of a program, or on an event; the definition may."""
    await defined(world, "allow", input={"a": "${env:TOKEN}"})
    world.log.receive(subject, b"{%s%s}" % (field, more), message_id="a")
    world.log.receive(subjects.trigger(JOB), b"{}", message_id="b")
    await run(world)
    [letter] = await world.stored(PoisonMessage)
    assert (letter.code, "only a definition may refer to a secret" in letter.reason) == ("invalid-definition", True)
    assert [begun.plan.input for begun in await world.stored(Admitted)] == [{"a": "${env:TOKEN}"}]


@pytest.mark.parametrize("more", [b"", b', "event_trigger": {"source": ["nats"], "subject": "orders.paid"}'])
@pytest.mark.parametrize("subject", [subjects.trigger(JOB), f"outside.shop.trigger.{JOB}"])
async def test_formats_are_checked_at_every_trigger(world: World, subject: str, more: bytes) -> None:
    await defined(world, "allow", input_schema={"properties": {"day": {"type": "string", "format": "date"}}})
    world.log.receive(subject, b'{"input": {"day": "2026-02-30"}%s}' % more, message_id="a")
    world.log.receive(subject, b'{"input": {"day": "2026-02-28"}%s}' % more, message_id="b")
    await run(world)
    [letter] = await world.stored(PoisonMessage)
    assert (letter.code, "`input.day`" in letter.reason) == ("invalid-definition", True)
    assert [begun.plan.input for begun in await world.stored(Admitted)] == [{"day": "2026-02-28"}]
    assert [(answer.data.answer, answer.data.code) for answer in await world.stored(CronAnswer)] == [
        ("refused", "invalid-definition")
    ]


async def test_trigger_that_began_stays_begun(world: World) -> None:
    """A planner of a version that checked less began it, and its acknowledgement was lost."""
    await defined(world, "allow")
    await world.trigger(JOB, "a", input={"day": "2026-02-30"})
    await run(world)
    await defined(world, "allow", input_schema={"properties": {"day": {"type": "string", "format": "date"}}})
    size = await world.size()
    await world.redeliver(world.planner)
    assert (len(await world.stored(Admitted)), await world.size()) == (1, size)


async def test_what_others_refuse_has_no_answer(world: World) -> None:
    await world.given(PoisonMessage.of(JOB, "planner-enqueued", "enqueue.mail.x", 7, b"", "unreadable"))
    await run(world)
    assert await answers(world) == []


async def test_answer_is_stored_once(world: World) -> None:
    await defined(world)
    await triggered(world, "a", "b")
    await defined(world, "skip")
    await triggered(world, "c")
    await world.trigger("no-such-job", "d")
    await run(world)
    size = await world.size()
    await world.redeliver(world.planner, world.lock_keeper)
    await world.redeliver(world.planner, world.lock_keeper)
    assert await world.size() == size
    assert [trigger for trigger, _, _ in await answers(world)] == ["b", "c", "d"]


async def test_message_id_used_again_is_answered_again(world: World) -> None:
    """The log drops a repeated id for some minutes only."""
    await defined(world)
    await triggered(world, "a", "b")
    world.clock.advance(600)
    await triggered(world, "b")
    waiting = [answer.data.job_id for answer in await world.stored(CronAnswer)]
    assert (len(waiting), len(set(waiting))) == (2, 2)


async def test_answer_follows_after_a_crash(world: World) -> None:
    """A process stored that the execution waits, and died before its answer."""
    await defined(world)
    await triggered(world, "a", "b")
    log = [r.message for scope in ("lock.>", "execution.>") for r in await world.log.read(scope)]
    other = World()
    await defined(other)
    await other.given(*log)
    await run(other)
    assert await answers(other) == [("b", "queued", "lock_held")]


async def test_backfills_and_occurrences_have_no_answer(world: World) -> None:
    await defined(world)
    await triggered(world, "a")
    for hour in (1, 2):
        at = world.clock.now().replace(hour=hour).isoformat()
        await world.trigger(JOB, f"backfill-{hour}", backfill="x", scheduled_time=at)
    await run(world)
    assert len(await world.stored(Queued)) == 2
    assert await answers(world) == []


async def test_trigger_beyond_a_full_queue_is_refused(world: World) -> None:
    await defined(world, max_waiting=2)
    await triggered(world, "a", "b", "c", "d")
    assert await answers(world) == [
        ("b", "queued", "lock_held"),
        ("c", "queued", "lock_held"),
        ("d", "refused", "queue_full"),
    ]
    [skipped] = await world.stored(Skipped)
    assert (skipped.reason, skipped.trigger_id) == ("queue_full", "api.d")
    await world.redeliver(world.planner, world.lock_keeper)
    assert len(await world.stored(Skipped)) == 1


async def test_full_queue_has_room_again(world: World) -> None:
    await defined(world, max_waiting=1)
    await triggered(world, "a", "b", "c")
    [first] = await world.stored(Admitted)
    await world.given(ended(first))
    await run(world)
    await triggered(world, "d")
    assert [trigger for trigger, answer, _ in await answers(world) if answer == "queued"] == ["b", "d"]


async def test_backfill_waits_beyond_a_full_queue(world: World) -> None:
    await defined(world, max_waiting=1)
    await triggered(world, "a", "b")
    for hour in range(3):
        at = world.clock.now().replace(hour=hour).isoformat()
        await world.trigger(JOB, f"backfill-{hour}", backfill="x", scheduled_time=at)
    await run(world)
    assert len(await world.stored(Queued)) == 1 + 3
    assert await world.stored(Skipped) == []


async def test_waiting_backfill_takes_no_place_of_others(world: World) -> None:
    await defined(world, max_waiting=1)
    await triggered(world, "a")
    for hour in range(3):
        at = world.clock.now().replace(hour=hour).isoformat()
        await world.trigger(JOB, f"backfill-{hour}", backfill="x", scheduled_time=at)
    await world.trigger(JOB, "said-to-be-a-replay", trigger="replay")
    await run(world)
    await triggered(world, "b", "c")
    assert (await answers(world))[-2:] == [("b", "queued", "lock_held"), ("c", "refused", "queue_full")]


async def test_replays_and_backfills_have_a_limit(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tocsin.domain.lock.MAX_YIELDING", 2)
    await defined(world)
    await triggered(world, "a")
    for number in range(3):
        await world.trigger(JOB, f"replay-{number}", trigger="replay")
    await run(world)
    assert [skipped.reason for skipped in await world.stored(Skipped)] == ["queue_full"]
    assert len(await world.stored(Queued)) == 2


async def test_refusal_of_long_ago_is_not_answered(world: World) -> None:
    await world.given(PoisonMessage.of(JOB, "planner-triggers", "trigger.mail", 7, b"", "unreadable"))
    world.clock.advance(86_401)
    await run(world)
    assert await answers(world) == []


def ended(admitted: Admitted) -> Message:
    fields = {name: getattr(admitted, name) for name in ("job", "execution_id", "scheduled_time", "trigger", "fence")}
    return Completed(**fields)
