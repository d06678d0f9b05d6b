"""The trace context of executions: decided once at the beginning, and carried to every task."""

import json

import pytest

from tests.domain.given import KEY, NOON, admitted_of
from tests.stages.world import World
from tocsin import subjects
from tocsin.domain import execution_plan, ids
from tocsin.domain.definition import JobDefinition
from tocsin.domain.events import (
    Admitted,
    CronAnswer,
    CronSkipped,
    CronTriggered,
    Dispatched,
    Due,
    Enqueued,
    Envelope,
    Message,
    Planned,
    Queued,
    Recorded,
    Requested,
    Skipped,
    Trigger,
)
from tocsin.domain.execution import admit_and_dispatch
from tocsin.domain.trace_context import Sampling, context_in, parse, trace_id_of

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
GIVEN = f"00-{TRACE}-00f067aa0ba902b7-01"
ALWAYS, NEVER = Sampling(1, follows_parent=True), Sampling(0, follows_parent=True)
OUTSIDE = "outside.billing.trigger.nightly"


def job(**more: object) -> dict[str, object]:
    return {"name": "nightly", "function": "f", "overlap_policy": "allow", **more}


async def triggered(world: World, body: object, headers: dict[str, str] | None = None) -> Dispatched:
    """Publish a trigger as a program outside, and return the first event of its execution."""
    world.log.receive(OUTSIDE, json.dumps(body).encode(), headers=headers)
    await world.run(world.planner)
    [first] = await world.stored(Dispatched)
    return first


@pytest.mark.parametrize("sampling", [ALWAYS, NEVER])
async def test_occurrence_stores_the_decision_once(sampling: Sampling) -> None:
    world = World(sampling)
    definition = await world.define(job(schedule="0 * * * *"))
    await world.given(Due(job="nightly", scheduled_time=NOON, definition=definition))
    await world.run(world.planner, world.mq_bridge)
    execution_id = ids.occurrence_id("nightly", NOON)
    [first], [public] = await world.stored(Dispatched), await world.stored(CronTriggered)
    context = parse(first.traceparent)
    assert context is not None
    assert (context.trace_id, context.is_sampled) == (trace_id_of(execution_id), sampling is ALWAYS)
    assert context_in(execution_id, first.traceparent, "execution") == context
    assert public.data.traceparent == first.traceparent
    [envelope] = [recorded.message for recorded in await world.log.read("mq.scheduled.>")]
    assert isinstance(envelope, Envelope)
    attempt = context_in(execution_id, first.traceparent, "attempt", "main", 1)
    assert attempt is not None
    assert envelope.data.traceparent == attempt.traceparent


async def test_without_tracing_no_stored_byte_names_a_trace(world: World) -> None:
    definition = await world.define(job(schedule="0 * * * *"))
    await world.given(Due(job="nightly", scheduled_time=NOON, definition=definition))
    await world.run(world.planner, world.mq_bridge)
    stored = [*await world.recorded(Message), *await world.log.read("mq.scheduled.>")]
    assert {recorded.subject.split(".")[0] for recorded in stored} >= {"execution", "cron", "mq"}
    assert not any(b"traceparent" in recorded.message.encode() for recorded in stored)


@pytest.mark.parametrize("name", ["traceparent", "Traceparent"])
async def test_trace_of_a_publisher_is_continued(world: World, name: str) -> None:
    await world.define(job())
    first = await triggered(world, {"day": 1}, {name: GIVEN})
    assert first.traceparent == GIVEN
    assert first.task.input == {"day": 1}


async def test_header_wins_over_the_body(world: World) -> None:
    await world.define(job())
    other = GIVEN.replace("4736", "4737")
    first = await triggered(world, {"input": {}, "traceparent": other}, {"traceparent": GIVEN})
    assert first.traceparent == GIVEN


async def test_body_may_name_the_trace(world: World) -> None:
    await world.define(job())
    first = await triggered(world, {"input": {"day": 1}, "traceparent": GIVEN})
    assert (first.traceparent, first.task.input) == (GIVEN, {"day": 1})


@pytest.mark.parametrize("more", [{"day": 1}, {}, {"priority": 5}, {"priority": None}])
async def test_bare_input_may_have_such_a_key(world: World, more: dict[str, object]) -> None:
    await world.define(job())
    first = await triggered(world, {"traceparent": GIVEN, **more})
    assert (first.traceparent, first.task.input) == (None, {"traceparent": GIVEN, **more})


async def test_header_continues_a_trace_beside_such_an_input(world: World) -> None:
    await world.define(job())
    other = GIVEN.replace("4736", "4737")
    first = await triggered(world, {"traceparent": other}, {"traceparent": GIVEN})
    assert (first.traceparent, first.task.input) == (GIVEN, {"traceparent": other})


@pytest.mark.parametrize("given", ["", "00-zz", "x" * 60_000, "ff" + GIVEN[2:], "\x00", GIVEN.upper()])
async def test_invalid_header_costs_only_the_trace(given: str) -> None:
    world = World(ALWAYS)
    await world.define(job())
    first = await triggered(world, {}, {"traceparent": given})
    context = parse(first.traceparent)
    assert context is not None
    assert context.trace_id == trace_id_of(first.execution_id)


@pytest.mark.parametrize("given", [7, None, {"a": 1}, [], "nonsense", "x" * 60_000])
async def test_invalid_body_field_costs_only_the_trace(world: World, given: object) -> None:
    await world.define(job())
    first = await triggered(world, {"input": {"day": 1}, "traceparent": given})
    assert (first.traceparent, first.task.input) == (None, {"day": 1})


async def test_skip_by_the_lock_keeps_the_trace() -> None:
    world = World(ALWAYS)
    definition = await world.define(job(schedule="0 * * * *", overlap_policy="skip"))
    later = NOON.replace(hour=13)
    await world.given(*(Due(job="nightly", scheduled_time=at, definition=definition) for at in (NOON, later)))
    await world.run(world.planner, world.lock_keeper)
    [planned], [skipped] = await world.stored(Planned), await world.stored(Skipped)
    [public] = await world.stored(CronSkipped)
    assert planned.traceparent is not None
    assert planned.traceparent == skipped.traceparent == public.data.traceparent


async def test_lock_keeper_admits_with_the_planned_trace() -> None:
    world = World(ALWAYS)
    await world.define(job(overlap_policy="enqueue"))
    for number in (1, 2):
        await world.trigger("nightly", f"m{number}")
    await world.run(world.planner, world.lock_keeper)
    assert await world.stored(Queued)
    [planned], [first] = await world.stored(Planned), await world.stored(Dispatched)
    [answer] = await world.stored(CronAnswer)
    assert answer.data.traceparent == planned.traceparent
    contexts = {message.execution_id: parse(message.traceparent) for message in (planned, first)}
    assert all(context and context.trace_id == trace_id_of(id_) for id_, context in contexts.items())


async def test_refused_trigger_keeps_its_trace(world: World) -> None:
    await world.define(job(input_schema={"type": "object", "required": ["day"]}))
    world.log.receive(OUTSIDE, b"{}", headers={"traceparent": GIVEN})
    await world.run(world.planner)
    [skipped] = await world.stored(Skipped)
    assert (skipped.reason, skipped.traceparent) == ("refused", GIVEN)


async def test_each_step_of_a_graph_has_the_trace() -> None:
    world = World(ALWAYS)
    steps = [{"name": name, "function": "f"} for name in ("a", "b")]
    await world.define({"name": "nightly", "dag": steps, "overlap_policy": "allow"})
    await world.trigger("nightly")
    await world.run(world.planner, world.dag_advancer)
    [admitted], tasks = await world.stored(Admitted), await world.stored(Dispatched)
    assert {task.step for task in tasks} == {"a", "b"}
    assert {admitted.traceparent} == {task.traceparent for task in tasks} != {None}


async def test_enqueued_job_continues_its_trace(world: World) -> None:
    execution_id = ids.keyed_trigger_id("x", "1")
    definition = JobDefinition(name="ojs.x", function="x", overlap_policy="allow")
    request = Enqueued(execution_id=execution_id, definition=definition, traceparent=GIVEN)
    await world.log.publish(subjects.subject_of(request), request, message_id="1")
    await world.run(world.planner)
    [first] = await world.stored(Dispatched)
    assert first.traceparent == GIVEN


def test_admission_in_a_task_has_the_trace() -> None:
    definition = JobDefinition.model_validate(job())
    request = Trigger(input={}, traceparent=GIVEN)
    first = execution_plan.from_trigger(Recorded(request, "trigger.nightly", 1, NOON), definition, 1)
    assert isinstance(first, Requested)
    event = admit_and_dispatch(admitted_of(first), key=KEY)
    assert isinstance(event, Dispatched)
    assert event.admitted is not None
    assert event.traceparent == event.admitted.traceparent == GIVEN
