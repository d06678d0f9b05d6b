"""The room for executions by events: half of a job's waiting list, and nothing while a request is undecided."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from tests.stages.world import World
from tocsin import subjects
from tocsin.domain import ids
from tocsin.domain.definition import EventTrigger, JobDefinition
from tocsin.domain.events import EventOrigin, EventReference, Planned, Queued, Skipped, Trigger
from tocsin.stages.event_listener.waiting_room import WaitingRoom, WaitingRule

SOURCE = ("nats", "orders.>", "key")
JOB = {"name": "busy", "function": "f", "overlap_policy": "enqueue", "max_waiting": 6}
TRIGGER: dict[str, Any] = {"nats": "orders.>", "input": {"n": "body.n"}}
UPSTREAM = {"job": "up", "within": "1h", "on": "finished"}


def rule_of(trigger: Mapping[str, Any] = TRIGGER, **fields: Any) -> WaitingRule | None:  # noqa: ANN401 - fields as they are written
    return WaitingRule.of(JobDefinition.model_validate({**JOB, **fields}), EventTrigger.model_validate(trigger))


def rule(**fields: Any) -> WaitingRule:  # noqa: ANN401
    found = rule_of(**fields)
    assert found is not None
    return found


async def request(world: World, *names: str) -> list[str]:
    """Store the requests that events with these keys make; return their executions."""
    for number, name in enumerate(names, 1):
        place = EventReference(stream="ORDERS", sequence=number, subject="orders.new", time=world.clock.now())
        origin = EventOrigin(source=SOURCE, subject="orders.new", event=place)
        trigger = Trigger(idempotency_key=name, event_trigger=origin)
        await world.log.publish(subjects.trigger("busy"), trigger, message_id=name)
    return [ids.event_execution_id("busy", SOURCE, name) for name in names]


def room_of(world: World) -> WaitingRoom:
    return WaitingRoom(world.clock, lambda: world.parts.fold)


async def look(world: World, room: WaitingRoom, of: WaitingRule) -> int:
    """Return the room, however long the look pauses."""
    looking = asyncio.create_task(room.room("busy", of))
    while not looking.done():
        await asyncio.sleep(0)
        world.clock.advance(1)
    return await looking


@pytest.mark.parametrize(
    ("fields", "most"),
    [
        ({"max_waiting": 6}, 3),
        ({"max_waiting": 1}, 1),
        ({"overlap_policy": "allow", "depends_on": [UPSTREAM]}, 3),
        ({"overlap_policy": "allow", "job_class": "QUORUM_REQUIRED", "acknowledgements": 2}, 3),
    ],
)
def test_events_fill_half_of_the_list(fields: Mapping[str, Any], most: int) -> None:
    assert rule(**fields).most == most


@pytest.mark.parametrize("policy", ["allow", "skip", "cancel_previous"])
def test_executions_that_never_wait_have_no_rule(policy: str) -> None:
    assert rule_of(overlap_policy=policy) is None


@pytest.mark.parametrize(
    "trigger",
    [
        {**TRIGGER, "debounce": "30s"},
        {**TRIGGER, "batch": {"max": 2, "within": "5s"}},
        {"job": "up"},
        {"webhook": "/hooks/shop"},
        {"kv": "flags/a"},
        {"object": "uploads/in/"},
    ],
)
def test_other_events_are_requested_at_once(trigger: Mapping[str, Any]) -> None:
    assert rule_of(trigger) is None


def test_events_of_divided_jobs_are_requested_at_once() -> None:
    assert rule_of(partition="all_shards") is None


async def test_room_is_what_the_waiting_list_leaves(world: World) -> None:
    await world.define(JOB)
    room = room_of(world)
    assert await room.room("busy", rule()) == 3
    room.requested("busy", rule(), await request(world, "a", "b"))
    assert await room.room("busy", rule()) == 1  # without a look
    room.requested("busy", rule(), await request(world, "c"))
    await world.run(world.planner, world.lock_keeper)
    assert await room.room("busy", rule()) == 1  # one of them has the lock
    room.requested("busy", rule(), await request(world, "d"))
    await world.run(world.planner, world.lock_keeper)
    assert len(await world.stored(Queued)) == 3
    assert await look(world, room, rule()) == 0


@pytest.mark.parametrize("last", ["planner", "lock_keeper"])
async def test_undecided_request_leaves_no_room(world: World, last: str) -> None:
    await world.define(JOB)
    room = room_of(world)
    await request(world, "holder")
    await world.run(world.planner, world.lock_keeper)
    room.requested("busy", rule(), await request(world, "a"))
    if last == "lock_keeper":
        await world.run(world.planner)
    assert await look(world, room, rule()) == 0
    await world.run(world.planner, world.lock_keeper)
    assert await look(world, room, rule()) == 2


async def test_request_without_an_execution_is_given_up(world: World) -> None:
    room = room_of(world)
    room.requested("busy", rule(), ["never-decided"])
    assert await look(world, room, rule()) == 0
    world.clock.advance(60)
    assert await look(world, room, rule()) == 3


async def test_executions_before_their_lock_take_room(world: World) -> None:
    dependent = {"depends_on": [UPSTREAM]}
    await world.define({"name": "up", "function": "f"})
    await world.define({**JOB, **dependent})
    room = room_of(world)
    room.requested("busy", rule(**dependent), await request(world, "a", "b", "c"))
    await world.run(world.planner)
    assert len(await world.stored(Planned)) == 3
    assert await look(world, room, rule(**dependent)) == 0


async def test_look_counts_for_a_while(world: World) -> None:
    await world.define(JOB)
    room = room_of(world)
    assert await room.room("busy", rule()) == 3
    await request(world, *"abcd")  # another copy of the stage did that
    await world.run(world.planner, world.lock_keeper)
    assert await room.room("busy", rule()) == 3
    world.clock.advance(10)
    assert await look(world, room, rule()) == 0


async def test_events_find_room_beyond_the_limit(world: World) -> None:
    """The listener of an earlier version looks at no list."""
    await world.define({**JOB, "max_waiting": 1})
    await request(world, *"abcd")
    await world.trigger("busy", "direct")
    await world.run(world.planner, world.lock_keeper)
    [skipped] = await world.stored(Skipped)
    assert (skipped.reason, skipped.trigger_id) == ("queue_full", "api.direct")
    assert len(await world.stored(Queued)) == 3
