"""The planner gives a unique key to one job at a time."""

from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

from tests.domain.given import NOON
from tests.stages.world import World
from tocsin import subjects
from tocsin.domain import execution
from tocsin.domain.definition import JobDefinition
from tocsin.domain.events import (
    Actor,
    Admitted,
    Cancelled,
    Completed,
    Enqueued,
    Failed,
    KeyTaken,
    Replayed,
    Skipped,
    UniqueRule,
    validated,
)
from tocsin.engine.step import Step
from tocsin.engine.unique_keys import begin_unique
from tocsin.stages import planner

JOB = "ojs.work"
KEY = "a" * 64


def request(execution_id: str, on_conflict: str = "reject", *, later: float = 0.0, **rule: Any) -> Enqueued:  # noqa: ANN401
    return Enqueued(
        execution_id=execution_id,
        definition=JobDefinition(name=JOB, function="work", overlap_policy="allow", dead_letter=True),
        start_at=NOON + timedelta(seconds=later) if later else None,
        by=Actor(identity="ada"),
        unique=UniqueRule(key=KEY, on_conflict=on_conflict, **rule),  # type: ignore[arg-type]
    )


async def enqueue(world: World, *requests: Enqueued) -> None:
    for wanted in requests:
        subject = subjects.subject_of(wanted)
        await world.log.publish(subject, wanted, message_id=subject)


async def planned(world: World, *requests: Enqueued) -> None:
    await enqueue(world, *requests)
    await world.run(world.planner)


async def ended(world: World, execution_id: str) -> None:
    await world.given(Completed(job=JOB, execution_id=execution_id, scheduled_time=NOON, trigger="api"))


async def statuses(world: World) -> dict[str, str]:
    """The state of each execution in the log."""
    found = await world.log.read("execution.>", limit=1_000)
    ids = dict.fromkeys(recorded.subject.split(".")[2] for recorded in found)
    scopes = {id_: await world.log.load(subjects.execution(JOB, id_)) for id_ in ids}
    return {id_: execution.fold(facts).status.value for id_, facts in scopes.items()}


async def test_second_job_with_a_key_is_skipped(world: World) -> None:
    await planned(world, request("a"), request("b"))
    assert await statuses(world) == {"a": "admitted", "b": "skipped"}
    [skipped] = await world.stored(Skipped)
    assert (skipped.reason, skipped.active_execution_id, skipped.definition) == ("duplicate", "a", 0)
    assert [taken.execution_id for taken in await world.stored(KeyTaken)] == ["a"]
    assert await world.log.read("cron.>") == []


@pytest.mark.parametrize("on_conflict", ["replace", "reject"])
async def test_decisions_grow_with_number_of_rivals(
    world: World, on_conflict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    decisions: list[str] = []

    def counted(first: Admitted, *args: Any, **options: Any) -> Step:  # noqa: ANN401 - passed on
        decisions.append(first.execution_id)
        return begin_unique(first, *args, **options)

    monkeypatch.setattr(planner, "begin_unique", counted)
    rivals = [f"r{number}" for number in range(50)]
    await planned(world, *(request(rival, on_conflict) for rival in rivals))
    assert len(await statuses(world)) == len(rivals)
    assert len(decisions) <= 10 * len(rivals)


async def test_duplicates_are_skipped(world: World) -> None:
    await enqueue(world, *(request(f"r{number}", ("reject", "ignore")[number % 2]) for number in range(50)))
    await world.run(world.planner)
    states = await statuses(world)
    assert {name for name, state in states.items() if state == "admitted"} == {"r0"}
    assert {*states.values()} == {"admitted", "skipped"}


async def test_replacements_keep_the_order_of_requests(world: World) -> None:
    names = [f"r{number:02}" for number in range(50)]
    await enqueue(world, *(request(name, "replace") for name in names))
    await world.run(world.planner)
    assert await statuses(world) == {**dict.fromkeys(names, "cancelled"), names[-1]: "admitted"}
    begun = {r.message.execution_id: r.sequence for r in await world.recorded(Admitted)}
    ended = {r.message.execution_id: r.sequence for r in await world.recorded(Cancelled)}
    assert [*begun] == names
    assert all(ended[earlier] < begun[later] for earlier, later in pairwise(names))


async def test_job_that_ended_meanwhile_is_not_cancelled(world: World) -> None:
    """The planner still holds it for open, and its end is final."""
    await planned(world, request("a"))
    await ended(world, "a")
    await planned(world, request("b", "replace"))
    assert await statuses(world) == {"a": "completed", "b": "admitted"}
    assert await world.stored(Cancelled) == []


async def test_rivals_of_all_kinds_leave_one_job(world: World) -> None:
    kinds = ("reject", "replace", "ignore", "replace_except_schedule", "reject")
    await planned(world, *(request(f"r{number}", kinds[number % len(kinds)]) for number in range(40)))
    states = await statuses(world)
    assert list(states.values()).count("admitted") == 1
    assert len(states) == 40
    assert states["r38"] == "admitted"  # the last that replaces


async def test_key_is_free_after_its_job_ended(world: World) -> None:
    await planned(world, request("a"))
    await ended(world, "a")
    await planned(world, request("b"))
    assert await statuses(world) == {"a": "completed", "b": "admitted"}


async def test_ended_job_counts_if_the_rule_says_so(world: World) -> None:
    states = ("available", "active", "completed")
    await planned(world, request("a"))
    await ended(world, "a")
    await planned(world, request("b", states=states), request("c"))
    assert await statuses(world) == {"a": "completed", "b": "skipped", "c": "admitted"}
    await ended(world, "c")
    await planned(world, request("d", "ignore", states=("completed",)))
    assert (await statuses(world))["d"] == "skipped"
    assert (await world.stored(Skipped))[-1].active_execution_id == "c"


async def test_period_begins_with_the_first_job(world: World) -> None:
    await planned(world, request("a"))
    world.clock.advance(5)
    await planned(world, request("b", period=10))
    world.clock.advance(5)
    await planned(world, request("c", period=10))
    assert await statuses(world) == {"a": "admitted", "b": "skipped", "c": "admitted"}


async def test_narrow_states_ignore_other_jobs_and_remember_them(world: World) -> None:
    await planned(world, request("a"), request("b", states=("scheduled",)), request("c"))
    assert await statuses(world) == {"a": "admitted", "b": "admitted", "c": "skipped"}
    await ended(world, "b")
    await planned(world, request("d"))
    assert (await statuses(world))["d"] == "skipped"
    assert (await world.stored(Skipped))[-1].active_execution_id == "a"


async def test_replaced_job_is_cancelled_first(world: World) -> None:
    await planned(world, request("a"), request("b", "replace"))
    assert await statuses(world) == {"a": "cancelled", "b": "admitted"}
    [cancelled] = await world.recorded(Cancelled)
    begun = {r.message.execution_id: r.sequence for r in await world.recorded(Admitted)}
    [_, taken] = await world.recorded(KeyTaken)
    assert taken.sequence < cancelled.sequence < begun["b"]
    assert (cancelled.message.reason, cancelled.message.by) == ("replaced by b", Actor(identity="ada"))


async def test_replacement_keeps_the_schedule_if_wanted(world: World) -> None:
    await planned(world, request("a", later=600), request("b", "replace_except_schedule", later=900))
    [_, second] = await world.stored(Admitted)
    assert (second.execution_id, second.plan.start_at) == ("b", NOON + timedelta(seconds=600))
    await planned(world, request("c", "replace", later=900))
    assert (await world.stored(Admitted))[-1].plan.start_at == NOON + timedelta(seconds=900)
    await ended(world, "c")
    await planned(world, request("d"), request("e", "replace_except_schedule", later=900))
    assert (await world.stored(Admitted))[-1].plan.start_at == NOON + timedelta(seconds=900)


@pytest.mark.parametrize("on_conflict", ["reject", "replace", "replace_except_schedule", "ignore"])
async def test_redelivery_changes_nothing(world: World, on_conflict: str) -> None:
    await planned(world, *(request(id_, on_conflict) for id_ in "abc"))
    size, before = await world.size(), await statuses(world)
    await world.redeliver(world.planner)
    assert (await world.size(), await statuses(world)) == (size, before)


async def test_replay_counts_as_its_job(world: World) -> None:
    await planned(world, request("a"))
    failed = {"scheduled_time": NOON, "trigger": "api", "reason": "attempts", "error": {"type": "E", "message": "no"}}
    await world.given(
        validated(
            Failed, {"job": JOB, "execution_id": "a", "dead_letter": True, "step": "main", "attempt": 1, **failed}
        )
    )
    await world.run(world.dead_letter_sink)
    await world.given(Replayed(job=JOB, id="a", number=1, ledger=0))
    await planned(world, request("b"))
    replay = (await world.stored(Admitted))[-1].execution_id
    assert await statuses(world) == {"a": "failed", replay: "admitted", "b": "skipped"}
    await planned(world, request("c", "replace"))
    assert (await statuses(world))[replay] == "cancelled"
