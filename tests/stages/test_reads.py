"""The reads of stages: none if memory suffices, and one for all messages of a batch."""

from collections.abc import Collection
from typing import Any

import pytest

from tests.domain.given import KEY, NOON, admitted, plan, proven, report, started
from tests.stages.world import Reads, World
from tocsin import subjects
from tocsin.domain import execution, ids
from tocsin.domain.events import (
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
    validated,
)
from tocsin.engine.states import View
from tocsin.engine.step import Ref

JOBS = [f"job-{i}" for i in range(10)]


async def given(world: World, reads: Reads, *facts: Message) -> None:
    """Store events that no stage has read yet."""
    await world.given(*facts)
    reads.clear()


def planned(job: str, execution_id: str = "a") -> Planned:
    waiting = plan().changed(overlap_policy="enqueue")
    return Planned(job=job, execution_id=execution_id, scheduled_time=NOON, trigger="cron", plan=waiting)


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The kinds of states that each round of reads had."""
    made: list[list[str]] = []
    read = View.read

    async def recorded(view: View, refs: Collection[Ref[Any]]) -> None:
        made.append(sorted({ref.kind.name for ref in refs}))
        await read(view, refs)

    monkeypatch.setattr(View, "read", recorded)
    return made


async def test_due_definitions_are_read_together(world: World, reads: Reads, rounds: list[list[str]]) -> None:
    named = {job: await world.define({"name": job, "schedule": "0 * * * *", "function": job}) for job in JOBS}
    await given(world, reads, *(Due(job=job, scheduled_time=NOON, definition=named[job]) for job in JOBS))
    await world.handle(world.planner.subscriptions[0])
    assert reads == {"load_each": 4, "write": 3}  # definitions, executions, locks, public events: in one round
    assert rounds == [["definition", "execution", "lock", "public event"]]
    assert [(p.job, p.plan.steps[0].function) for p in await world.stored(Admitted)] == [(job, job) for job in JOBS]


async def test_definition_in_force_is_read_after_a_redefinition(world: World, reads: Reads) -> None:
    named = {job: await world.define({"name": job, "schedule": "0 * * * *", "function": "old"}) for job in JOBS}
    await world.define({"name": JOBS[3], "schedule": "0 * * * *", "function": "new"})
    await given(world, reads, *(Due(job=job, scheduled_time=NOON, definition=named[job]) for job in JOBS))
    await world.handle(world.planner.subscriptions[0])
    assert reads == {"load_each": 4, "get": 1, "write": 3}
    assert {p.plan.steps[0].function for p in await world.stored(Admitted)} == {"old"}


async def test_known_definition_leaves_one_round(world: World, rounds: list[list[str]]) -> None:
    named = {job: await world.define({"name": job, "schedule": "0 * * * *", "function": "f"}) for job in JOBS}
    for hour in (12, 13):
        at = NOON.replace(hour=hour)
        await world.given(*(Due(job=job, scheduled_time=at, definition=named[job]) for job in JOBS))
        await world.handle(world.planner.subscriptions[0])
    assert rounds == [["definition", "execution", "lock", "public event"], ["execution", "lock"]]


async def test_job_without_a_lock_reads_no_lock(world: World, rounds: list[list[str]]) -> None:
    await world.define({"name": "a", "function": "f", "overlap_policy": "allow"})
    for number in range(2):
        await world.trigger("a", f"m{number}")
        await world.handle(world.planner.subscriptions[1])
    announced = {"definition in force now", "public event", "start of the count of runs"}
    assert rounds[0] == ["definition in force now"]
    assert {name for names in rounds[1:] for name in names} == announced


async def test_requested_locks_are_read_together(world: World, reads: Reads, rounds: list[list[str]]) -> None:
    await given(world, reads, *map(planned, JOBS))
    await world.handle(world.lock_keeper.subscriptions[0])
    assert reads == {"load_each": 3, "write": 3}  # executions, locks, public events
    assert rounds == [["execution", "lock", "public event"]]
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
        report = proven(
            Report(job=done.job, execution_id="a", step="main", attempt=1, delivery=1, outcome="completed", token=token)
        )
        await world.log.publish(subjects.subject_of(report), report, message_id=done.job)
    reads.clear()
    world.store.clear()
    await world.handle(world.dag_advancer.subscriptions[1])
    assert reads == {"load_each": 1, "write": 1}
    assert len(await world.stored(Completed)) == len(JOBS)


async def test_execution_queued_by_another_copy_gets_the_lock(world: World) -> None:
    await world.given(*map(planned, JOBS))
    await world.handle(world.lock_keeper.subscriptions[0])
    await world.given(*(planned(job, "b") for job in JOBS))
    await world.handle(world.lock_keeper.subscriptions[0], store=world.copy())
    assert len(await world.stored(Queued)) == len(JOBS)
    ended = [
        Completed(job=a.job, execution_id="a", scheduled_time=NOON, trigger="cron", fence=a.fence)
        for a in await world.stored(Admitted)
    ]
    await world.given(*ended)
    await world.handle(world.lock_keeper.subscriptions[1])
    assert [a.execution_id for a in await world.stored(Admitted)] == ["a"] * len(JOBS) + ["b"] * len(JOBS)


async def test_parallel_claims_are_learned_before_their_decisions(world: World, reads: Reads) -> None:
    dag = [{"name": step, "function": "f"} for step in ("left", "middle", "right")]
    await world.define({"name": "graph", "dag": dag, "overlap_policy": "allow"})
    await world.trigger("graph")
    await world.run(world.planner, world.dag_advancer)
    tasks = await world.stored(Dispatched)
    before, reports = (await world.recorded(Dispatched))[-1].sequence, list[Report]()
    for one in tasks:
        who = {"job": one.job, "execution_id": one.execution_id, "step": one.step, "attempt": 1, "delivery": 1}
        await world.given(validated(Started, {**who, "worker": "w"}))
        claim = (await world.recorded(Started))[-1].sequence
        fields = {"outcome": "completed", "token": one.token, "claim": claim, "claimed_after": before}
        reports.append(proven(validated(Report, {**who, **fields, "worker": "w"})))
        before = claim
    await given(world, reads, *reversed(reports))
    await world.handle(world.dag_advancer.subscriptions[1])
    assert reads == {"write": 3}  # one for each report: they are of one execution
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
    return proven(report("completed", **fields))  # type: ignore[arg-type]  # fields of a report


async def test_single_step_ends_without_a_read(world: World, reads: Reads) -> None:
    answer = await run_by_another_process(world)
    subject = subjects.subject_of(answer)
    await world.log.publish(subject, answer, message_id=subject)
    reads.clear()
    await world.run(world.dag_advancer)
    assert reads == {"write": 1}
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
