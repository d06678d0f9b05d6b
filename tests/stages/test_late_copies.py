"""Copies of a stage that are late, read a lagging replica, or died halfway.

The simulation (`tests/simulation`) found each case; each is replayed here step by step.
"""

import asyncio
from collections.abc import AsyncGenerator
from datetime import timedelta
from typing import cast

import pytest

from tests.domain.given import ID, JOB, KEY, NOON, admitted, admitted_of, plan, started
from tests.stages.test_lock_keeper import completed, planned
from tests.stages.test_races import Lagging, handle_report, report
from tests.stages.test_ticker import leading, tick
from tests.stages.world import World
from tocsin import subjects
from tocsin.domain import execution, execution_plan, ledger
from tocsin.domain.definition import RetryPolicy
from tocsin.domain.events import (
    Acquired,
    Admitted,
    Completed,
    CronSkipped,
    CronTriggered,
    Defined,
    Due,
    Failure,
    Lost,
    Planned,
    PoisonMessage,
    Recorded,
    Report,
    Requested,
    Skipped,
    Trigger,
)
from tocsin.domain.execution import Execution, Status
from tocsin.domain.ledger import JobNotFound
from tocsin.domain.recovery import Policy, Stalled, examine
from tocsin.engine.kinds import execution_state
from tocsin.engine.ledger_reader import LedgerReader
from tocsin.engine.locks import lock_state
from tocsin.ports import Heading, Headings, LogUnavailable, OutdatedState, StaleRead
from tocsin.stages.recoverer.open_executions import MAX_PAUSED_S, PAUSE_S, Evidence, OpenExecutions
from tocsin.subjects import Bucket, Stream, cursor
from tocsin.testing import settle


async def delete(world: World, job: str) -> int:
    state, sequence = await LedgerReader(world.log).load(job)
    [fact] = ledger.delete(state, job)
    return await world.log.append(fact, expect=sequence)


async def shown(world: World) -> bytes | None:
    found = await world.projections.get(Bucket.DEFINITIONS, JOB)
    return found[0] if found else None


async def test_i8_old_change_keeps_the_newer_definition_shown(world: World) -> None:
    await world.define({"name": JOB, "function": "old"})
    await world.define({"name": JOB, "function": "new"})
    await world.run(world.registrar)
    before = await shown(world)
    [change, _] = await world.recorded(Defined)
    with pytest.raises(OutdatedState):
        await world.deliver(world.registrar.subscriptions[0], change, log=Lagging(world, upto=1))
    assert await shown(world) == before


async def test_i8_deleted_job_is_not_shown_again(world: World) -> None:
    """An absent key has no revision by which a copy that stood still could tell that it came and went."""
    await world.define({"name": JOB, "function": "f"})
    [change] = await world.recorded(Defined)
    put = world.projections.put

    async def slow(
        bucket: Bucket, key: str, value: bytes, *, expect: int | None = None, ttl: float | None = None
    ) -> int:
        world.projections.put = put  # type: ignore[method-assign]
        await world.run(world.registrar)
        await delete(world, JOB)
        await world.run(world.registrar)
        return await put(bucket, key, value, expect=expect, ttl=ttl)

    world.projections.put = slow  # type: ignore[method-assign]
    await world.deliver(world.registrar.subscriptions[0], change)
    assert await shown(world) is None


async def test_deleted_job_is_removed_despite_a_lagging_entry(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await world.define({"name": JOB, "function": "f"})
    await world.run(world.registrar)
    await delete(world, JOB)
    get, answers = world.projections.get, [None]

    async def lagging(bucket: Bucket, key: str) -> tuple[bytes, int] | None:
        return answers.pop() if answers else await get(bucket, key)

    monkeypatch.setattr(world.projections, "get", lagging)
    await world.run(world.registrar)
    assert await shown(world) is None


async def test_queued_execution_is_admitted_despite_a_lagging_replica(world: World) -> None:
    await world.define({"name": JOB, "function": "f"})
    await world.given(planned("a", 12, "enqueue"))
    await world.run(world.lock_keeper)
    [first] = await world.stored(Admitted)
    await world.given(planned("b", 13, "enqueue"))
    await world.run(world.lock_keeper)
    await world.given(completed("a", first.fence))
    [end] = await world.recorded(Completed)
    replica = Lagging(world, upto=10_000)
    store, ends = world.copy(replica), world.lock_keeper.subscriptions[1]
    await store.view().read([lock_state(JOB), execution_state(JOB, "a")])
    replica.upto = 1  # so that only the waiting execution is read from the replica
    with pytest.raises(OutdatedState):
        await world.deliver(ends, end, store=store)
    replica.upto = 10_000
    await world.deliver(ends, end, store=store)
    assert [fact.execution_id for fact in await world.stored(Admitted)] == ["a", "b"]


@pytest.mark.parametrize("next_came", [False, True])
async def test_cron_29_finished_execution_is_announced_after_a_crash(world: World, *, next_came: bool) -> None:
    await world.define({"name": JOB, "function": "f"})
    await world.given(planned("a", 12, "enqueue"))
    await world.run(world.lock_keeper)
    [first] = await world.stored(Admitted)
    await world.given(planned("b", 13, "enqueue"))
    await world.run(world.lock_keeper)
    await world.given(
        completed("a", first.fence), Acquired(job="nightly", execution_id="b", scheduled_time=NOON, ttl=90)
    )
    [_, acquired] = await world.recorded(Acquired)
    let_in = admitted_of(planned("b", 13, "enqueue"), fence=acquired.sequence)
    await world.given(let_in, completed("b", acquired.sequence))
    if next_came:
        await world.given(planned("c", 14, "enqueue"))
        await world.handle(world.lock_keeper.subscriptions[0])
    await world.run(world.lock_keeper)
    events = [event.data.job_id for event in await world.stored(CronTriggered)]
    assert sorted(events) == (["a", "b", "c"] if next_came else ["a", "b"])


async def test_cron_30_skip_after_late_lock_is_announced_after_crash(
    world: World,
) -> None:
    """A paused copy skipped it after another copy had queued it; the next execution has the lock, and ran too."""
    await world.given(planned("a", 12, "enqueue"))
    await world.run(world.lock_keeper)
    [first] = await world.stored(Admitted)
    waiting = planned("b", 13, "enqueue")
    await world.given(waiting, planned("c", 14, "enqueue"))
    given = [Acquired(job="nightly", execution_id=name, scheduled_time=NOON, ttl=90) for name in "bc"]
    [skipped] = execution.skip(Execution(requested=waiting, status=Status.PLANNED), active="a")
    await world.given(skipped, completed("a", first.fence), *given, completed("c", None))
    await world.handle(world.lock_keeper.subscriptions[1])
    assert [event.data.scheduled_time for event in await world.stored(CronSkipped)] == [waiting.scheduled_time]


async def test_i2_replaced_definition_is_decided_by_earlier_tick(
    world: World,
) -> None:
    """A tick is slow, or its clock behind the log's: it reads of a deletion that lies ahead of it."""
    await world.define({"name": JOB, "schedule": "* * * * *", "function": "f"})
    async with leading(world) as ticker:
        await tick(world, ticker, 60)
        began = world.clock.now() + timedelta(seconds=30)
        world.clock.advance(90)
        await delete(world, JOB)
        await asyncio.sleep(0)
        ticker._remember(JOB, *await LedgerReader(world.log).load(JOB))
        ticker._agenda.put(JOB, began)
        await ticker.run_once(began)
        await ticker.run_once(world.clock.now())
    fired = [fact.scheduled_time for fact in await world.stored(Due)]
    state, _ = await LedgerReader(world.log).load(JOB)
    assert len(fired) >= 1
    assert ledger.decide_instants(state, world.clock.now()) == []


async def test_i4_rejected_trigger_stays_rejected_after_redelivery(
    world: World,
) -> None:
    await world.trigger(JOB)
    await world.run(world.planner)
    assert len(await world.stored(PoisonMessage)) == 1
    await world.define({"name": JOB, "function": "f"})
    size = await world.size()
    await world.redeliver(world.planner, is_fresh=True)
    assert await world.size() == size


async def test_trigger_uses_the_definition_when_planned(world: World) -> None:
    await world.define({"name": JOB, "function": "old"})
    await world.trigger(JOB)
    second = await world.define({"name": JOB, "function": "new"})
    await world.run(world.planner)
    [planned_] = await world.stored(Admitted)
    assert (planned_.plan.definition, planned_.plan.steps[0].function) == (second, "new")


async def test_first_decision_on_a_trigger_stands(world: World) -> None:
    """The job is defined only after its trigger was refused, or deleted after it was admitted."""
    await world.trigger(JOB, "early")
    await world.run(world.planner)
    [refused] = await world.stored(Skipped)
    assert (refused.reason, refused.refusal and refused.refusal.code) == ("refused", "job-not-found")
    await world.define({"name": JOB, "function": "f"})
    await world.redeliver(world.planner)
    assert await world.stored(Admitted) == []
    await world.trigger(JOB, "late")
    await world.run(world.planner)
    await delete(world, JOB)
    await world.redeliver(world.planner)
    assert len(await world.stored(Admitted)) == len(await world.stored(PoisonMessage)) == 1


async def test_copies_that_disagree_on_a_trigger_decide_once(world: World) -> None:
    """Another copy stores the refusal between the look of this copy at the job and its decision."""
    await world.define({"name": JOB, "function": "f"})
    await world.trigger(JOB)
    [asked] = await world.log.read("trigger.>")
    trigger = cast("Recorded[Trigger]", asked)
    refused = execution_plan.refused(trigger, JOB, JobNotFound(JOB))
    await world.given(refused)
    await world.run(world.planner)
    assert await world.stored(Requested) == []
    [letter] = await world.stored(PoisonMessage)
    assert (letter.code, letter.reason) == ("job-not-found", str(JobNotFound(JOB)))


async def test_recoverer_starts_without_its_stored_position(world: World) -> None:
    async def silent(bucket: Bucket, key: str) -> None:
        raise LogUnavailable(f"{bucket}/{key}")

    world.projections.get = silent  # type: ignore[method-assign]
    found = OpenExecutions(world.log, world.projections, world.clock, first_look=timedelta(seconds=5))
    following = asyncio.create_task(found.follow())
    await settle()
    assert found.is_complete
    following.cancel()


async def test_recoverer_reads_its_backlog_with_pauses(world: World) -> None:
    headings = [Heading(f"execution.{JOB}.{number}.admitted.main.1", number, NOON) for number in range(1, 4)]

    async def watch(*_: object, **__: object) -> AsyncGenerator[Headings, None]:
        for heading in headings:
            yield Headings([heading], heading.sequence == len(headings), heading.sequence)
        await asyncio.Event().wait()

    world.log.watch = watch  # type: ignore[method-assign]
    found = OpenExecutions(world.log, world.projections, world.clock, first_look=timedelta(seconds=5))
    following = asyncio.create_task(found.follow())
    known = []
    for _ in headings:
        await settle()
        known.append((len(found), found.is_complete))
        world.clock.advance(PAUSE_S)
    assert known == [(1, False), (2, False), (3, True)]
    following.cancel()


async def test_recoverer_pauses_for_a_limited_time(world: World) -> None:
    async def watch(*_: object, **__: object) -> AsyncGenerator[Headings, None]:
        for number in range(1, 4):
            yield Headings([Heading(f"execution.{JOB}.{number}.admitted.main.1", number, NOON)], False, number)
            world.clock.advance(MAX_PAUSED_S)
        await asyncio.Event().wait()

    world.log.watch = watch  # type: ignore[method-assign]
    found = OpenExecutions(world.log, world.projections, world.clock, first_look=timedelta(seconds=5))
    following = asyncio.create_task(found.follow())
    await settle()
    assert len(found) == 1
    world.clock.advance(PAUSE_S)
    await settle()
    assert len(found) == 3
    following.cancel()


async def test_queue_order_survives_a_holder_ending_concurrently(world: World) -> None:
    await world.define({"name": JOB, "function": "f"})
    await world.given(planned("a", 12, "enqueue"), planned("b", 13, "enqueue"))
    await world.run(world.lock_keeper)
    [first] = await world.stored(Admitted)
    tails = world.log.tails

    async def ends_meanwhile(*scopes: str) -> list[int]:
        world.log.tails = tails  # type: ignore[method-assign]
        answer = await tails(*scopes)
        await world.given(completed("a", first.fence))
        return answer

    world.log.tails = ends_meanwhile  # type: ignore[method-assign]
    await world.given(planned("c", 14, "enqueue"))
    [*_, latest] = await world.recorded(Planned)
    await world.deliver(world.lock_keeper.subscriptions[0], latest, log=world.log)
    assert [fact.execution_id for fact in await world.stored(Acquired)] == ["a", "b"]


async def test_execution_waiting_for_an_unhandled_end_is_kept(world: World) -> None:
    await world.given(planned("a", 12, "enqueue"), planned("b", 13, "enqueue"))
    await world.run(world.lock_keeper)
    [first] = await world.stored(Admitted)
    await world.given(completed("a", first.fence))
    [_, waiting] = await world.recorded(Planned)
    state = execution.fold([waiting])
    stalled = Stalled(Lost(what="planned", since=NOON), waiting.sequence)
    assert not await Evidence(world.log, world.projections, KEY).is_lost(stalled, state)
    assert not await Evidence(Lagging(world, upto=2), world.projections, KEY).is_lost(stalled, state)


async def test_replica_without_a_definition_decides_nothing(world: World) -> None:
    await world.define({"name": JOB, "function": "f"})
    with pytest.raises(StaleRead):
        await LedgerReader(Lagging(world, upto=0)).in_force(JOB, at=1)


async def test_execution_waiting_for_an_unadmitted_holder_is_kept(world: World) -> None:
    """The planner stopped after it acquired the lock for the holder, whose trigger is delivered again later."""
    holder = Acquired(job=JOB, execution_id="a", scheduled_time=NOON, ttl=60.0)
    await world.given(holder, planned("b", 13, "enqueue"))
    await world.run(world.lock_keeper)
    [acquired] = await world.recorded(Acquired)
    [waiting] = await world.recorded(Planned)
    state = execution.fold([waiting])
    stalled = Stalled(Lost(what="planned", since=NOON), waiting.sequence)
    assert not await Evidence(world.log, world.projections, KEY).is_lost(stalled, state)
    await world.projections.put(Bucket.CURSORS, cursor(Stream.LOG), str(acquired.sequence).encode(), expect=0)
    assert await Evidence(world.log, world.projections, KEY).is_lost(stalled, state)


async def test_retry_with_an_unhandled_report_is_not_lost(world: World) -> None:
    """The fact is stored, and the delay is about to be."""
    await world.given(admitted(plan(retry=RetryPolicy(max_attempts=2, initial_delay=30))))
    await world.run(world.dag_advancer, world.retrier)
    await world.given(started())
    await handle_report(world, report("failed", error=Failure(type="E")))
    await world.durable(world.retrier.subscriptions[0]).take(1, wait=0)
    scope = subjects.execution(JOB, ID)
    [failed] = await world.recorded(Report)
    state = execution.fold(await world.log.load(scope))
    await world.given(*execution.fail(state, report=failed.message, at=failed.time))
    facts = await world.log.load(scope)
    policy = Policy(threshold=timedelta(seconds=1))
    found = examine(facts, now=failed.time + timedelta(hours=1), policy=policy)
    assert found is not None
    [stalled] = found.stalled
    assert stalled.lost.what == "retry-scheduled"
    assert not await Evidence(world.log, world.projections, KEY).is_lost(stalled, found.state)
