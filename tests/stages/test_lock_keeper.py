"""The lock keeper: one execution of a job at a time."""

import asyncio
import json
from datetime import timedelta
from typing import Any, Literal
from unittest.mock import AsyncMock

import pytest

from tests.domain.given import NOON, admitted_of, plan
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
    Message,
    Planned,
    PoisonMessage,
    Queued,
    Skipped,
)
from tocsin.domain.text import utc_text
from tocsin.engine.delivery_policy import MAX_FAILURES
from tocsin.engine.lock_projection import LockRenewal
from tocsin.ports import LogUnavailable
from tocsin.subjects import Bucket

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


async def test_public_event_lost_in_a_crash_is_published(world: World) -> None:
    await world.given(
        planned("a"),
        Acquired(job="nightly", execution_id="a", scheduled_time=NOON, ttl=90),
        admitted_of(planned("a"), fence=2),
    )
    await world.run(world.lock_keeper)
    assert [event.data.job_id for event in await world.stored(CronTriggered)] == ["a"]


async def test_held_lock_is_shown_as_hip_62_says(world: World) -> None:
    await world.given(planned("a"))
    await world.run(world.lock_keeper)
    await world.show_locks()
    shown = await world.projections.get(Bucket.LOCKS, "scheduler.lock.nightly")
    assert shown is not None
    value = json.loads(shown[0])
    assert value == {"execution_id": "a", "acquired_at": utc_text(world.clock.now()), "ttl": 90.0}
    await world.given(completed("a", 1))
    await world.run(world.lock_keeper)
    await world.show_locks()
    assert await world.projections.get(Bucket.LOCKS, "scheduler.lock.nightly") is None


async def test_shown_lock_lives_as_long_as_its_holder(world: World) -> None:
    await world.given(planned("a"))
    await world.run(world.lock_keeper)
    await world.show_locks()
    acquired_at = utc_text(world.clock.now())
    renewal = LockRenewal(world.log, world.projections, world.clock)  # of a copy that did not write the entry
    for _ in range(60):
        await world.clock.run(10)
        await renewal.run_once(world.clock.now())
    shown = await world.projections.get(Bucket.LOCKS, "scheduler.lock.nightly")
    assert shown is not None
    value = json.loads(shown[0])
    assert (value["execution_id"], value["acquired_at"], value["ttl"]) == ("a", acquired_at, 90.0)
    await world.given(completed("a", 1))
    for _ in range(10):
        await world.clock.run(10)
        await renewal.run_once(world.clock.now())
    assert await world.projections.get(Bucket.LOCKS, "scheduler.lock.nightly") is None


async def test_lock_keeper_renews_by_itself(world: World) -> None:
    await world.given(planned("a"))
    await world.run(world.lock_keeper)
    loops = [asyncio.create_task(loop()) for loop in world.lock_keeper.loops]
    await asyncio.sleep(0)
    await world.clock.run(200)
    assert await world.projections.get(Bucket.LOCKS, "scheduler.lock.nightly") is not None
    for loop in loops:
        loop.cancel()
    await asyncio.gather(*loops, return_exceptions=True)


async def test_entry_of_an_archived_holder_hides_no_other(world: World) -> None:
    since = utc_text(world.clock.now())
    gone = json.dumps({"execution_id": "gone", "acquired_at": since, "ttl": 90}).encode()
    await world.projections.put(Bucket.LOCKS, "scheduler.lock.another", gone)
    await world.given(planned("a"))
    await world.run(world.lock_keeper)
    await world.show_locks()
    await world.clock.run(46)
    await LockRenewal(world.log, world.projections, world.clock).run_once(world.clock.now())
    shown = await world.projections.get(Bucket.LOCKS, "scheduler.lock.nightly")
    assert shown is not None
    assert "renewed_at" in json.loads(shown[0])


async def test_entry_of_a_stopped_process_is_removed(world: World) -> None:
    """The process that showed the lock was killed after its holder's end, and before it removed the entry."""
    await world.given(planned("a"))
    await world.run(world.lock_keeper)
    await world.show_locks()
    other = LockRenewal(world.log, world.projections, world.clock)
    await other.run_once(world.clock.now())
    await world.given(completed("a", 1))
    await other.run_once(world.clock.now())
    assert await world.projections.get(Bucket.LOCKS, "scheduler.lock.nightly") is not None  # it is known to this copy
    await LockRenewal(world.log, world.projections, world.clock).run_once(world.clock.now())
    assert await world.projections.get(Bucket.LOCKS, "scheduler.lock.nightly") is None


async def test_stopped_process_left_an_old_entry(world: World) -> None:
    await world.given(planned("a"))
    await world.run(world.lock_keeper)
    await world.show_locks()
    other = LockRenewal(world.log, world.projections, world.clock)
    await other.run_once(world.clock.now())
    await world.given(completed("a", 1))
    await world.clock.run(46)
    await other.run_once(world.clock.now())
    assert await world.projections.get(Bucket.LOCKS, "scheduler.lock.nightly") is None


@pytest.mark.parametrize("call", ["put", "get", "remove", "load_each"])
async def test_change_of_a_lock_outlasts_a_failure(world: World, call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next update shows or removes it."""
    target = world.log if call == "load_each" else world.projections

    async def show(shown: str | None) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(target, call, AsyncMock(side_effect=LogUnavailable("away")))
            await world.show_locks()
        await world.show_locks()
        entry = await world.projections.get(Bucket.LOCKS, "scheduler.lock.nightly")
        assert (json.loads(entry[0])["execution_id"] if entry else None) == shown

    await world.given(planned("a"))
    await world.run(world.lock_keeper)
    await show("a")
    await world.given(completed("a", 1), planned("b", 13))
    await world.run(world.lock_keeper)
    await show("b")
    await world.given(completed("b", (await world.recorded(Acquired))[-1].sequence))
    await world.run(world.lock_keeper)
    await show(None)


async def test_released_lock_is_removed_after_failures(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two updates fail: of the next holder, and of its end. The entry of the holder before both is removed."""
    await world.given(planned("a"))
    await world.run(world.lock_keeper)
    await world.show_locks()
    with monkeypatch.context() as patched:
        patched.setattr(world.projections, "put", AsyncMock(side_effect=LogUnavailable("away")))
        await world.given(completed("a", 1), planned("b", 13))
        await world.run(world.lock_keeper)
        await world.show_locks()
    with monkeypatch.context() as patched:
        patched.setattr(world.projections, "get", AsyncMock(side_effect=LogUnavailable("away")))
        await world.given(completed("b", (await world.recorded(Acquired))[-1].sequence))
        await world.run(world.lock_keeper)
        await world.show_locks()
    await world.show_locks()
    assert await world.projections.get(Bucket.LOCKS, "scheduler.lock.nightly") is None


@pytest.mark.parametrize(
    "body",
    [b"not JSON", b"[]", b'{"ttl": 90}', b'{"acquired_at": 7, "ttl": "x"}', b'{"execution_id": "> *", "ttl": 90}'],
)
async def test_foreign_entry_stops_no_renewal(world: World, body: bytes) -> None:
    await world.projections.put(Bucket.LOCKS, "scheduler.lock.foreign", body)
    await LockRenewal(world.log, world.projections, world.clock).run_once(world.clock.now())
    assert await world.projections.get(Bucket.LOCKS, "scheduler.lock.foreign") is not None


async def test_briefly_held_lock_is_never_shown(world: World) -> None:
    await world.given(planned("a"))
    await world.run(world.lock_keeper)
    [acquired] = await world.recorded(Acquired)
    await world.given(completed("a", acquired.sequence))
    await world.run(world.lock_keeper)
    writes = world.projections.put = AsyncMock()  # type: ignore[method-assign]
    await world.show_locks()
    writes.assert_not_called()


async def test_lock_ended_by_another_copy_is_not_shown(world: World) -> None:
    await world.given(planned("a"))
    await world.run(world.lock_keeper)
    [acquired] = await world.recorded(Acquired)
    await world.given(completed("a", acquired.sequence))
    await world.show_locks()
    assert await world.projections.get(Bucket.LOCKS, "scheduler.lock.nightly") is None


@pytest.mark.parametrize("writer", ["projection", "renewal"])
async def test_entry_of_a_later_holder_is_not_removed(
    world: World, writer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The holder ends, and another process shows the next, between the read of an entry and its removal."""
    key, later = "scheduler.lock.nightly", b'{"execution_id": "b"}'
    await world.given(planned("a"))
    await world.run(world.lock_keeper)
    if writer == "renewal":
        await world.show_locks()
    load_each = world.log.load_each

    async def overtaken(*scopes: str, **options: Any) -> Any:  # noqa: ANN401 - passed on
        if await world.projections.get(Bucket.LOCKS, key) is not None:
            monkeypatch.undo()
            await world.given(completed("a", 1))
            await world.projections.put(Bucket.LOCKS, key, later)
        return await load_each(*scopes, **options)

    monkeypatch.setattr(world.log, "load_each", overtaken)
    if writer == "renewal":
        await LockRenewal(world.log, world.projections, world.clock).run_once(world.clock.now())
    else:
        await world.show_locks()
    entry = await world.projections.get(Bucket.LOCKS, key)
    assert (await world.stored(Completed), entry and entry[0]) == ([completed("a", 1)], later)


async def test_failed_projection_does_not_stop_the_stage(world: World) -> None:
    await world.given(planned("a"))
    await world.run(world.lock_keeper)
    world.projections.put = AsyncMock(side_effect=LogUnavailable("away"))  # type: ignore[method-assign]
    await world.show_locks()
    assert await world.projections.get(Bucket.LOCKS, "scheduler.lock.nightly") is None


async def test_earlier_end_keeps_the_next_lock_shown(world: World) -> None:
    await world.given(planned("a"))
    await world.run(world.lock_keeper)
    await world.show_locks()
    await world.given(completed("a", 1), planned("b", 13))
    await world.handle(world.lock_keeper.subscriptions[0])
    await world.handle(world.lock_keeper.subscriptions[1])
    await world.show_locks()
    shown = await world.projections.get(Bucket.LOCKS, "scheduler.lock.nightly")
    assert shown is not None
    assert json.loads(shown[0])["execution_id"] == "b"


async def test_two_copies_never_admit_two(world: World) -> None:
    decisions, copy = world.lock_keeper.subscriptions[0], world.copy()
    await world.given(planned("a"), planned("b", 13))
    [a, b] = await world.recorded(Planned)
    await world.deliver(decisions, a)
    await world.deliver(decisions, b, store=copy)
    await world.deliver(decisions, a, store=copy)
    assert [fact.execution_id for fact in await world.stored(Admitted)] == ["a"]
    assert [fact.execution_id for fact in await world.stored(Skipped)] == ["b"]


# --- enqueue ---------------------------------------------------------------------------------------------------------


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


async def test_execution_queued_while_the_holder_ends_is_remembered(world: World) -> None:
    """The end is handled before the queueing is stored, so no other event would wake the queued execution."""
    await world.given(planned("a", 12, "enqueue"))
    await world.run(world.lock_keeper)
    append = world.log.append

    async def overtaken(fact: Message, *, expect: int) -> int:
        world.log.append = append  # type: ignore[method-assign]
        if isinstance(fact, Queued):
            await end(world, "a")
        return await append(fact, expect=expect)

    await world.given(planned("b", 13, "enqueue"))
    world.log.append = overtaken  # type: ignore[method-assign]
    await world.run(world.lock_keeper)
    assert await admitted(world) == ["a", "b"]


async def test_crash_between_lock_and_admission_is_completed(world: World) -> None:
    await world.given(planned("a", 12, "enqueue"), planned("b", 13, "enqueue"))
    await world.run(world.lock_keeper)
    [first] = await world.stored(Admitted)
    await world.given(
        completed("a", first.fence), Acquired(job="nightly", execution_id="b", scheduled_time=NOON, ttl=90)
    )
    await world.run(world.lock_keeper)
    assert await admitted(world) == ["a", "b"]
    assert [event.data.job_id for event in await world.stored(CronTriggered)] == ["a", "b"]


async def test_admitted_execution_is_announced_after_a_crash(world: World) -> None:
    await world.given(planned("a", 12, "enqueue"), planned("b", 13, "enqueue"))
    await world.run(world.lock_keeper)
    [first] = await world.stored(Admitted)
    acquired = Acquired(job="nightly", execution_id="b", scheduled_time=NOON, ttl=90)
    let_in = admitted_of(planned("b", 13, "enqueue"), fence=99)
    await world.given(completed("a", first.fence), acquired, let_in)
    await world.run(world.lock_keeper)
    assert [event.data.job_id for event in await world.stored(CronTriggered)] == ["a", "b"]


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
    await world.handle(world.lock_keeper.subscriptions[0])
    assert await admitted(world) == []
    await world.given(Cancelled(job="nightly", execution_id="a", scheduled_time=NOON, trigger="cron"))
    await world.handle(world.lock_keeper.subscriptions[1])
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
        await world.handle(world.lock_keeper.subscriptions[1])
    assert [fact.execution_id for fact in await world.stored(Acquired)] == names
    assert await admitted(world) == names
    assert len(await world.stored(Queued)) == number - 1
    assert {event.data.job_id for event in await world.stored(CronTriggered)} == {*names}


async def test_change_to_skip_admits_the_queued_executions(world: World) -> None:
    await world.given(planned("a", 12, "enqueue"), planned("b", 13, "enqueue"))
    await world.run(world.lock_keeper)
    [first] = await world.stored(Admitted)
    await world.given(completed("a", first.fence), planned("c", 14, "skip"))
    await world.handle(world.lock_keeper.subscriptions[0])
    assert await admitted(world) == ["a", "b"]
    [skipped] = await world.stored(Skipped)
    assert (skipped.execution_id, skipped.active_execution_id) == ("c", "b")


# --- cancel_previous -------------------------------------------------------------------------------------------------


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


async def test_unadmitted_holder_is_superseded_once_admitted(world: World) -> None:
    acquired = Acquired(job="nightly", execution_id="a", scheduled_time=NOON, ttl=60)
    await world.given(acquired, planned("b", 13, "cancel_previous"))
    [subscription, *_] = world.lock_keeper.subscriptions
    for _ in range(MAX_FAILURES + 1):  # the process that acquired the lock has not stored the admission yet
        await world.outcomes.apply(subscription, await world.durable(subscription).take(256, wait=0))
        await world.clock.run(20)
    assert (await world.stored(PoisonMessage), await world.stored(Cancelled), world.pending) == ([], [], 1)
    await world.given(planned("a", 12, "cancel_previous"))
    await world.run(world.lock_keeper)
    assert [event.execution_id for event in await world.stored(Cancelled)] == ["a"]
    assert (await admitted(world))[-1] == "b"


async def test_run_completed_before_its_cancellation_stays_completed(world: World) -> None:
    await world.given(planned("a", 12, "cancel_previous"))
    await world.run(world.lock_keeper)
    [first] = await world.stored(Admitted)
    await world.given(completed("a", first.fence), planned("b", 13, "cancel_previous"))
    await world.run(world.lock_keeper)
    assert await world.stored(Cancelled) == []
    assert await admitted(world) == ["a", "b"]
