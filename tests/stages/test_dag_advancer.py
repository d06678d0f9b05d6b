"""The DAG advancer, the retrier and the dead-letter sink on one log."""

from datetime import timedelta

import pytest

from tests.domain.given import ID, JOB, KEY, NOON, admitted, plan, proven, started
from tests.stages.world import World
from tocsin import subjects
from tocsin.domain import ids
from tocsin.domain.definition import RetryPolicy
from tocsin.domain.events import (
    Advanced,
    Completed,
    DeadLettered,
    Dispatched,
    Failed,
    Failure,
    Message,
    Recorded,
    Report,
    RetryScheduled,
    validated,
)
from tocsin.engine.fold_view import View

TWICE = RetryPolicy(max_attempts=2, initial_delay=30, jitter=0)
BOOM = Failure(type="ValueError", message="boom")


async def answer(
    world: World, outcome: str, step: str = "main", attempt: int = 1, *, proof: str | None = None, **more: object
) -> None:
    fields = {"outcome": outcome, "step": step, "attempt": attempt, "job": JOB, "execution_id": ID, "delivery": 1}
    token = ids.report_token(KEY, ID, step, attempt)
    answer = proven(validated(Report, {**fields, "token": token, **more}))
    if proof is not None:
        answer = answer.changed(proof=proof)
    subject = subjects.subject_of(answer)
    await world.log.publish(subject, answer, message_id=subject)


async def run(world: World) -> None:
    await world.run(world.dag_advancer, world.retrier, world.dead_letter_sink)


async def test_a_single_step_needs_three_facts(world: World) -> None:
    await world.given(admitted())
    await run(world)
    await world.given(started())
    await answer(world, "completed", result=3)
    await run(world)
    [completed] = await world.stored(Completed)
    assert completed.result == 3
    assert len(await world.log.load(subjects.execution(JOB, ID))) == 4


async def test_each_first_step_waits_for_its_start(world: World) -> None:
    later = {"start_at": world.clock.now() + timedelta(seconds=5), "expires_at": world.clock.now() + timedelta(hours=1)}
    await world.given(admitted(plan({"a": (), "b": ()}).changed(**later)))
    await world.run(world.dag_advancer)
    assert await world.stored(Dispatched) == []
    world.clock.advance(5)
    await world.run(world.dag_advancer)
    assert [task.step for task in await world.stored(Dispatched)] == ["a", "b"]


async def test_start_that_has_passed_is_no_wait(world: World) -> None:
    await world.given(admitted(plan().changed(start_at=world.clock.now(), start_delay=60.0)))
    await world.run(world.dag_advancer)
    assert [task.attempt for task in await world.stored(Dispatched)] == [1]


async def test_report_with_a_wrong_proof_is_rejected(world: World) -> None:
    await world.given(admitted())
    await run(world)
    await answer(world, "completed", proof="guessed")
    await answer(world, "failed", proof="guessed", error=BOOM)
    await run(world)
    for outcome in (Completed, Failed, RetryScheduled):
        assert await world.stored(outcome) == []


@pytest.mark.parametrize("outcome", ["completed", "failed"])
async def test_decision_on_a_report_checks_its_proof(world: World, outcome: str) -> None:
    """A stage is not given such a report, and does not believe it either."""
    await world.given(admitted())
    await run(world)
    await world.given(started())
    fields = {"job": JOB, "execution_id": ID, "step": "main", "attempt": 1, "delivery": 1}
    report = validated(
        Report, {**fields, "outcome": outcome, "token": ids.report_token(KEY, ID, "main", 1), "proof": "guessed"}
    )
    recorded = Recorded[Message](report, subjects.subject_of(report), 1, NOON)
    view = View(world.parts.fold, world.clock.now())
    for subscription in (*world.dag_advancer.subscriptions, *world.retrier.subscriptions):
        assert not subscription.decide(recorded, view, world.clock.now()).changes


async def test_crash_before_the_next_step_is_completed_later(world: World) -> None:
    graph = plan({"a": (), "b": ("a",), "c": ("a",)})
    await world.given(admitted(graph))
    await run(world)
    await world.given(started("a"), Advanced(job=JOB, execution_id=ID, step="a", attempt=1))
    await answer(world, "completed", "a")
    await run(world)
    assert [task.step for task in await world.stored(Dispatched)] == ["a", "b", "c"]


async def test_i4_redelivery_at_any_time_adds_nothing(world: World) -> None:
    await world.given(admitted(plan({"a": (), "b": ("a",)}, retry=TWICE)))
    await run(world)
    await world.given(started("a"))
    await answer(world, "failed", "a", error=BOOM)
    await run(world)
    await world.redeliver(world.dag_advancer, world.retrier, world.dead_letter_sink)
    world.clock.advance(31)
    await run(world)
    await world.redeliver(world.dag_advancer, world.retrier, world.dead_letter_sink)
    await world.given(started("a", 2))
    await answer(world, "completed", "a", 2)
    await run(world)
    await world.given(started("b"))
    await answer(world, "completed", "b")
    await run(world)
    size = await world.size()
    await world.redeliver(world.dag_advancer, world.retrier, world.dead_letter_sink)
    world.clock.advance(100)
    await run(world)
    assert len(await world.stored(Completed)) == 1
    assert [(task.step, task.attempt) for task in await world.stored(Dispatched)] == [("a", 1), ("a", 2), ("b", 1)]
    assert await world.size() == size


async def test_failure_is_retried_after_its_delay_not_before(world: World) -> None:
    await world.given(admitted(plan(retry=TWICE)))
    await run(world)
    await world.given(started())
    await answer(world, "failed", error=BOOM)
    await run(world)
    [again] = await world.recorded(RetryScheduled)
    assert again.message.next_attempt_at == again.time + timedelta(seconds=30)
    world.clock.advance(29)
    await run(world)
    assert len(await world.stored(Dispatched)) == 1
    world.clock.advance(2)
    await run(world)
    assert [task.attempt for task in await world.stored(Dispatched)] == [1, 2]


async def test_report_of_a_scheduled_retry_changes_nothing(world: World) -> None:
    await world.given(admitted(plan(retry=TWICE)))
    await run(world)
    at = world.clock.now() + timedelta(seconds=30)
    await world.given(
        started(),
        RetryScheduled(job=JOB, execution_id=ID, step="main", attempt=1, error=BOOM, delay=30, next_attempt_at=at),
    )
    await answer(world, "failed", error=BOOM)
    await run(world)
    world.clock.advance(31)
    await run(world)
    assert [task.attempt for task in await world.stored(Dispatched)] == [1, 2]
    assert len(await world.stored(RetryScheduled)) == 1


async def test_i7_exhaustion_makes_one_dead_letter(world: World) -> None:
    await world.given(admitted(plan(retry=TWICE)))
    await run(world)
    for attempt in (1, 2):
        await world.given(started("main", attempt))
        await answer(world, "failed", attempt=attempt, error=BOOM)
        await run(world)
        world.clock.advance(31)
        await run(world)
    [letter] = await world.stored(DeadLettered)
    assert [a.attempt for a in letter.attempts] == [1, 2]
    await world.redeliver(world.dead_letter_sink, world.retrier)
    assert len(await world.stored(DeadLettered)) == 1


async def test_job_without_dead_letters_gets_none(world: World) -> None:
    await world.given(admitted(plan(dead_letter=False)))
    await run(world)
    await world.given(started())
    await answer(world, "failed", error=BOOM)
    await run(world)
    assert len(await world.stored(Failed)) == 1
    assert await world.stored(DeadLettered) == []


async def test_failure_of_a_lost_holder_is_ignored(world: World) -> None:
    await world.given(admitted(plan(retry=TWICE)))
    await run(world)
    await world.given(started(delivery=1), started(delivery=2))
    await answer(world, "failed", delivery=1, error=BOOM)
    await run(world)
    assert await world.stored(RetryScheduled) == []
    await answer(world, "completed", delivery=1)
    await run(world)
    assert len(await world.stored(Completed)) == 1
