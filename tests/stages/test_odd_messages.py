"""Hostile, huge and early messages break no rule."""

from datetime import timedelta

import pytest

from tests.domain.given import ID, JOB, KEY, NOON, admitted, plan, started
from tests.stages.world import World
from tocsin import subjects
from tocsin.domain import dead_letter, execution, execution_plan, ledger
from tocsin.domain.definition import JobDefinition
from tocsin.domain.events import (
    Admitted,
    Advanced,
    Due,
    Failed,
    Failure,
    Message,
    PoisonMessage,
    Recorded,
    Requested,
    RetryScheduled,
    Skipped,
)
from tocsin.engine.ledger_reader import LedgerReader
from tocsin.engine.ripe_inputs import PATIENCE

PAYLOAD = 1_048_576
"""Bytes that a NATS server takes by default."""


async def delete(world: World, job: str) -> None:
    state, _ = await LedgerReader(world.log).load(job)
    await world.given(*ledger.delete(state, job))


@pytest.mark.parametrize("subject", ["trigger.nightly.>", "trigger.night*", "trigger.a\u200bb", "cancel.night*.x"])
async def test_request_on_refused_subject_becomes_dead_letter(world: World, subject: str) -> None:
    world.log.receive(subject, b"{}")
    await world.run(world.planner, world.dag_advancer)
    world.clock.advance(PATIENCE.total_seconds())
    await world.run(world.planner, world.dag_advancer)
    assert [(letter.job, letter.subject) for letter in await world.stored(PoisonMessage)] == [("-", subject)]
    assert world.pending == 0


@pytest.mark.parametrize("wildcard", ["*", ">"])
async def test_a_trigger_of_every_job_triggers_none(world: World, wildcard: str) -> None:
    await world.define({"name": JOB, "function": "f"})
    world.log.receive(f"trigger.{wildcard}", b"{}")
    await world.run(world.planner)
    assert await world.stored(Requested) == []
    assert [refused.reason for refused in await world.stored(PoisonMessage)] == ["no job is called '*'"]
    assert world.pending == 0


async def test_trigger_uses_the_definition_when_planned(world: World) -> None:
    await world.define({"name": JOB, "function": "old"})
    await world.trigger(JOB)
    second = await world.define({"name": JOB, "function": "new"})
    await world.run(world.planner)
    [planned] = await world.stored(Admitted)
    assert (planned.plan.definition, planned.plan.steps[0].function) == (second, "new")


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


@pytest.mark.parametrize("body", [b"x" * 262_000, b'{"input": {"a": "' + b"x" * 262_000 + b'"}}'])
async def test_any_message_can_become_a_dead_letter(world: World, body: bytes) -> None:
    world.log.receive(subjects.trigger(JOB), body)
    await world.run(world.planner)
    assert len(await world.stored(PoisonMessage)) == 1


def test_a_task_behind_many_results_can_be_stored() -> None:
    before = tuple(f"s{n}" for n in range(17))
    graph = {**dict.fromkeys(before, ()), "last": before}
    facts: list[Message] = [
        admitted(plan(graph)),
        *(Advanced(job=JOB, execution_id=ID, step=step, attempt=1, result="x" * 65_000) for step in before),
    ]
    state = execution.fold(Recorded(fact, "", n, NOON) for n, fact in enumerate(facts, 1))
    assert all(len(fact.encode()) < PAYLOAD for fact in execution.dispatch(state, key=KEY))


def test_plan_of_any_definition_can_be_stored() -> None:
    dag = [{"name": f"s{n}", "function": "f"} for n in range(20)]
    definition = JobDefinition.model_validate({"name": JOB, "dag": dag, "input": {"a": "x" * 60_000}})
    due = Due(job=JOB, scheduled_time=NOON, definition=1)
    assert len(execution_plan.from_due(due, definition).encode()) < PAYLOAD


def test_dead_letter_of_many_attempts_can_be_stored() -> None:
    error = Failure(type="E", message="m" * 4_096, traceback="t" * 8_192)
    facts: list[Message] = [admitted()]
    for attempt in range(1, 100):
        again = RetryScheduled(
            job=JOB, execution_id=ID, step="main", attempt=attempt, error=error, delay=1, next_attempt_at=NOON
        )
        facts += [started("main", attempt), again]
    end = Failed(job=JOB, execution_id=ID, scheduled_time=NOON, trigger="cron", step="main", attempt=100, error=error)
    recorded = [Recorded(fact, "", n, NOON + timedelta(seconds=n)) for n, fact in enumerate([*facts, end], 1)]
    assert len(dead_letter.of_failed(end, recorded).encode()) < PAYLOAD
