"""The reads of stages: none if memory suffices, and one for all messages of a batch."""

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import pytest

from tests.domain.given import KEY, NOON, admitted, plan, report, started
from tests.stages.world import World
from tocsin import subjects
from tocsin.adapters.memory.archive import InMemoryStreamPurge
from tocsin.domain import execution, ids, lock
from tocsin.domain.events import (
    Acquired,
    Admitted,
    Cancelled,
    Completed,
    CronTriggered,
    Dispatched,
    Due,
    Message,
    Planned,
    Queued,
    Report,
    Started,
)
from tocsin.domain.execution import Status
from tocsin.engine.state_cache import StateCache
from tocsin.ports import OutdatedState
from tocsin.stages.lock_keeper.stage import LOCK_KEEPER, LockKeeper

JOBS = [f"job-{i}" for i in range(10)]

Reads: TypeAlias = Counter[str]


@pytest.fixture
def reads(world: World, monkeypatch: pytest.MonkeyPatch) -> Reads:
    """The number of requests to the log, by method."""
    counted: Reads = Counter()

    def counting(verb: str, ask: Callable[..., Awaitable[object]]) -> Callable[..., Awaitable[object]]:
        async def counted_ask(*args: object, **options: object) -> object:
            counted[verb] += 1
            return await ask(*args, **options)

        return counted_ask

    for verb in ("load", "load_each", "last", "get", "read", "tail"):
        monkeypatch.setattr(world.log, verb, counting(verb, getattr(world.log, verb)))
    return counted


async def given(world: World, reads: Reads, *facts: Message) -> None:
    """Store events that no stage has read yet."""
    await world.given(*facts)
    reads.clear()


def planned(job: str, execution_id: str = "a") -> Planned:
    waiting = plan().model_copy(update={"overlap_policy": "enqueue"})
    return Planned(job=job, execution_id=execution_id, scheduled_time=NOON, trigger="cron", plan=waiting)


def task(job: str, attempt: int = 1) -> Dispatched:
    return Dispatched(
        job=job,
        execution_id="a",
        step="main",
        attempt=attempt,
        max_attempts=3,
        function="f",
        queue="default",
        timeout=30,
        scheduled_time=NOON,
        trigger="cron",
        token="t",
    )


async def test_due_definitions_are_read_together(world: World, reads: Reads) -> None:
    named = {job: await world.define({"name": job, "schedule": "0 * * * *", "function": job}) for job in JOBS}
    await given(world, reads, *(Due(job=job, scheduled_time=NOON, definition=named[job]) for job in JOBS))
    await world.handle(world.planner.subscriptions[0])
    assert reads == {"load_each": 1}
    assert [(p.job, p.plan.steps[0].function) for p in await world.stored(Planned)] == [(job, job) for job in JOBS]


async def test_definition_in_force_is_read_after_a_redefinition(world: World, reads: Reads) -> None:
    named = {job: await world.define({"name": job, "schedule": "0 * * * *", "function": "old"}) for job in JOBS}
    await world.define({"name": JOBS[3], "schedule": "0 * * * *", "function": "new"})
    await given(world, reads, *(Due(job=job, scheduled_time=NOON, definition=named[job]) for job in JOBS))
    await world.handle(world.planner.subscriptions[0])
    assert reads == {"load_each": 1, "get": 1}
    assert {p.plan.steps[0].function for p in await world.stored(Planned)} == {"old"}


async def test_requested_locks_are_read_together(world: World, reads: Reads) -> None:
    await given(world, reads, *map(planned, JOBS))
    await world.handle(world.lock_keeper.subscriptions[0])
    assert reads == {"load_each": 1}
    assert [fact.job for fact in await world.stored(Admitted)] == JOBS
    assert len(await world.stored(CronTriggered)) == len(JOBS)


async def test_locks_of_ending_executions_are_read_together(world: World, reads: Reads) -> None:
    await world.given(*map(planned, JOBS))
    await world.handle(world.lock_keeper.subscriptions[0])
    ended = [
        Completed(job=a.job, execution_id="a", scheduled_time=NOON, trigger="cron", fence=a.fence)
        for a in await world.stored(Admitted)
    ]
    await given(world, reads, *ended)
    await world.handle(world.lock_keeper.subscriptions[1])
    assert reads == {"load_each": 1}


async def test_what_other_copies_began_is_read_at_once(world: World, reads: Reads) -> None:
    await world.given(*map(planned, JOBS))
    await world.handle(world.lock_keeper.subscriptions[0])
    await world.handle(world.dag_advancer.subscriptions[0])
    for done in await world.stored(Dispatched):
        claim = Started(job=done.job, execution_id="a", step="main", attempt=1, delivery=1, worker="w")
        await world.given(claim)
        token = ids.report_token(KEY, "a", "main", 1)
        report = Report(
            job=done.job, execution_id="a", step="main", attempt=1, delivery=1, outcome="completed", token=token
        )
        await world.log.publish(subjects.subject_of(report), report, message_id=done.job)
    reads.clear()
    world.store.clear()
    await world.handle(world.dag_advancer.subscriptions[1])
    assert reads == {"load_each": 1}
    assert len(await world.stored(Completed)) == len(JOBS)


async def test_execution_queued_by_another_copy_gets_the_lock(world: World) -> None:
    await world.given(*map(planned, JOBS))
    await world.handle(world.lock_keeper.subscriptions[0])
    await world.given(*(planned(job, "b") for job in JOBS))
    executions = StateCache(world.log, execution.initial, execution.evolve)
    another = LOCK_KEEPER.bind(LockKeeper(world.log, executions, world.projections, world.clock, KEY))
    await world.handle(another.subscriptions[0])
    assert len(await world.stored(Queued)) == len(JOBS)
    ended = [
        Completed(job=a.job, execution_id="a", scheduled_time=NOON, trigger="cron", fence=a.fence)
        for a in await world.stored(Admitted)
    ]
    await world.given(*ended)
    await world.handle(world.lock_keeper.subscriptions[1])
    assert [a.execution_id for a in await world.stored(Admitted)] == ["a"] * len(JOBS) + ["b"] * len(JOBS)


async def test_after_a_conflict_only_new_events_are_read(world: World, reads: Reads) -> None:
    executions = StateCache(world.log, execution.initial, execution.evolve)
    await given(world, reads, planned("job-0"), Admitted(**{**dict(planned("job-0")), "type": "admitted"}))
    scope = subjects.execution("job-0", "a")
    known = await executions.load(scope)
    await world.given(task("job-0", attempt=1))
    with pytest.raises(OutdatedState):
        await executions.append(scope, task("job-0", attempt=2), known=known)
    reads.clear()
    assert not executions.knows(scope)
    state, sequence = await executions.load(scope)
    assert reads == {"load": 1}
    assert (state.status, sequence) == (Status.ADMITTED, 3)
    assert (state, sequence) == await StateCache(world.log, execution.initial, execution.evolve).load(scope)


async def test_outdated_state_is_not_decided_on(world: World, reads: Reads) -> None:
    executions = StateCache(world.log, execution.initial, execution.evolve)
    await world.given(planned("job-0"))
    scope = subjects.execution("job-0", "a")
    await executions.load(scope)
    await given(world, reads, task("job-0", attempt=1), task("job-0", attempt=2))
    [_, newest] = await world.recorded(Dispatched)
    executions.learn(scope, newest, after=2)
    reads.clear()
    assert (await executions.load(scope))[1] == 3
    assert reads == {"load": 1}


async def test_where_nothing_is_new_all_is_read_again(world: World, reads: Reads) -> None:
    """The execution has left the log, and another of its name started: nothing remembered holds any more."""
    executions = StateCache(world.log, execution.initial, execution.evolve)
    await given(world, reads, planned("job-0"))
    scope = subjects.execution("job-0", "a")
    known = await executions.load(scope)
    await InMemoryStreamPurge(world.log).purge(scope, upto=known[1])
    with pytest.raises(OutdatedState):
        await executions.append(scope, task("job-0"), known=known)
    reads.clear()
    assert await executions.load(scope) == (execution.initial, 0)
    assert reads == {"load": 2}


async def test_state_read_again_covers_only_that_read(world: World, reads: Reads) -> None:
    """A lagging replica may know less than the replica of an earlier read."""
    locks = StateCache(world.log, lock.initial, lock.evolve)
    scope = subjects.lock("job-0")
    await given(world, reads, Acquired(job="job-0", execution_id="a", scheduled_time=NOON, ttl=90))
    locks.fill(scope, await world.log.load(scope), upto=10)
    assert locks.accounts_for(scope, 10)
    locks.forget(scope)
    await locks.load(scope)
    assert not locks.accounts_for(scope, 10)


async def test_replaced_events_are_not_missed(world: World, reads: Reads) -> None:
    locks = StateCache(world.log, lock.initial, lock.evolve)
    first, second, third = (
        Acquired(job="job-0", execution_id=name, scheduled_time=NOON, ttl=90) for name in ("a", "b", "c")
    )
    await world.given(first)
    scope = subjects.lock("job-0")
    known = await locks.load(scope)
    await given(world, reads, second, third)
    with pytest.raises(OutdatedState):
        await locks.append(scope, second, known=known)
    reads.clear()
    assert (await locks.load(scope))[0].holder == "c"
    assert reads == {"load": 1}


async def test_state_that_grew_meanwhile_is_kept(world: World, reads: Reads) -> None:
    """Another task of this process appended while the first waited for the tail or for its own append."""
    locks, scope = StateCache(world.log, lock.initial, lock.evolve), subjects.lock("job-0")
    first, second = (Acquired(job="job-0", execution_id=name, scheduled_time=NOON, ttl=90) for name in ("a", "b"))
    before = await locks.append(scope, first, known=await locks.load(scope))
    after = await locks.append(scope, second, known=before)
    assert not await locks.is_newest(scope, before[1])
    with pytest.raises(OutdatedState):
        await locks.append(scope, second, known=before)
    reads.clear()
    assert await locks.load(scope) == after
    assert reads == {}


async def test_parallel_claims_are_learned_before_their_decisions(world: World, reads: Reads) -> None:
    dag = [{"name": step, "function": "f"} for step in ("left", "middle", "right")]
    await world.define({"name": "graph", "dag": dag, "overlap_policy": "allow"})
    await world.trigger("graph")
    await world.run(world.planner, world.dag_advancer)
    tasks = await world.stored(Dispatched)
    before, reports = (await world.recorded(Dispatched))[-1].sequence, list[Report]()
    for one in tasks:
        who = {"job": one.job, "execution_id": one.execution_id, "step": one.step, "attempt": 1, "delivery": 1}
        await world.given(Started.model_validate({**who, "worker": "w"}))
        claim = (await world.recorded(Started))[-1].sequence
        told = {"outcome": "completed", "token": one.token, "claim": claim, "claimed_after": before}
        reports.append(Report.model_validate({**who, **told, "worker": "w"}))
        before = claim
    await given(world, reads, *reversed(reports))
    await world.handle(world.dag_advancer.subscriptions[1])
    assert reads == {}
    assert len(await world.stored(Completed)) == 1


# --- the end of a single step ----------------------------------------------------------------------------------------


async def run_by_another_process(world: World) -> Report:
    """Claim the only step of an execution, and return its report; this process has cached nothing."""
    first = execution.admit_and_dispatch(admitted(), key=KEY)
    assert isinstance(first, Dispatched)
    await world.given(first, started())
    [claim] = await world.recorded(Started)
    world.store.clear()
    fields = {"token": first.token, "claim": claim.sequence, "sole": execution.sole_step(first), "result": 5}
    return report("completed", **fields)  # type: ignore[arg-type]  # fields of a report


async def test_single_step_ends_without_a_read(world: World, reads: Reads) -> None:
    answer = await run_by_another_process(world)
    subject = subjects.subject_of(answer)
    await world.log.publish(subject, answer, message_id=subject)
    reads.clear()
    await world.run(world.dag_advancer)
    assert not reads
    [end] = await world.stored(Completed)
    assert (end.step, end.attempt, end.result, end.trigger) == ("main", 1, 5, "cron")
    await world.redeliver(world.dag_advancer, is_fresh=True)
    assert len(await world.stored(Completed)) == 1


async def test_single_step_that_was_cancelled_stays_cancelled(world: World) -> None:
    answer = await run_by_another_process(world)
    await world.given(Cancelled(job=answer.job, execution_id=answer.execution_id, scheduled_time=NOON, trigger="cron"))
    subject = subjects.subject_of(answer)
    await world.log.publish(subject, answer, message_id=subject)
    await world.run(world.dag_advancer)
    assert await world.stored(Completed) == []
