"""The planner: instants and triggers become executions, once."""

from collections.abc import Sequence

import pytest

from tests.domain.given import NOON
from tests.stages.world import World
from tocsin import subjects
from tocsin.domain import ids
from tocsin.domain.events import (
    Acquired,
    Admitted,
    Completed,
    CronSkipped,
    CronTriggered,
    Dispatched,
    Due,
    Passed,
    Planned,
    PoisonMessage,
    Requested,
    Skipped,
)
from tocsin.ports import Append, LogUnavailable, Write, Written
from tocsin.subjects import Bucket, Stream


def job(**more: object) -> dict[str, object]:
    return {"name": "nightly", "schedule": "0 * * * *", "function": "f", **more}


async def test_due_instant_with_free_lock_is_admitted(world: World) -> None:
    definition = await world.define(job())
    await world.given(Due(job="nightly", scheduled_time=NOON, definition=definition))
    await world.run(world.planner)
    [admitted] = await world.stored(Admitted)
    [acquired] = await world.recorded(Acquired)
    assert (admitted.execution_id, admitted.scheduled_time) == (ids.occurrence_id("nightly", NOON), NOON)
    assert (acquired.message.execution_id, acquired.sequence) == (admitted.execution_id, admitted.fence)
    assert await world.stored(Planned) == []
    assert [told.data.job_id for told in await world.stored(CronTriggered)] == [admitted.execution_id]


async def test_due_instant_with_held_lock_is_planned(world: World) -> None:
    definition = await world.define(job())
    later = NOON.replace(hour=13)
    await world.given(*(Due(job="nightly", scheduled_time=at, definition=definition) for at in (NOON, later)))
    await world.run(world.planner)
    [planned] = await world.stored(Planned)
    assert (planned.execution_id, planned.scheduled_time) == (ids.occurrence_id("nightly", later), later)
    assert len(await world.stored(Admitted)) == len(await world.stored(CronTriggered)) == 1


async def test_free_lock_is_kept_for_a_waiting_execution(world: World) -> None:
    await world.define(job(overlap_policy="enqueue"))
    for number in range(2):
        await world.trigger("nightly", f"m{number}")
    await world.run(world.planner, world.lock_keeper)
    [first] = await world.stored(Admitted)
    await world.given(_completed(first))
    await world.trigger("nightly", "m2")
    [*_, latest] = await world.log.read("trigger.>")
    await world.deliver(world.planner.subscriptions[1], latest, log=world.log)
    assert len(await world.stored(Planned)) == 2
    assert len(await world.stored(Admitted)) == 1


async def test_stopped_planner_keeps_the_lock_for_its_execution(world: World) -> None:
    """The planner stops after the lock's event. Another trigger is handled before the redelivery."""
    await world.define(job(overlap_policy="skip"))
    await world.trigger("nightly", "first")
    await world.trigger("nightly", "second")
    triggers = world.planner.subscriptions[1]
    [first, second] = await world.log.read("trigger.>")
    write = world.log.write

    async def stops(writes: Sequence[Write]) -> list[Written]:
        if any(isinstance(w, Append) and isinstance(w.events[0], Admitted | Dispatched) for w in writes):
            raise LogUnavailable("the process is gone")
        return await write(writes)

    world.log.write = stops  # type: ignore[method-assign]
    with pytest.raises(LogUnavailable):
        await world.deliver(triggers, first, log=world.log)
    world.log.write = write  # type: ignore[method-assign]
    [acquired] = await world.stored(Acquired)
    assert await world.stored(Admitted) == []
    await world.deliver(triggers, second, log=world.log)
    await world.run(world.lock_keeper)
    assert await world.stored(Admitted) == []
    await world.deliver(triggers, first, log=world.log)
    assert [admitted.execution_id for admitted in await world.stored(Admitted)] == [acquired.execution_id]
    assert len(await world.stored(Acquired)) == 1


async def test_archived_holder_holds_nothing(world: World) -> None:
    """An execution without events whose lock's event lies before the archive's cursor."""
    await world.define(job())
    await world.given(Acquired(job="nightly", execution_id="gone", scheduled_time=NOON, ttl=90))
    [acquired] = await world.recorded(Acquired)
    await world.projections.put(Bucket.CURSORS, subjects.cursor(Stream.LOG), str(acquired.sequence).encode())
    await world.trigger("nightly")
    await world.run(world.planner)
    assert len(await world.stored(Admitted)) == 1


def _completed(admitted: Admitted) -> Completed:
    return Completed(
        job=admitted.job,
        execution_id=admitted.execution_id,
        scheduled_time=admitted.scheduled_time,
        trigger=admitted.trigger,
        fence=admitted.fence,
    )


async def test_execution_without_a_lock_is_admitted_and_announced(world: World) -> None:
    definition = await world.define(job(overlap_policy="allow"))
    await world.given(Due(job="nightly", scheduled_time=NOON, definition=definition))
    await world.run(world.planner)
    [admitted] = await world.stored(Admitted)
    [told] = await world.stored(CronTriggered)
    assert (told.data.job_id, told.data.run_count) == (admitted.execution_id, 1)
    assert (told.data.cron_expression, told.data.scheduled_time) == ("0 * * * *", NOON)


async def test_occurrence_is_planned_by_its_named_definition(world: World) -> None:
    old = await world.define(job(function="old"))
    await world.define(job(function="new"))
    await world.given(Due(job="nightly", scheduled_time=NOON, definition=old))
    await world.run(world.planner)
    [planned] = await world.stored(Admitted)
    assert planned.plan.steps[0].function == "old"


async def test_i4_what_is_delivered_again_adds_nothing(world: World) -> None:
    definition = await world.define(job(overlap_policy="allow"))
    await world.given(
        Due(job="nightly", scheduled_time=NOON, definition=definition),
        Passed(
            job="nightly", start=NOON, until=NOON, reason="paused", count=1, definition=definition,
            scheduled_times=(NOON.replace(hour=13),),
        ),
    )  # fmt: skip
    await world.trigger("nightly")
    await world.trigger("nobody", "n")
    await world.run(world.planner)
    size = await world.size()
    await world.redeliver(world.planner, world.planner)
    assert await world.size() == size
    assert world.pending == 0


async def test_public_event_lost_in_a_crash_is_published(world: World) -> None:
    definition = await world.define(job(overlap_policy="allow"))
    due = Due(job="nightly", scheduled_time=NOON, definition=definition)
    await world.given(due)
    await world.run(world.planner)
    [admitted] = await world.recorded(Admitted)
    other = World()
    await other.define(job(overlap_policy="allow"))
    await other.given(due, admitted.message)
    await other.run(other.planner)
    [told] = await other.stored(CronTriggered)
    assert told.data.job_id == admitted.message.execution_id


@pytest.mark.parametrize("reason", ["paused", "dst_skip"])
async def test_cron_30_announced_skips_are_published(world: World, reason: str) -> None:
    definition = await world.define(job())
    times = (NOON, NOON.replace(hour=13))
    fields = {"job": "nightly", "start": NOON, "until": times[1], "count": 2, "definition": definition}
    await world.given(Passed.model_validate({**fields, "reason": reason, "scheduled_times": times}))
    await world.run(world.planner)
    told = [event.data for event in await world.stored(CronSkipped)]
    assert [data.scheduled_time for data in told] == list(times)
    assert {data.reason for data in told} == {"disabled" if reason == "paused" else "dst_skip"}
    assert len(await world.stored(Skipped)) == 2


async def test_a_trigger_is_planned_with_its_input(world: World) -> None:
    await world.define(job(input={"a": 1}))
    await world.trigger("nightly", input={"b": 2}, trigger="manual")
    await world.run(world.planner)
    [planned] = await world.stored(Admitted)
    assert (planned.trigger, planned.plan.input) == ("manual", {"a": 1, "b": 2})


async def test_trigger_of_an_unknown_job_becomes_dead_letter(world: World) -> None:
    await world.trigger("nobody")
    await world.run(world.planner)
    [letter] = await world.stored(PoisonMessage)
    assert letter.reason == "no job is called 'nobody'"


async def test_trigger_with_invalid_input_becomes_dead_letter(world: World) -> None:
    schema = {"type": "object", "required": ["day"], "properties": {"day": {"type": "string"}}}
    await world.define(job(input={"day": "monday"}, input_schema=schema))
    await world.trigger("nightly", input={"day": 5})
    await world.run(world.planner)
    [letter] = await world.stored(PoisonMessage)
    assert letter.reason == "job `nightly`: `input.day`: 5 is not of type 'string'"
    assert await world.stored(Requested) == []
