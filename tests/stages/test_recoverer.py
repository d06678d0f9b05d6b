"""The recoverer: nothing stays open forever, and waiting work is not taken for lost."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from typing import Any
from unittest.mock import AsyncMock

import pytest
from structlog.testing import capture_logs

from tests.domain.given import ID, NOON, admitted, plan, proven
from tests.guards import guarded
from tests.stages.recovering import (
    GRAPH,
    HOUR,
    JOB,
    MINUTE,
    POLICY,
    Scene,
    begin,
    begin_and_lose,
    lose_delay,
    recovering,
    started,
    store,
    succeeded,
)
from tests.stages.world import World
from tocsin import subjects
from tocsin.domain import ledger
from tocsin.domain.definition import JobDefinition
from tocsin.domain.events import (
    Acquired,
    Admitted,
    Advanced,
    Completed,
    DeadLettered,
    Dispatched,
    Enqueued,
    Envelope,
    Failed,
    Message,
    Planned,
    Queued,
    Recorded,
    Recovered,
    Report,
    RetryScheduled,
    Started,
)
from tocsin.domain.recovery import Policy
from tocsin.engine.ledger_reader import LedgerReader
from tocsin.ports import Heading, Loaded, LogUnavailable, SequenceConflict, Write, Written
from tocsin.subjects import Bucket
from tocsin.testing import settle


@pytest.fixture
async def scene(world: World) -> AsyncIterator[Scene]:
    await world.define(JOB)
    async with recovering(world) as it:
        await world.run(world.registrar, *it.stages)
        yield it


# --- attempts --------------------------------------------------------------------------------------------------------


async def test_attempt_without_a_worker_fails_after_its_timeout(scene: Scene) -> None:
    await begin(scene)
    task = await scene.claim()
    await scene.passes(39)
    assert await scene.world.stored(Report) == []
    await scene.passes(2)
    report = await scene.only(Report)
    assert (report.outcome, report.step, report.attempt, report.delivery) == ("failed", "main", 1, 1)
    assert (report.error.type, "within 30s" in report.error.message) == ("timed_out", True)
    assert report.worker == "recoverer"
    scheduled = await scene.only(RetryScheduled)
    assert (scheduled.execution_id, scheduled.attempt, scheduled.error.type) == (task.execution_id, 1, "timed_out")


async def test_execution_fails_and_unlocks_after_its_last_attempt(scene: Scene) -> None:
    await begin(scene)
    for _ in range(2):
        await scene.claim()
        await scene.passes(41)
        await scene.passes(2)
    failed = await scene.only(Failed)
    assert (failed.reason, failed.error.type, failed.attempt) == ("attempts", "timed_out", 2)
    assert (await scene.only(DeadLettered)).execution_id == failed.execution_id
    await begin(scene, "the next one")
    assert len(await scene.world.stored(Admitted)) == 2


async def test_attempt_taken_over_has_its_whole_timeout(scene: Scene) -> None:
    await begin(scene)
    task = await scene.claim()
    await scene.passes(20)
    await scene.world.given(started(task, 2))
    await scene.passes(30)
    assert await scene.world.stored(Report) == []
    await scene.passes(11)
    assert (await scene.only(Report)).delivery == 2


async def test_late_success_counts_until_the_execution_ends(scene: Scene) -> None:
    await begin(scene)
    task = await scene.claim()
    await scene.passes(41, scene.world.planner)  # no stage handles the report yet
    await scene.world.run(scene.world.retrier)
    assert len(await scene.world.stored(RetryScheduled)) == 1
    await store(scene.world, succeeded(task))
    await scene.world.run(*scene.stages)
    assert (await scene.only(Completed)).attempt == 1
    await scene.passes(HOUR)
    assert len(await scene.world.stored(Dispatched)) == 1


async def test_unhandled_success_precedes_the_deadline(scene: Scene) -> None:
    await begin(scene)
    task = await scene.claim()
    await store(scene.world, succeeded(task))
    for _ in range(3):
        await scene.passes(10 * MINUTE, scene.world.retrier)  # the DAG advancer is down
    assert [report.outcome for report in await scene.world.stored(Report)] == ["completed"]
    await scene.world.run(*scene.stages)
    assert (await scene.only(Completed)).attempt == 1


async def test_lost_report_is_published_again(scene: Scene) -> None:
    await begin(scene)
    task = await scene.claim()
    await store(scene.world, succeeded(task))
    reports = scene.world.durable(scene.world.dag_advancer.subscriptions[1])
    [delivery] = await reports.take(1, wait=0)
    await delivery.ack()
    await scene.passes(MINUTE)
    assert await scene.world.stored(Completed) == []
    await scene.passes(5 * MINUTE)
    assert (await scene.only(Completed)).attempt == 1


async def test_forged_report_does_not_stop_the_deadline(scene: Scene) -> None:
    await begin(scene)
    task = await scene.claim()
    await store(scene.world, succeeded(task, key=b"another"))
    await scene.passes(41)
    assert [report.outcome for report in await scene.world.stored(Report)] == ["completed", "failed"]


async def test_unreadable_report_does_not_stop_the_deadline(scene: Scene) -> None:
    await begin(scene)
    task = await scene.claim()
    subject = subjects.subject_of(succeeded(task, key=b"another"))
    scene.world.log.receive(subject, b"no json")
    await scene.passes(41)
    assert len(await scene.world.log.read(subjects.filter_for("report.failed"))) == 1


async def test_unreadable_report_of_holder_stops_no_deadline(scene: Scene) -> None:
    await begin(scene)
    task = await scene.claim()
    [claim] = await scene.world.recorded(Started)
    own = proven(succeeded(task).changed(claim=claim.sequence))
    scene.world.log.receive(subjects.subject_of(own), b"no json")
    await scene.passes(41)
    assert len(await scene.world.log.read(subjects.filter_for("report.failed"))) == 1


async def test_failure_of_an_earlier_holder_keeps_the_deadline(scene: Scene) -> None:
    await begin(scene)
    task = await scene.claim()
    await store(scene.world, succeeded(task, outcome="failed"))
    await scene.world.given(started(task, 2))
    await scene.passes(41)
    assert [report.delivery for report in await scene.world.stored(Report)] == [1, 2]


# --- tasks that are handed over --------------------------------------------------------------------------------------


async def test_unanswered_mq_task_fails(world: World) -> None:
    await world.define(JOB)
    async with recovering(world, outside=frozenset({"default"})) as scene:
        await world.trigger("nightly")
        await scene.passes(1)
        await world.run(world.mq_bridge)
        await scene.passes(41)
        report = await scene.only(Report)
        assert (report.delivery, report.error.type) == (1, "timed_out")
        assert "MQ executor" in report.error.message
        assert (report.error.type, "within 30s" in report.error.message) == ("timed_out", True)
        await scene.passes(2)
        await world.run(world.mq_bridge)
        await scene.passes(41)
        failed = await scene.only(Failed)
        assert (failed.reason, failed.attempt) == ("attempts", 2)
        assert len(await world.log.read("mq.scheduled.>")) == 2


async def test_task_not_yet_bridged_keeps_its_timeout(world: World) -> None:
    await world.define(JOB)
    async with recovering(world, outside=frozenset({"default"})) as scene:
        world.durable(world.mq_bridge.subscriptions[0])
        await world.trigger("nightly")
        await scene.passes(1)
        await scene.passes(HOUR)
        assert await world.stored(Report) == []
        await world.run(world.mq_bridge)
        await scene.passes(HOUR)
        assert len(await world.stored(Report)) == 1


# --- the execution's own time limit ----------------------------------------------------------------------------------


async def test_execution_ends_at_its_timeout_and_unlocks(scene: Scene) -> None:
    await scene.world.define({**JOB, "execution_timeout": "20s"})
    await begin(scene)
    await scene.claim()
    await scene.passes(15)
    assert await scene.world.stored(Failed) == []
    await scene.passes(6)
    failed = await scene.only(Failed)
    assert (failed.reason, failed.step, failed.fence is not None) == ("timed_out", None, True)
    assert (failed.error.type, "20s" in failed.error.message) == ("timed_out", True)
    assert await scene.world.projections.get(Bucket.LOCKS, "scheduler.lock.nightly") is None
    assert (await scene.only(DeadLettered)).last_error.type == "timed_out"
    await begin(scene, "the next one")
    assert len(await scene.world.stored(Admitted)) == 2


async def test_a_job_without_one_has_none(scene: Scene) -> None:
    await begin(scene)
    for _ in range(48):
        await scene.passes(HOUR)
    assert await scene.world.stored(Failed) == []


# --- what was lost ---------------------------------------------------------------------------------------------------


async def test_task_without_a_worker_is_not_lost(scene: Scene) -> None:
    await begin(scene)
    await scene.passes(48 * HOUR)
    assert await scene.world.stored(Recovered) == []
    task = await scene.claim()
    await store(scene.world, succeeded(task))
    await scene.world.run(*scene.stages)
    assert (await scene.only(Completed)).attempt == 1


async def test_recovered_task_says_so(scene: Scene) -> None:
    await scene.world.define(GRAPH)
    await begin_and_lose(scene)
    await scene.passes(4 * MINUTE)
    assert await scene.world.stored(Recovered) == []
    await scene.passes(MINUTE + 1)
    recovered = await scene.only(Recovered)
    assert (recovered.recovery, [lost.what for lost in recovered.lost]) == (1, ["admitted"])
    task = await scene.only(Dispatched)
    assert (task.step, task.attempt, task.is_recovery) == ("main", 1, True)
    assert (task.original_scheduled_time, task.recovery_attempt_time) == (task.scheduled_time, recovered.recovered_at)


async def plan_only(world: World) -> None:
    """Store an execution as planned: another holds its lock, and ends then."""
    await world.given(Acquired(job="nightly", execution_id="other", scheduled_time=NOON, ttl=90))
    await world.trigger("nightly")
    await world.run(world.planner)
    await world.given(Completed(job="nightly", execution_id="other", scheduled_time=NOON, trigger="manual"))


async def test_undecided_execution_is_planned_again(scene: Scene) -> None:
    await plan_only(scene.world)
    keeper = scene.world.durable(scene.world.lock_keeper.subscriptions[0])
    [delivery] = await keeper.take(1, wait=0)
    await delivery.ack()
    await scene.passes(5 * MINUTE)
    assert [lost.what for lost in (await scene.only(Recovered)).lost] == ["planned"]
    assert (await scene.only(Admitted)).recovered_at is not None
    assert (await scene.only(Dispatched)).is_recovery


async def test_execution_with_lock_but_unadmitted_is_admitted(scene: Scene) -> None:
    await plan_only(scene.world)
    planned = await scene.only(Planned)
    await scene.world.given(
        Acquired(job="nightly", execution_id=planned.execution_id, scheduled_time=planned.scheduled_time, ttl=90)
    )
    keeper = scene.world.durable(scene.world.lock_keeper.subscriptions[0])
    [delivery] = await keeper.take(1, wait=0)
    await delivery.ack()
    await begin(scene, "it is skipped, for the lock is held")
    await scene.passes(5 * MINUTE)
    assert (await scene.only(Admitted)).execution_id == planned.execution_id
    assert [fact.execution_id for fact in await scene.world.stored(Acquired)] == ["other", planned.execution_id]


async def test_backlog_of_a_stopped_stage_is_not_lost(scene: Scene) -> None:
    await scene.world.trigger("nightly")
    await scene.world.run(scene.world.planner)
    scene.world.durable(scene.world.lock_keeper.subscriptions[0])
    for _ in range(30):
        await scene.passes(HOUR, scene.world.planner)
    assert [*await scene.world.stored(Recovered), *await scene.world.stored(Failed)] == []
    await scene.world.run(*scene.stages)
    assert len(await scene.world.stored(Dispatched)) == 1


async def test_admitted_but_undispatched_execution_is_dispatched(scene: Scene) -> None:
    steps = [{"name": "one", "function": "f"}, {"name": "two", "function": "f", "depends_on": ["one"]}]
    await scene.world.define({**JOB, "name": "graph", "function": None, "dag": steps})
    await scene.world.trigger("graph")
    await scene.world.run(scene.world.planner, scene.world.lock_keeper)
    advancer = scene.world.durable(scene.world.dag_advancer.subscriptions[0])
    scene.world.durable(scene.world.dag_advancer.subscriptions[1])
    [delivery] = await advancer.take(1, wait=0)
    await delivery.ack()
    await scene.passes(5 * MINUTE)
    assert [(lost.what, lost.step) for lost in (await scene.only(Recovered)).lost] == [("admitted", "one")]
    assert len(await scene.world.stored(Dispatched)) == 1


async def test_admission_with_its_task_opens_the_execution(scene: Scene) -> None:
    await begin(scene)
    [task] = await scene.world.log.read("execution.*.*.admitted.>")
    await settle()
    assert subjects.scope_of(task.message) in scene.it.open


async def test_retry_with_a_lost_delay_is_dispatched(scene: Scene) -> None:
    await begin(scene)
    task = await scene.claim()
    await store(scene.world, succeeded(task, outcome="failed"))
    await scene.world.run(scene.world.retrier)
    lose_delay(scene)
    await scene.passes(5 * MINUTE)
    assert await scene.world.stored(Recovered) == []
    await scene.passes(2)
    assert [lost.what for lost in (await scene.only(Recovered)).lost] == ["retry-scheduled"]
    assert [fact.attempt for fact in await scene.world.stored(Dispatched)] == [1, 2]


async def test_start_with_a_lost_delay_is_dispatched(scene: Scene) -> None:
    start_at = scene.world.clock.now() + timedelta(seconds=10 * MINUTE)
    await scene.world.given(admitted(plan().changed(start_at=start_at, start_delay=10 * MINUTE)))
    await scene.world.run(*scene.stages)
    lose_delay(scene)
    await scene.passes(14 * MINUTE)
    assert await scene.world.stored(Recovered) == []
    await scene.passes(2 * MINUTE)
    assert [(lost.what, lost.attempt) for lost in (await scene.only(Recovered)).lost] == [("retry-scheduled", 0)]
    assert [fact.attempt for fact in await scene.world.stored(Dispatched)] == [1]


async def test_retry_whose_timer_led_to_nothing_is_dispatched(scene: Scene) -> None:
    await begin(scene)
    task = await scene.claim()
    await store(scene.world, succeeded(task, outcome="failed"))
    await scene.world.run(scene.world.retrier)
    [timers] = [s for s in scene.world.dag_advancer.subscriptions if s.durable == subjects.DAG_ADVANCER_TIMERS]
    scene.world.clock.advance(MINUTE)
    [delivery] = await scene.world.durable(timers).take(1, wait=0)
    await delivery.ack()  # and nothing is stored
    await scene.passes(5 * MINUTE + 2)
    assert [lost.what for lost in (await scene.only(Recovered)).lost] == ["retry-scheduled"]
    assert [fact.attempt for fact in await scene.world.stored(Dispatched)] == [1, 2]


async def test_delay_of_an_unhandled_failure_is_not_lost(scene: Scene) -> None:
    """The reports' stream has far greater sequences than the log."""
    world = scene.world
    await begin(scene)
    task = await scene.claim()
    for n in range(100):
        await store(world, succeeded(task).changed(execution_id=f"x{n}", token="forged"))
    await store(world, succeeded(task, outcome="failed"))
    await world.run(world.retrier)
    lose_delay(scene)
    world.durable(world.retrier.subscriptions[0]).again(101)
    for _ in range(4):
        await scene.passes(5 * MINUTE, world.planner)
    assert await world.stored(Recovered) == []
    await world.run(world.retrier)
    await scene.passes(2)
    assert [fact.attempt for fact in await world.stored(Dispatched)] == [1, 2]
    assert await world.stored(Recovered) == []


async def test_step_behind_an_unhandled_success_is_not_lost(scene: Scene) -> None:
    world = scene.world
    steps = [{"name": "one", "function": "f"}, {"name": "two", "function": "f", "depends_on": ["one"]}]
    await world.define({**JOB, "name": "graph", "function": None, "dag": steps})
    await world.trigger("graph")
    await world.run(*scene.stages)
    task = await scene.claim()
    await store(world, succeeded(task))  # the DAG advancer stored the first of its events, and stopped
    await world.given(Advanced(job="graph", execution_id=task.execution_id, step="one", attempt=1))
    for _ in range(4):
        await scene.passes(5 * MINUTE, world.planner)
    assert await world.stored(Recovered) == []
    await world.run(world.dag_advancer)
    assert [fact.step for fact in await world.stored(Dispatched)] == ["one", "two"]


async def test_retry_with_a_long_delay_is_not_lost(scene: Scene) -> None:
    retry = {"max_attempts": 2, "initial_delay": "10h", "max_delay": "10h", "jitter": 0}
    await scene.world.define({**JOB, "retry": retry})
    await begin(scene)
    task = await scene.claim()
    await store(scene.world, succeeded(task, outcome="failed"))
    await scene.world.run(scene.world.retrier)
    for _ in range(9):
        await scene.passes(HOUR)
    assert await scene.world.stored(Recovered) == []
    await scene.passes(2 * HOUR)
    assert [fact.attempt for fact in await scene.world.stored(Dispatched)] == [1, 2]


async def test_queued_execution_is_kept_while_lock_is_held(scene: Scene) -> None:
    await scene.world.define({**JOB, "overlap_policy": "enqueue", "timeout": "2h"})
    await begin(scene)
    task = await scene.claim()
    await begin(scene, "waits")
    assert len(await scene.world.stored(Queued)) == 1
    await scene.passes(HOUR)
    assert await scene.world.stored(Recovered) == []
    await store(scene.world, succeeded(task))
    await scene.world.run(scene.world.dag_advancer)
    ends = scene.world.durable(scene.world.lock_keeper.subscriptions[1])
    [delivery] = await ends.take(1, wait=0)
    await delivery.ack()
    await scene.passes(5 * MINUTE)
    assert len(await scene.world.stored(Recovered)) == 1
    assert len(await scene.world.stored(Admitted)) == 2


async def test_moving_lock_stops_no_examination(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many executions wait for one lock, and another replica knows its newest event."""
    await scene.world.define({**JOB, "overlap_policy": "enqueue", "timeout": "2h"})
    await begin(scene)
    task = await scene.claim()
    for number in range(3):
        await begin(scene, f"waits-{number}")
    await store(scene.world, succeeded(task))
    await scene.world.run(scene.world.dag_advancer)
    ends = scene.world.durable(scene.world.lock_keeper.subscriptions[1])
    for delivery in await ends.take(9, wait=0):
        await delivery.ack()
    load, tail, asked = scene.world.log.load, scene.world.log.tail, 0

    async def slow(scope: str, *, after: int = 0) -> list[Recorded[Message]]:
        await asyncio.sleep(0)
        return await load(scope, after=after)

    async def moving(scope: str) -> int:
        nonlocal asked
        asked += scope.startswith("lock.")
        last = await tail(scope)
        await asyncio.sleep(0)
        return last + 1 if scope.startswith("lock.") and asked <= 3 else last

    monkeypatch.setattr(scene.world.log, "load", slow)
    monkeypatch.setattr(scene.world.log, "tail", moving)
    await scene.passes(5 * MINUTE)
    assert asked >= 3
    assert len({fact.execution_id for fact in await scene.world.stored(Recovered)}) == 3


# --- the policy ------------------------------------------------------------------------------------------------------


async def test_execution_lost_too_often_is_abandoned_and_unlocked(scene: Scene) -> None:
    await scene.world.define(GRAPH)
    await begin_and_lose(scene)
    for _ in range(3):
        await scene.passes_without_steps(5 * MINUTE + 1)
        await scene.lose()
    assert len(await scene.world.stored(Recovered)) == 3
    await scene.passes(5 * MINUTE + 1)
    failed = await scene.only(Failed)
    assert (failed.reason, failed.error.type, failed.error.retryable) == ("abandoned", "abandoned", False)
    assert (failed.error.type, "recovered 3 times" in failed.error.message) == ("abandoned", True)
    assert (await scene.only(DeadLettered)).last_error == failed.error
    await begin(scene, "the next one")
    assert len(await scene.world.stored(Admitted)) == 2


async def test_execution_requested_too_long_ago_is_abandoned(world: World) -> None:
    await world.define(GRAPH)
    async with recovering(world, Policy(max_age=timedelta(hours=1))) as scene:
        await begin_and_lose(scene)
        await world.clock.run(2 * HOUR)
        await scene.passes(1)
        assert (await scene.only(Failed)).error.message.endswith("more than 1h ago")


@pytest.mark.parametrize("late", [False, True])
async def test_age_counts_from_the_scheduled_start(scene: Scene, *, late: bool) -> None:
    """A job may be enqueued long before it is due; its age does not grow until then."""
    definition = JobDefinition.model_validate({**JOB, "overlap_policy": "allow"})
    start_at = scene.world.clock.now() + 10 * POLICY.max_age
    wish = Enqueued(execution_id=ID, definition=definition, start_at=start_at)
    await scene.world.log.publish(subjects.subject_of(wish), wish, message_id="m")
    await scene.world.run(*scene.stages)
    lose_delay(scene)
    await scene.passes(10 * POLICY.max_age.total_seconds())
    assert await scene.world.stored(Recovered) == []
    if late:
        await scene.world.clock.run(POLICY.max_age.total_seconds())
    await scene.passes(6 * MINUTE)
    assert [fact.attempt for fact in await scene.world.stored(Dispatched)] == [1] * (not late)
    assert [fact.reason for fact in await scene.world.stored(Failed)] == ["abandoned"] * late


async def test_age_counts_from_the_time_of_a_retry(scene: Scene) -> None:
    retry = {"max_attempts": 2, "initial_delay": "72h", "max_delay": "72h", "jitter": 0}
    await scene.world.define({**JOB, "retry": retry})
    await begin(scene)
    task = await scene.claim()
    await store(scene.world, succeeded(task, outcome="failed"))
    await scene.world.run(scene.world.retrier)
    lose_delay(scene)
    await scene.passes(72 * HOUR)
    await scene.passes(6 * MINUTE)
    assert [fact.attempt for fact in await scene.world.stored(Dispatched)] == [1, 2]


async def test_lost_execution_of_a_deleted_job_is_abandoned(scene: Scene) -> None:
    await scene.world.define(GRAPH)
    await begin_and_lose(scene)
    await change(scene.world, ledger.delete)
    await scene.passes(5 * MINUTE + 1)
    assert (await scene.only(Failed)).error.message.endswith("job was deleted")


@pytest.mark.parametrize("registered", [None, "paused"])
async def test_lost_unregistered_job_is_recovered(world: World, registered: str | None) -> None:
    """A registered job of the same name is another job, and its pause does not count."""
    async with recovering(world) as scene:
        if registered:
            await world.define(GRAPH)
            await change(world, ledger.pause)
        definition = JobDefinition.model_validate({**GRAPH, "overlap_policy": "allow"})
        wish = Enqueued(execution_id=ID, definition=definition)
        world.durable(world.dag_advancer.subscriptions[1])  # it has handled no report
        await world.log.publish(subjects.subject_of(wish), wish, message_id="m")
        await world.run(world.planner, world.lock_keeper)
        await scene.lose()
        await scene.passes(5 * MINUTE + 1)
        assert await world.stored(Failed) == []
        assert (await scene.only(Recovered)).execution_id == ID
        assert (await scene.only(Dispatched)).execution_id == ID


async def test_lost_execution_of_a_paused_job_waits(scene: Scene) -> None:
    await scene.world.define(GRAPH)
    await begin_and_lose(scene)
    await change(scene.world, ledger.pause)
    await scene.passes(5 * MINUTE + 1)
    await scene.passes(HOUR)
    assert [*await scene.world.stored(Recovered), *await scene.world.stored(Failed)] == []
    await change(scene.world, ledger.resume)
    await scene.passes(5 * MINUTE + 1)
    assert len(await scene.world.stored(Recovered)) == 1


async def test_the_time_limits_of_a_paused_job_hold(scene: Scene) -> None:
    await begin(scene)
    await scene.claim()
    await change(scene.world, ledger.pause)
    await scene.passes(41)
    assert len(await scene.world.stored(Report)) == 1


async def change(world: World, decide: Any) -> None:  # noqa: ANN401 - one of the ledger's
    state, sequence = await LedgerReader(world.log).load("nightly")
    [fact] = decide(state, "nightly")
    await world.log.append(fact, expect=sequence)


# --- what it costs, and who may act ----------------------------------------------------------------------------------


async def test_healthy_execution_is_never_read(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    await begin(scene)
    task = await scene.claim()
    await store(scene.world, succeeded(task))
    await scene.world.run(*scene.stages)
    assert len(await scene.world.stored(Completed)) == 1

    async def load(*scopes: str) -> list[Recorded[Message]]:
        raise AssertionError(f"{scopes} were read")

    monkeypatch.setattr(scene.world.log, "load", load)
    monkeypatch.setattr(scene.world.log, "load_each", load)
    await scene.passes(HOUR)
    assert len(scene.it.open) == 0


async def test_i4_what_is_delivered_again_adds_nothing(scene: Scene) -> None:
    await scene.world.define(GRAPH)
    await begin_and_lose(scene)
    await scene.passes(5 * MINUTE + 1)
    await scene.claim()
    await scene.passes(41)
    await scene.passes(2)
    await scene.passes(5 * MINUTE + 1)
    assert [task.attempt for task in await scene.world.stored(Dispatched)] == [1, 2]
    size = await scene.world.size()
    await scene.world.redeliver(*scene.stages, *scene.stages)
    assert await scene.world.size() == size


async def test_two_that_act_at_once_decide_once(scene: Scene) -> None:
    await scene.world.define(GRAPH)
    await begin_and_lose(scene)
    async with recovering(scene.world) as other:
        await scene.world.clock.run(5 * MINUTE + 1)
        now = scene.world.clock.now()
        await asyncio.gather(scene.it.run_once(now), other.it.run_once(now))
        await scene.passes(2)
        await other.passes(2)
    assert len(await scene.world.stored(Recovered)) == 1
    assert len(await scene.world.stored(Dispatched)) == 1


async def test_only_who_leads_acts(scene: Scene) -> None:
    await begin(scene)
    await scene.claim()
    running = asyncio.create_task(scene.it.run())
    await scene.world.clock.run(MINUTE)
    assert await scene.world.stored(Report) == []
    await scene.it._leadership.run_once()
    await scene.world.clock.run(2)
    running.cancel()
    assert len(await scene.world.stored(Report)) == 1


async def test_successor_starts_with_the_oldest_open_execution(scene: Scene) -> None:
    await scene.world.define({**JOB, "overlap_policy": "allow"})
    for message_id in ("a", "b", "c"):
        await begin(scene, message_id)
    first, second, _ = [await scene.claim() for _ in range(3)]
    await store(scene.world, succeeded(first))
    await scene.passes(MINUTE)
    await scene.passes(MINUTE)
    found = await scene.world.projections.get(Bucket.CURSORS, "LOG.recoverer")
    assert found is not None
    [of_second] = [r for r in await scene.world.recorded(Admitted) if r.message.execution_id == second.execution_id]
    assert int(found[0]) == of_second.sequence - 1
    async with recovering(scene.world) as successor:
        await settle()
        assert len(successor.it.open) == 2


async def test_undecidable_execution_blocks_no_other(scene: Scene) -> None:
    await begin(scene)
    await scene.claim()
    scene.it.open.learn(Heading("execution.nightly.torn.admitted", 1, scene.world.clock.now()))
    scene.world.log.receive(
        "execution.nightly.torn.admitted", b"{}", headers=guarded("execution.nightly.torn.admitted")
    )
    await scene.passes(41, scene.world.planner)
    assert len(await scene.world.log.read("report.>")) == 1


async def lost_executions(scene: Scene, number: int) -> None:
    """Begin executions whose admissions are lost."""
    await scene.world.define({**GRAPH, "overlap_policy": "allow"})
    for index in range(number):
        await begin_and_lose(scene, f"trigger-{index}")


def count_writes(world: World, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the number of decisions in each write from now on."""
    counts: list[int] = []
    write = world.log.write

    async def counted(writes: Sequence[Write]) -> list[Written]:
        counts.append(len(writes))
        return await write(writes)

    monkeypatch.setattr(world.log, "write", counted)
    return counts


async def test_executions_due_together_share_reads_and_writes(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    await lost_executions(scene, 3)
    await scene.world.clock.run(5 * MINUTE + 1)
    await settle()
    reads, load_each = [], scene.world.log.load_each

    async def counted(*scopes: str) -> Loaded:
        reads.append(len(scopes))
        return await load_each(*scopes)

    monkeypatch.setattr(scene.world.log, "load_each", counted)
    counts = count_writes(scene.world, monkeypatch)
    await scene.it.run_once(scene.world.clock.now())
    assert counts == [3]
    assert reads[0] == 3
    assert len(await scene.world.stored(Recovered)) == 3


async def test_conflict_of_one_execution_affects_no_other(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    await lost_executions(scene, 3)
    await scene.world.clock.run(5 * MINUTE + 1)
    await settle()
    append, refused = scene.world.log.append, list[str]()

    async def conflicting(fact: Message, *, expect: int) -> int:
        if isinstance(fact, Recovered) and not refused:
            refused.append(fact.execution_id)
            raise SequenceConflict("changed")
        return await append(fact, expect=expect)

    monkeypatch.setattr(scene.world.log, "append", conflicting)
    counts = count_writes(scene.world, monkeypatch)
    await scene.it.run_once(scene.world.clock.now())
    stored = [fact.execution_id for fact in await scene.world.stored(Recovered)]
    assert (len(stored), refused[0] in stored) == (2, False)
    await scene.it.run_once(scene.world.clock.now() + timedelta(seconds=1))
    assert {fact.execution_id for fact in await scene.world.stored(Recovered)} == {*stored, *refused}
    assert counts == [3, 1]


async def test_unavailable_log_delays_examinations_a_second(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    await lost_executions(scene, 2)
    await scene.world.clock.run(5 * MINUTE + 1)
    await settle()
    for verb in ("load_each", "write"):

        async def unavailable(*_: object) -> None:
            raise LogUnavailable("no answer")

        monkeypatch.setattr(scene.world.log, verb, unavailable)
        await scene.it.run_once(scene.world.clock.now())
        monkeypatch.undo()
        await scene.world.clock.run(1)
        assert await scene.world.stored(Recovered) == []
    await scene.it.run_once(scene.world.clock.now())
    assert len(await scene.world.stored(Recovered)) == 2


async def test_unstored_report_is_not_taken_for_stored(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    await begin(scene)
    await scene.claim()
    await scene.passes(39)
    scene.world.clock.advance(2)
    now = scene.world.clock.now()
    with monkeypatch.context() as patch, capture_logs() as logs:
        patch.setattr(scene.world.log, "write", AsyncMock(side_effect=LogUnavailable("no answer")))
        await scene.it.run_once(now)
    assert {log["action"] for log in logs} == {"log-unavailable"}
    await scene.it.run_once(now + timedelta(seconds=1))
    assert len(await scene.world.stored(Report)) == 1


async def test_mq_executor_is_notified_of_a_recovery(world: World) -> None:
    await world.define(JOB)
    async with recovering(world, outside=frozenset({"default"})) as scene:
        await world.run(*scene.stages)
        await plan_only(world)
        [delivery] = await world.durable(world.lock_keeper.subscriptions[0]).take(1, wait=0)
        await delivery.ack()
        await scene.passes(5 * MINUTE)
        await world.run(world.mq_bridge)
        [handed] = await world.log.read("mq.scheduled.>")
        assert isinstance(handed.message, Envelope)
        task = await scene.only(Dispatched)
        assert handed.message.data.metadata["is_recovery"] is True
        assert set(handed.message.data.metadata) == {
            "is_recovery",
            "original_scheduled_time",
            "recovery_attempt_time",
        }
        assert task.recovery_attempt_time is not None
