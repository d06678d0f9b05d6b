"""The planner: instants and triggers become executions, once."""

from datetime import timedelta
from typing import Any

import pytest

from tests.domain.given import NOON
from tests.stages.world import World
from tocsin import subjects
from tocsin.domain import execution_plan, ids, job_record, ledger
from tocsin.domain.definition import JobDefinition
from tocsin.domain.events import (
    Acquired,
    Admitted,
    Completed,
    CronSkipped,
    CronTriggered,
    Defined,
    Dispatched,
    Due,
    Passed,
    Planned,
    PoisonMessage,
    Queued,
    Recorded,
    Requested,
    Shard,
    ShardsDefined,
    Skipped,
    Trigger,
)
from tocsin.domain.ledger import MAX_INSTANTS_PER_DECISION
from tocsin.engine.ledger_reader import LedgerReader


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
    assert [event.data.job_id for event in await world.stored(CronTriggered)] == [admitted.execution_id]


async def test_due_instant_with_held_lock_is_planned(world: World) -> None:
    definition = await world.define(job())
    later = NOON.replace(hour=13)
    await world.given(*(Due(job="nightly", scheduled_time=at, definition=definition) for at in (NOON, later)))
    await world.run(world.planner)
    [planned] = await world.stored(Planned)
    assert (planned.execution_id, planned.scheduled_time) == (ids.occurrence_id("nightly", later), later)
    assert len(await world.stored(Admitted)) == len(await world.stored(CronTriggered)) == 1


async def test_lock_of_an_ended_execution_is_taken_again(world: World) -> None:
    """The planner holds the states of the last time, and does not hear of ends."""
    definition = await world.define(job())
    for hour in (12, 13, 14):
        due = Due(job="nightly", scheduled_time=NOON.replace(hour=hour), definition=definition)
        await world.given(due)
        await world.run(world.planner)
        [*_, newest] = await world.stored(Admitted)
        assert newest.scheduled_time == due.scheduled_time
        await world.given(_completed(newest))
    assert await world.stored(Planned) == []


async def test_free_lock_is_kept_for_a_waiting_execution(world: World) -> None:
    await world.define(job(overlap_policy="enqueue"))
    for number in range(2):
        await world.trigger("nightly", f"m{number}")
    await world.run(world.planner, world.lock_keeper)
    [first] = await world.stored(Admitted)
    await world.given(_completed(first))
    await world.trigger("nightly", "m2")
    await world.run(world.planner)
    assert len(await world.stored(Planned)) == 2
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
    [event] = await world.stored(CronTriggered)
    assert (event.data.job_id, event.data.run_count) == (admitted.execution_id, 1)
    assert (event.data.cron_expression, event.data.scheduled_time) == ("0 * * * *", NOON)


async def test_each_admitted_trigger_is_announced_and_counted_once(world: World) -> None:
    definition = await world.define(job(overlap_policy="allow"))
    for number in range(300):
        await world.trigger("nightly", f"m{number}")
    await world.given(Due(job="nightly", scheduled_time=NOON, definition=definition))
    await world.run(world.planner)
    events = [event.data for event in await world.stored(CronTriggered)]
    assert [event.run_count for event in events] == list(range(1, 302))
    assert sorted(event.trigger for event in events) == ["cron", *["event"] * 300]
    assert {event.job_id for event in events} == {each.execution_id for each in await world.stored(Admitted)}


async def test_trigger_is_announced_when_it_gets_the_lock(world: World) -> None:
    await world.define(job(overlap_policy="enqueue"))
    for number in range(2):
        await world.trigger("nightly", f"m{number}")
    await world.run(world.planner, world.lock_keeper)
    [first] = await world.stored(Admitted)
    assert [event.data.job_id for event in await world.stored(CronTriggered)] == [first.execution_id]
    await world.given(_completed(first))
    await world.run(world.lock_keeper)
    events = [event.data for event in await world.stored(CronTriggered)]
    assert [(event.trigger, event.run_count) for event in events] == [("event", 1), ("event", 2)]


async def test_admitted_trigger_of_deleted_job_is_announced(world: World) -> None:
    """The planner died between the two, and the job was deleted before the next delivery."""
    definition = JobDefinition.model_validate(job(overlap_policy="allow"))
    await world.trigger("nightly")
    [stored] = await world.log.read(subjects.trigger("nightly"))
    assert isinstance(stored.message, Trigger)
    trigger = Recorded(stored.message, stored.subject, stored.sequence, stored.time, stored.message_id)
    first = execution_plan.from_trigger(trigger, definition, 1, None)
    await world.given(first)
    await world.run(world.planner)
    assert [event.data.job_id for event in await world.stored(CronTriggered)] == [first.execution_id]


async def test_backfilled_instant_does_not_restart_the_count(world: World) -> None:
    """The instant lies before the registration."""
    definition = await world.define(job(overlap_policy="allow"))
    before = NOON.replace(year=NOON.year - 1)
    await world.trigger("nightly", "a")
    await world.run(world.planner)
    await world.trigger("nightly", "b", trigger="backfill", backfill="b", scheduled_time=before)
    await world.run(world.planner)
    await world.given(Due(job="nightly", scheduled_time=NOON, definition=definition))
    await world.run(world.planner)
    events = [event.data for event in await world.stored(CronTriggered)]
    assert [(event.trigger, event.run_count) for event in events] == [("event", 1), ("backfill", 2), ("cron", 3)]


async def test_runs_count_from_the_registration(world: World) -> None:
    """An edit counts on, and a job that was deleted and registered again counts from 1 (ojs-cron §2.2)."""
    counts = list[int]()
    for edit in ("a", "b", None, "b", "c"):
        if edit is None:
            state, _ = await LedgerReader(world.log).load("nightly")
            await world.given(*ledger.delete(state, "nightly"))
            continue
        definition = await world.define(job(function=edit, overlap_policy="allow"))
        for _ in range(2):
            world.clock.advance(3_600)
            at = world.clock.now()
            await world.given(Due(job="nightly", scheduled_time=at, definition=definition))
            await world.run(world.planner)
        counts = [event.data.run_count for event in await world.stored(CronTriggered)]
    assert counts == [1, 2, 3, 4, 1, 2, 3, 4]


async def test_runs_count_from_the_request_to_register(world: World) -> None:
    """A registration is in force from its request, also for instants before the log stored it."""
    since = world.clock.now()
    world.clock.advance(3 * 3_600)
    [fact] = ledger.define(ledger.initial, JobDefinition.model_validate(job(overlap_policy="allow")))
    await world.given(fact.changed(since=since))
    [registered] = await world.recorded(Defined)
    definition = registered.sequence
    for hour in range(1, 6):
        if hour == 4:
            definition = await world.define(job(function="g", overlap_policy="allow"))
        at = since + timedelta(hours=hour)
        await world.given(Due(job="nightly", scheduled_time=at, definition=definition))
        await world.run(world.planner)
    assert [event.data.run_count for event in await world.stored(CronTriggered)] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("is_edited", [False, True])
async def test_run_of_a_deleted_job_counts_nothing(world: World, is_edited: bool) -> None:  # noqa: FBT001
    """A run that an event started after the request to register again, and before the log stored it."""
    await world.define(job(overlap_policy="allow"))
    since = world.clock.now() + timedelta(seconds=1)
    world.clock.advance(60)
    await world.trigger("nightly")
    await world.run(world.planner)
    world.clock.advance(60)
    for make in (ledger.delete, lambda state, _: ledger.define(state, JobDefinition.model_validate(job()))):
        state, _ = await LedgerReader(world.log).load("nightly")
        await world.given(*(fact.changed(since=since) for fact in make(state, "nightly")))
    definition = (await world.recorded(Defined))[-1].sequence
    if is_edited:
        definition = await world.define(job(function="g"))
    await world.given(Due(job="nightly", scheduled_time=since + timedelta(hours=1), definition=definition))
    await world.run(world.planner)
    counts = [(event.data.trigger, event.data.run_count) for event in await world.stored(CronTriggered)]
    assert counts == [("event", 1), ("cron", 1)]


async def test_occurrence_is_planned_by_its_named_definition(world: World) -> None:
    old = await world.define(job(function="old"))
    await world.define(job(function="new"))
    await world.given(Due(job="nightly", scheduled_time=NOON, definition=old))
    await world.run(world.planner)
    [planned] = await world.stored(Admitted)
    assert planned.plan.steps[0].function == "old"


@pytest.mark.parametrize("work", ["sql", "procedure", "step", "shards", "function"])
async def test_plan_of_sql_names_the_registration(world: World, work: str) -> None:
    """The id is the `job_uuid` of the history, also after the definition was replaced."""
    sql = {"connection": "dwh", "statement": "SELECT 1"}
    works: dict[str, dict[str, Any]] = {
        "sql": {"sql": sql},
        "procedure": {"procedure": {"connection": "dwh", "name": "refresh"}},
        "step": {"dag": [{"name": "a", "function": "f"}, {"name": "b", "sql": sql, "depends_on": ["a"]}]},
        "shards": {"sql": sql, "partition": "all_shards"},
        "function": {"function": "f"},
    }
    await world.given(ShardsDefined(shards=(Shard(shard_id="north"), Shard(shard_id="south"))))
    [map_] = await world.log.load(subjects.shard_map())
    [fact] = ledger.define(ledger.initial, JobDefinition.model_validate(job() | {"function": None} | works[work]))
    await world.given(fact.changed(since=world.clock.now() - timedelta(seconds=5)))
    world.clock.advance(5)
    definition = await world.define({"name": "nightly", "schedule": "0 * * * *", "priority": 1, **works[work]})
    await world.given(Due(job="nightly", scheduled_time=NOON, definition=definition, shards=map_.sequence))
    await world.trigger("nightly")
    await world.run(world.planner, world.dag_advancer)
    [record] = job_record.fold({}, await world.log.read("ledger.nightly.>")).values()
    plans = [requested.plan for requested in await world.stored(Requested)]
    assert len(plans) == (4 if work == "shards" else 2)
    assert {plan.job_uuid for plan in plans} == {None if work == "function" else record.id}
    tasks = [task.task for task in await world.stored(Dispatched)]
    assert {task.job_uuid for task in tasks} == {plans[0].job_uuid}


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


async def test_instants_of_long_pause_are_announced_once(world: World) -> None:
    passed = await long_pause(world)
    await world.run(world.planner)
    assert await world.stored(PoisonMessage) == []
    assert world.pending == 0
    assert [event.data.scheduled_time for event in await world.stored(CronSkipped)] == [*passed.scheduled_times]
    assert len(await world.stored(Skipped)) == passed.count
    size = await world.size()
    await world.redeliver(world.planner)
    assert await world.size() == size


@pytest.mark.parametrize("announced", [1, MAX_INSTANTS_PER_DECISION // 2])
async def test_announcement_of_a_long_pause_goes_on(world: World, announced: int) -> None:
    passed = await long_pause(world)
    await world.run(world.planner)
    skips, events = await world.stored(Skipped), await world.stored(CronSkipped)
    other = World()
    assert await long_pause(other) == passed
    await other.given(*skips, *events[:announced])
    await other.run(other.planner)
    told = [event.data.scheduled_time for event in await other.stored(CronSkipped)]
    assert told == [*passed.scheduled_times]


async def long_pause(world: World) -> Passed:
    """Store that as many instants passed as one decision names."""
    definition = await world.define(job(schedule="* * * * *"))
    times = tuple(NOON + timedelta(minutes=number) for number in range(MAX_INSTANTS_PER_DECISION))
    passed = Passed(
        job="nightly", start=NOON, until=times[-1], reason="paused", count=len(times), definition=definition,
        scheduled_times=times,
    )  # fmt: skip
    await world.given(passed)
    return passed


@pytest.mark.parametrize("reason", ["paused", "dst_skip"])
async def test_cron_30_announced_skips_are_published(world: World, reason: str) -> None:
    definition = await world.define(job())
    times = (NOON, NOON.replace(hour=13))
    fields = {"job": "nightly", "start": NOON, "until": times[1], "count": 2, "definition": definition}
    await world.given(Passed.model_validate({**fields, "reason": reason, "scheduled_times": times}))
    await world.run(world.planner)
    events = [event.data for event in await world.stored(CronSkipped)]
    assert [data.scheduled_time for data in events] == list(times)
    assert {data.reason for data in events} == {"disabled" if reason == "paused" else "dst_skip"}
    assert len(await world.stored(Skipped)) == 2


async def test_a_trigger_is_planned_with_its_input(world: World) -> None:
    await world.define(job(input={"a": 1}))
    await world.trigger("nightly", input={"b": 2}, trigger="manual")
    await world.run(world.planner)
    [planned] = await world.stored(Admitted)
    assert (planned.trigger, planned.plan.input) == ("manual", {"a": 1, "b": 2})


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"rows": 3, "metric": {"input": 1}}', {"a": 1, "rows": 3, "metric": {"input": 1}}),
        (b'{"input": {"rows": 3}}', {"a": 1, "rows": 3}),
        (b'{"reason": "late", "rows": 3}', {"a": 1}),
        (b"{}", {"a": 1}),
        (b"", {"a": 1}),
    ],
)
async def test_bare_payload_is_the_input(world: World, body: bytes, expected: dict[str, object]) -> None:
    await world.define({"name": "drift", "function": "f", "input": {"a": 1}})
    world.log.receive("trigger.drift", body)
    await world.run(world.planner)
    [planned] = await world.stored(Requested)
    assert planned.plan.input == expected


@pytest.mark.parametrize("body", [b'{"type": "drift", "rows": 3}', b'["rows"]', b'{"trigger": "tuesday"}'])
async def test_wrong_trigger_becomes_dead_letter(world: World, body: bytes) -> None:
    await world.define({"name": "drift", "function": "f"})
    world.log.receive("trigger.drift", body)
    await world.run(world.planner)
    [refused] = await world.log.read("dead-letter.>")
    letter = refused.message
    assert isinstance(letter, PoisonMessage)
    assert letter.code == "undecodable-message"
    assert await world.log.read("execution.>") == []


async def test_trigger_of_an_unknown_job_becomes_dead_letter(world: World) -> None:
    await world.trigger("nobody")
    await world.run(world.planner)
    [letter] = await world.stored(PoisonMessage)
    assert letter.code == "job-not-found"


async def test_trigger_with_invalid_input_becomes_dead_letter(world: World) -> None:
    schema = {"type": "object", "required": ["day"], "properties": {"day": {"type": "string"}}}
    await world.define(job(input={"day": "monday"}, input_schema=schema))
    await world.trigger("nightly", input={"day": 5})
    await world.run(world.planner)
    [letter] = await world.stored(PoisonMessage)
    assert (letter.code, "`input.day`" in letter.reason) == ("invalid-definition", True)
    assert await world.stored(Requested) == []


async def test_program_outside_raises_no_priority(world: World) -> None:
    await world.define({"name": "drift", "function": "f", "priority": 5})
    world.log.receive("public.trigger.drift", b'{"input": {}, "priority": 6}')
    world.log.receive("public.trigger.drift", b'{"input": {}, "priority": -7}')
    world.log.receive("trigger.drift", b'{"input": {}, "priority": 100}')
    world.log.receive("trigger.drift", b'{"input": {}, "priority": 101}')
    await world.run(world.planner)
    plans = [requested.plan for requested in await world.stored(Requested)]
    assert sorted(step.priority for plan in plans for step in plan.steps) == [-7, 100]
    refused, unreadable = sorted(await world.stored(PoisonMessage), key=lambda letter: str(letter.code))
    assert (refused.code, "`priority` is 6" in refused.reason) == ("invalid-definition", True)
    assert unreadable.code == "undecodable-message"


async def test_triggers_of_job_without_schedule_all_run(world: World) -> None:
    await world.define(job(schedule=None))
    for number in range(3):
        await world.trigger("nightly", f"m{number}")
    await world.run(world.planner, world.lock_keeper)
    assert len(await world.stored(Admitted)) == 1
    assert len(await world.recorded(Queued)) == 2
    assert await world.stored(Skipped) == []


async def test_one_key_makes_one_execution(world: World) -> None:
    await world.define(job(schedule=None))
    await world.trigger("nightly", "m1", idempotency_key="order-17")
    world.clock.advance(3_600)
    await world.trigger("nightly", "m2", idempotency_key="order-17")
    await world.trigger("nightly", "m3", idempotency_key="order-18")
    await world.run(world.planner, world.lock_keeper)
    await world.redeliver(world.planner)
    assert {fact.execution_id for fact in await world.stored(Requested)} == {
        ids.keyed_trigger_id("nightly", "order-17"),
        ids.keyed_trigger_id("nightly", "order-18"),
    }


async def test_required_input_may_come_with_trigger(world: World) -> None:
    schema = {"type": "object", "required": ["day"], "properties": {"day": {"type": "string"}}}
    await world.define(job(schedule=None, input={"a": 1}, input_schema=schema))
    await world.trigger("nightly", "m1", input={"day": "monday"})
    await world.trigger("nightly", "m2")
    await world.run(world.planner)
    assert [fact.plan.input for fact in await world.stored(Admitted)] == [{"a": 1, "day": "monday"}]
    [refused] = await world.stored(PoisonMessage)
    assert "required" in refused.reason
