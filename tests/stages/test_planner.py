"""The planner: instants and triggers become executions, once."""

import pytest

from tests.domain.given import NOON
from tests.stages.world import World
from tocsin.domain import ids
from tocsin.domain.events import Admitted, CronSkipped, CronTriggered, Due, Passed, Planned, PoisonMessage, Skipped


def job(**more: object) -> dict[str, object]:
    return {"name": "nightly", "schedule": "0 * * * *", "function": "f", **more}


async def test_a_due_instant_is_planned(world: World) -> None:
    definition = await world.define(job())
    await world.given(Due(job="nightly", scheduled_time=NOON, definition=definition))
    await world.run(world.planner)
    [planned] = await world.stored(Planned)
    assert (planned.execution_id, planned.scheduled_time) == (ids.occurrence_id("nightly", NOON), NOON)
    assert await world.stored(CronTriggered) == []


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
    [planned] = await world.stored(Planned)
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
    [planned] = await world.stored(Planned)
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
    assert await world.stored(Planned) == []
