"""The lock keeper: one execution of a job at a time."""

import json

from tests.domain.given import NOON, plan
from tests.stages.world import World
from tocsin.domain.events import Acquired, Admitted, Completed, CronSkipped, CronTriggered, Planned, Skipped
from tocsin.subjects import Bucket


def planned(execution_id: str, hour: int = 12) -> Planned:
    return Planned(
        job="nightly", execution_id=execution_id, scheduled_time=NOON.replace(hour=hour), trigger="cron", plan=plan()
    )


def completed(execution_id: str, fence: int | None) -> Completed:
    return Completed(job="nightly", execution_id=execution_id, scheduled_time=NOON, trigger="cron", fence=fence)


async def test_the_first_is_admitted_under_its_fence(world: World) -> None:
    await world.given(planned("a"))
    await world.run(world.lock_keeper)
    [acquired] = await world.recorded(Acquired)
    [admitted] = await world.stored(Admitted)
    assert (admitted.execution_id, admitted.fence) == ("a", acquired.sequence)
    assert [event.data.job_id for event in await world.stored(CronTriggered)] == ["a"]


async def test_cron_18_the_next_is_skipped_while_it_runs(world: World) -> None:
    await world.given(planned("a"), planned("b", 13))
    await world.run(world.lock_keeper)
    [skipped] = await world.stored(Skipped)
    assert (skipped.execution_id, skipped.reason, skipped.active_execution_id) == ("b", "overlap_skip", "a")
    [told] = await world.stored(CronSkipped)
    assert (told.data.active_job_id, told.data.scheduled_time) == ("a", NOON.replace(hour=13))


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


async def test_a_skip_stays_a_skip_when_the_lock_is_free_again(world: World) -> None:
    await world.given(planned("a"), planned("b", 13))
    await world.run(world.lock_keeper)
    await world.given(completed("a", 1))
    await world.redeliver(world.lock_keeper)
    assert [fact.execution_id for fact in await world.stored(Admitted)] == ["a"]


async def test_a_lock_that_a_crash_left_acquired_is_its_own(world: World) -> None:
    await world.given(planned("a"), Acquired(job="nightly", execution_id="a", scheduled_time=NOON, ttl=90))
    await world.run(world.lock_keeper)
    [admitted] = await world.stored(Admitted)
    assert admitted.execution_id == "a"
    assert len(await world.stored(Acquired)) == 1


async def test_an_announcement_that_a_crash_left_out_is_made_up_for(world: World) -> None:
    await world.given(
        planned("a"),
        Acquired(job="nightly", execution_id="a", scheduled_time=NOON, ttl=90),
        Admitted(**dict(planned("a").__dict__, type="admitted"), fence=2),
    )
    await world.run(world.lock_keeper)
    assert [event.data.job_id for event in await world.stored(CronTriggered)] == ["a"]


async def test_the_lock_is_shown_as_hip_62_says_for_as_long_as_it_is_held(world: World) -> None:
    await world.given(planned("a"))
    await world.run(world.lock_keeper)
    shown = await world.projections.get(Bucket.LOCKS, "scheduler.lock.nightly")
    assert shown is not None
    value = json.loads(shown[0])
    assert value == {"execution_id": "a", "acquired_at": world.clock.now().isoformat(), "ttl": 90.0}
    await world.given(completed("a", 1))
    await world.run(world.lock_keeper)
    assert await world.projections.get(Bucket.LOCKS, "scheduler.lock.nightly") is None


async def test_the_end_of_an_earlier_holder_leaves_the_next_ones_lock_shown(world: World) -> None:
    await world.given(planned("a"))
    await world.run(world.lock_keeper)
    await world.given(completed("a", 1), planned("b", 13))
    await world.handle(world.lock_keeper.subscriptions[0])
    await world.handle(world.lock_keeper.subscriptions[1])
    shown = await world.projections.get(Bucket.LOCKS, "scheduler.lock.nightly")
    assert shown is not None
    assert json.loads(shown[0])["execution_id"] == "b"


async def test_two_copies_never_admit_two(world: World) -> None:
    other = World()
    other.log, other.projections = world.log, world.projections
    from tocsin.domain import execution  # noqa: PLC0415
    from tocsin.stages.entities import Entities  # noqa: PLC0415
    from tocsin.stages.lock_keeper import lock_keeper  # noqa: PLC0415

    executions = Entities(world.log, execution.initial, execution.evolve)
    copy = lock_keeper(world.log, executions, world.projections, world.clock)
    await world.given(planned("a"), planned("b", 13))
    [a, b] = await world.recorded(Planned)
    await world.lock_keeper.subscriptions[0].handle(a)
    await copy.subscriptions[0].handle(b)
    await copy.subscriptions[0].handle(a)
    assert [fact.execution_id for fact in await world.stored(Admitted)] == ["a"]
    assert [fact.execution_id for fact in await world.stored(Skipped)] == ["b"]
