"""Cancelling by message: nothing of the execution goes on, and the lock goes on to the next."""

from collections.abc import Sequence

import pytest

from tests.domain.given import ID, JOB, KEY, NOON, admitted, plan, proven, report, started
from tests.stages.test_lock_keeper import planned
from tests.stages.world import World
from tocsin import subjects
from tocsin.adapters.memory.clock import START
from tocsin.domain import execution, ids
from tocsin.domain.definition import RetryPolicy
from tocsin.domain.events import (
    Acquired,
    Actor,
    Admitted,
    Cancelled,
    Completed,
    CronAnswer,
    Dispatched,
    Failure,
    PoisonMessage,
    Queued,
)
from tocsin.domain.execution import ClaimDenied
from tocsin.stages.dag_advancer.stage import FIRST_WAIT, PATIENCE

ADA = Actor(identity="ada", source="test")
COMES = ids.trigger_id(JOB, "m", START)
"""An execution that may begin at the time of these tests."""
GRAPH = {"extract": (), "load": ("extract",), "clean": ("load",)}


async def answer(world: World, outcome: str, step: str) -> None:
    token = ids.report_token(KEY, ID, step, 1)
    error = Failure(type="ValueError") if outcome == "failed" else None
    answer = proven(report(outcome, step).changed(token=token, error=error))
    await world.log.publish(subjects.subject_of(answer), answer, message_id=f"{step}-{outcome}")


async def run(world: World) -> None:
    await world.run(world.lock_keeper, world.dag_advancer, world.retrier)


async def test_actor_and_reason_are_recorded(world: World) -> None:
    await world.given(admitted())
    await world.ask_to_cancel(JOB, ID, by=ADA, reason="wrong day")
    await run(world)
    [cancelled] = await world.stored(Cancelled)
    assert (cancelled.by, cancelled.reason) == (ADA, "wrong day")


async def test_cancelled_step_is_not_dispatched_or_claimed(world: World) -> None:
    await world.given(admitted(plan(GRAPH)))
    await run(world)
    await world.given(started("extract"))
    await world.ask_to_cancel(JOB, ID)
    await run(world)
    await answer(world, "completed", "extract")
    await run(world)
    assert [task.step for task in await world.stored(Dispatched)] == ["extract"]
    state = execution.fold(await world.log.load(subjects.execution(JOB, ID)))
    assert execution.claim(state, step="extract", attempt=1, delivery=2, task=99, worker="w") == ClaimDenied("over")


async def test_cancelled_step_gets_no_further_attempt(world: World) -> None:
    await world.given(admitted(plan(retry=RetryPolicy(max_attempts=2, initial_delay=30, jitter=0))))
    await run(world)
    await world.given(started())
    await answer(world, "failed", "main")
    await run(world)
    await world.ask_to_cancel(JOB, ID)
    await run(world)
    world.clock.advance(31)
    await run(world)
    assert [task.attempt for task in await world.stored(Dispatched)] == [1]


async def test_i4_what_is_delivered_again_adds_nothing(world: World) -> None:
    await world.given(admitted(plan(GRAPH)))
    await run(world)
    await world.ask_to_cancel(JOB, ID)
    await run(world)
    size = await world.size()
    await world.redeliver(world.dag_advancer, world.lock_keeper, world.dag_advancer)
    assert await world.size() == size


async def test_what_is_over_stays_as_it_ended(world: World) -> None:
    await world.given(admitted(), Completed(job=JOB, execution_id=ID, scheduled_time=NOON, trigger="cron"))
    await world.ask_to_cancel(JOB, ID)
    await run(world)
    assert await world.stored(Cancelled) == []
    assert world.pending == 0


async def test_request_may_precede_the_planned_execution(world: World) -> None:
    await world.ask_to_cancel(JOB, COMES)
    await run(world)
    assert world.pending == 1
    await world.given(admitted().changed(execution_id=COMES))
    world.clock.advance(FIRST_WAIT.total_seconds())
    await run(world)
    assert len(await world.stored(Cancelled)) == 1
    assert await world.stored(PoisonMessage) == []


async def test_request_for_a_missing_execution_becomes_dead_letter(world: World) -> None:
    await world.ask_to_cancel(JOB, COMES)
    await run(world)
    world.clock.advance(PATIENCE.total_seconds())
    await run(world)
    [letter] = await world.stored(PoisonMessage)
    assert letter.reason == f"no execution of {JOB!r} has the id {COMES!r}"
    assert world.pending == 0


@pytest.mark.parametrize(
    "subject", [f"cancel.{JOB}", f"cancel.*.{ID}", f"cancel.{JOB}.*", f"cancel.>.{ID}", f"cancel.{JOB}.>"]
)
async def test_request_without_an_execution_id_becomes_dead_letter(world: World, subject: str) -> None:
    await world.given(admitted())
    world.log.receive(subject, b"")
    await run(world)
    [letter] = await world.stored(PoisonMessage)
    assert letter.code == "invalid-id"
    assert await world.stored(Cancelled) == []


def test_public_subject_may_contain_dots_of_a_name() -> None:
    assert subjects.parse_cancel(f"cancel.daily.etl.{ID}") == ("daily.etl", ID)
    assert subjects.parse_cancel(subjects.cancel("daily.etl", ID)) == ("daily.etl", ID)


async def admitted_in_turn(world: World) -> Sequence[str]:
    return [fact.execution_id for fact in await world.stored(Admitted)]


async def test_lock_passes_to_the_next_in_line(world: World) -> None:
    await world.define({"name": JOB, "function": "f"})
    await world.given(planned("a", 12, "enqueue"), planned("b", 13, "enqueue"))
    await run(world)
    await world.ask_to_cancel(JOB, "a")
    await run(world)
    assert await admitted_in_turn(world) == ["a", "b"]


async def test_cancelled_while_queued_is_never_admitted(world: World) -> None:
    await world.define({"name": JOB, "function": "f"})
    await world.given(*(planned(name, hour, "enqueue") for name, hour in (("a", 12), ("b", 13), ("c", 14))))
    await run(world)
    await world.ask_to_cancel(JOB, "b")
    await run(world)
    await world.ask_to_cancel(JOB, "a")
    await run(world)
    assert await admitted_in_turn(world) == ["a", "c"]


async def test_cancelled_before_admission_passes_the_lock_on(world: World) -> None:
    """A crash, or a faster hand, between the lock's fact and the execution's."""
    waiting = Queued(job=JOB, execution_id="b", scheduled_time=NOON)
    await world.given(planned("a", 12, "enqueue"), planned("b", 13, "enqueue"), waiting)
    [queued] = await world.recorded(Queued)
    await world.given(Acquired(job=JOB, execution_id="a", scheduled_time=NOON, ttl=90, oldest=queued.sequence))
    await world.ask_to_cancel(JOB, "a")
    await world.run(world.dag_advancer)
    await run(world)
    assert await admitted_in_turn(world) == ["b"]


async def test_what_is_planned_and_cancelled_takes_no_lock(world: World) -> None:
    await world.given(planned("a"))
    await world.ask_to_cancel(JOB, "a")
    await world.run(world.dag_advancer)
    await run(world)
    assert await world.stored(Acquired) == []
    assert await world.stored(Admitted) == []


def ask_from_outside(world: World, execution_id: str) -> None:
    world.log.receive(f"public.cancel.{JOB}.{execution_id}", b"", message_id=f"m-{execution_id}")


async def test_refused_cancel_of_a_program_outside_is_answered(world: World) -> None:
    ask_from_outside(world, "no-id")
    await world.ask_to_cancel(JOB, "no-id")
    await world.run(world.dag_advancer)
    world.clock.advance(PATIENCE.total_seconds())
    await world.run(world.dag_advancer, world.planner)
    assert len(await world.stored(PoisonMessage)) == 2
    [answer] = await world.stored(CronAnswer)
    assert (answer.data.trigger_id, answer.data.answer, answer.data.code) == ("m-no-id", "refused", "invalid-id")
