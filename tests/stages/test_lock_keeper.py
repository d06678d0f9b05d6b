"""The lock keeper: one execution of a job at a time."""

from datetime import timedelta
from typing import Literal

import pytest

from tests.domain.given import NOON, plan
from tests.stages.world import World
from tocsin import subjects
from tocsin.domain import execution
from tocsin.domain.events import (
    Acquired,
    Admitted,
    Cancelled,
    Completed,
    CronSkipped,
    CronTriggered,
    Planned,
    Queued,
    Skipped,
)

Policy = Literal["skip", "enqueue", "cancel_previous"]


def planned(execution_id: str, hour: int = 12, policy: Policy = "skip") -> Planned:
    return Planned(
        job="nightly",
        execution_id=execution_id,
        scheduled_time=NOON.replace(hour=hour),
        trigger="cron",
        plan=plan().changed(overlap_policy=policy),
    )


def completed(execution_id: str, fence: int | None) -> Completed:
    return Completed(job="nightly", execution_id=execution_id, scheduled_time=NOON, trigger="cron", fence=fence)


@pytest.fixture(autouse=True)
async def registered(world: World) -> None:
    """A definition, from whose registration runs are counted."""
    assert await world.define({"name": "nightly", "function": "f"}) == plan().definition


async def test_the_first_is_admitted_under_its_fence(world: World) -> None:
    await world.given(planned("a"))
    await world.run(world.lock_keeper)
    [acquired] = await world.recorded(Acquired)
    [admitted] = await world.stored(Admitted)
    assert (admitted.execution_id, admitted.fence) == ("a", acquired.sequence)
    assert [event.data.job_id for event in await world.stored(CronTriggered)] == ["a"]


async def test_cron_18_overlapping_run_is_skipped(world: World) -> None:
    await world.given(planned("a"), planned("b", 13))
    await world.run(world.lock_keeper)
    [skipped] = await world.stored(Skipped)
    assert (skipped.execution_id, skipped.reason, skipped.active_execution_id) == ("b", "overlap_skip", "a")
    [event] = await world.stored(CronSkipped)
    assert (event.data.active_job_id, event.data.scheduled_time) == ("a", NOON.replace(hour=13))


async def test_what_is_over_holds_nothing(world: World) -> None:
    await world.given(planned("a"))
    await world.run(world.lock_keeper)
    [first] = await world.stored(Admitted)
    await world.given(completed("a", first.fence), planned("b", 13))
    await world.run(world.lock_keeper)
    [_, second] = await world.stored(Admitted)
    assert first.fence is not None
    assert second.fence is not None
    assert (second.execution_id, second.fence > first.fence) == ("b", True)


async def test_i4_what_is_delivered_again_adds_nothing(world: World) -> None:
    await world.given(planned("a"), planned("b", 13))
    await world.run(world.lock_keeper)
    size = await world.size()
    await world.redeliver(world.lock_keeper, world.lock_keeper)
    assert await world.size() == size


async def test_skip_is_final_after_the_lock_is_free(world: World) -> None:
    await world.given(planned("a"), planned("b", 13))
    await world.run(world.lock_keeper)
    await world.given(completed("a", 1))
    await world.redeliver(world.lock_keeper)
    assert [fact.execution_id for fact in await world.stored(Admitted)] == ["a"]


async def test_lock_acquired_before_a_crash_is_recognized(world: World) -> None:
    await world.given(planned("a"), Acquired(job="nightly", execution_id="a", scheduled_time=NOON, ttl=90))
    await world.run(world.lock_keeper)
    [admitted] = await world.stored(Admitted)
    assert admitted.execution_id == "a"
    assert len(await world.stored(Acquired)) == 1


async def test_lock_outlives_its_ttl(world: World) -> None:
    """A lock that was taken before the plan may have the shorter time of an earlier definition."""
    await world.given(planned("a"), Acquired(job="nightly", execution_id="a", scheduled_time=NOON, ttl=1))
    await world.run(world.lock_keeper)
    world.clock.advance(3_600)
    await world.given(planned("b", 13))
    await world.run(world.lock_keeper)
    assert [fact.execution_id for fact in await world.stored(Admitted)] == ["a"]
    assert [fact.execution_id for fact in await world.stored(Acquired)] == ["a"]


async def admitted(world: World) -> list[str]:
    return [fact.execution_id for fact in await world.stored(Admitted)]


async def end(world: World, execution_id: str) -> None:
    [fact] = [fact for fact in await world.stored(Admitted) if fact.execution_id == execution_id]
    await world.given(completed(execution_id, fact.fence))
    await world.run(world.lock_keeper)


async def test_cron_18_enqueued_occurrences_run_in_order(world: World) -> None:
    await world.given(planned("a", 12, "enqueue"))
    await world.run(world.lock_keeper)
    await world.given(planned("c", 14, "enqueue"), planned("b", 13, "enqueue"), planned("d", 15, "enqueue"))
    await world.run(world.lock_keeper)
    assert await admitted(world) == ["a"]
    for execution_id in "abc":
        await end(world, execution_id)
    assert await admitted(world) == ["a", "b", "c", "d"]
    fences = [fact.fence or 0 for fact in await world.stored(Admitted)]
    assert fences == sorted(set(fences))
    assert [event.data.job_id for event in await world.stored(CronTriggered)] == ["a", "b", "c", "d"]
    assert await world.stored(Skipped) == []


async def test_i4_what_waits_is_queued_once(world: World) -> None:
    await world.given(planned("a", 12, "enqueue"), planned("b", 13, "enqueue"))
    await world.run(world.lock_keeper)
    size = await world.size()
    await world.redeliver(world.lock_keeper, world.lock_keeper)
    assert await world.size() == size
    await end(world, "a")
    size = await world.size()
    await world.redeliver(world.lock_keeper, world.lock_keeper)
    assert await world.size() == size


async def test_who_is_cancelled_while_waiting_is_passed_over(world: World) -> None:
    await world.given(planned("a", 12, "enqueue"), planned("b", 13, "enqueue"), planned("c", 14, "enqueue"))
    await world.run(world.lock_keeper)
    await world.given(Cancelled(job="nightly", execution_id="b", scheduled_time=NOON, trigger="cron"))
    await end(world, "a")
    assert await admitted(world) == ["a", "c"]


async def test_holder_cancelled_before_its_admission_hands_on(world: World) -> None:
    """The end has no fencing token."""
    await world.given(Acquired(job="nightly", execution_id="a", scheduled_time=NOON, ttl=60))
    await world.given(planned("b", 13, "enqueue"))
    await world.run(world.lock_keeper)
    assert await admitted(world) == []
    await world.given(Cancelled(job="nightly", execution_id="a", scheduled_time=NOON, trigger="cron"))
    await world.run(world.lock_keeper)
    assert await admitted(world) == ["b"]


async def test_thousands_wait_and_run_in_order(world: World) -> None:
    number = 3_000
    first, *later = (
        planned(f"e{at:05}", policy="enqueue").changed(scheduled_time=NOON + timedelta(seconds=at))
        for at in range(number)
    )
    await world.given(first, *reversed(later))
    await world.run(world.lock_keeper)
    names = [f"e{at:05}" for at in range(500)]
    for at in range(len(names) - 1):
        held = execution.fold(await world.log.load(subjects.execution("nightly", f"e{at:05}")))
        await world.given(completed(f"e{at:05}", held.fence))
        await world.run(world.lock_keeper)
    assert [fact.execution_id for fact in await world.stored(Acquired)] == names
    assert await admitted(world) == names
    assert len(await world.stored(Queued)) == number - 1
    assert {event.data.job_id for event in await world.stored(CronTriggered)} == {*names}


async def test_change_to_skip_admits_the_queued_executions(world: World) -> None:
    await world.given(planned("a", 12, "enqueue"), planned("b", 13, "enqueue"))
    await world.run(world.lock_keeper)
    [first] = await world.stored(Admitted)
    await world.given(completed("a", first.fence), planned("c", 14, "skip"))
    await world.run(world.lock_keeper)
    assert await admitted(world) == ["a", "b"]
    [skipped] = await world.stored(Skipped)
    assert (skipped.execution_id, skipped.active_execution_id) == ("c", "b")


async def test_cron_18_previous_run_is_cancelled_for_the_next(world: World) -> None:
    await world.given(planned("a", 12, "cancel_previous"))
    await world.run(world.lock_keeper)
    await world.given(planned("b", 13, "cancel_previous"))
    await world.run(world.lock_keeper)
    [cancelled] = await world.stored(Cancelled)
    assert (cancelled.execution_id, cancelled.reason) == ("a", "superseded by b")
    assert await admitted(world) == ["a", "b"]
    size = await world.size()
    await world.redeliver(world.lock_keeper, world.lock_keeper)
    assert await world.size() == size


async def test_run_completed_before_its_cancellation_stays_completed(world: World) -> None:
    await world.given(planned("a", 12, "cancel_previous"))
    await world.run(world.lock_keeper)
    [first] = await world.stored(Admitted)
    await world.given(completed("a", first.fence), planned("b", 13, "cancel_previous"))
    await world.run(world.lock_keeper)
    assert await world.stored(Cancelled) == []
    assert await admitted(world) == ["a", "b"]
