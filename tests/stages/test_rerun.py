"""Replays: a dead letter becomes one new execution, and is resolved when that completes."""

from typing import Any

import pytest
from pydantic import JsonValue

from tests.domain.given import KEY, proven
from tests.stages.world import World
from tocsin import subjects
from tocsin.domain import ids
from tocsin.domain.definition import DefinitionError, JobDefinition
from tocsin.domain.events import (
    Acquired,
    Actor,
    Admitted,
    Cancelled,
    Completed,
    DeadLettered,
    Dispatched,
    Enqueued,
    Failed,
    Failure,
    PoisonMessage,
    Queued,
    QueuePaused,
    Replayed,
    Report,
    Requested,
    Resolved,
    Skipped,
    Started,
    validated,
)
from tocsin.domain.ledger import delete
from tocsin.engine.ledger_reader import LedgerReader
from tocsin.engine.rerun import unregistered_request
from tocsin.services.operations import dead_letters

ADA = Actor(identity="ada", source="test")
ETL, STEP, ONCE = "etl", "main", {"max_attempts": 1}


def etl(**more: object) -> dict[str, object]:
    return {"name": ETL, "function": "f", "dead_letter": True, "input": {"a": 1}, "retry": ONCE, **more}


async def run(world: World) -> None:
    await world.run(world.planner, world.lock_keeper, world.dag_advancer, world.retrier, world.dead_letter_sink)


async def answer(world: World, execution_id: str, outcome: str, *, step: str = STEP) -> None:
    """The executor of a step claims it and answers."""
    await world.given(Started(job=ETL, execution_id=execution_id, step=step, attempt=1, delivery=1, worker="w"))
    token = ids.report_token(KEY, execution_id, step, 1)
    error = Failure(type="ValueError", message="boom") if outcome == "failed" else None
    answer = validated(
        Report,
        {
            "job": ETL,
            "execution_id": execution_id,
            "outcome": outcome,
            "step": step,
            "attempt": 1,
            "delivery": 1,
            "token": token,
            "error": error,
        },
    )
    answer = proven(answer)
    await world.log.publish(subjects.subject_of(answer), answer, message_id=f"{execution_id}-{step}-{outcome}")
    await run(world)


async def failed(world: World, message_id: str = "m", **trigger: object) -> DeadLettered:
    """An execution that was triggered and failed for good."""
    await world.trigger(ETL, message_id, **trigger)
    await run(world)
    task = (await world.stored(Dispatched))[-1]
    await answer(world, task.execution_id, "failed")
    return (await world.stored(DeadLettered))[-1]


async def replayed(world: World, letter: str, number: int = 1, **fields: Any) -> Requested:  # noqa: ANN401
    """Replay a dead letter; return the execution that starts."""
    await world.given(Replayed(job=ETL, id=letter, number=number, **fields))
    await run(world)
    return (await world.stored(Requested))[-1]


async def test_replay_is_a_new_execution_of_the_work(world: World) -> None:
    await world.define(etl(overlap_policy="allow"))
    letter = await failed(world, input={"b": 2}, args=["x"])
    begun = await replayed(world, letter.id, by=ADA)
    assert (begun.trigger, begun.replay_of, begun.by) == ("replay", letter.id, ADA)
    assert (begun.plan.input, begun.plan.args) == ({"a": 1, "b": 2}, ("x",))
    assert begun.scheduled_time == letter.scheduled_time
    [fact] = await world.recorded(Replayed)
    assert begun.execution_id == ids.replay_id(ETL, letter.id, 1, fact.time)
    assert begun.execution_id != letter.execution_id


async def test_replay_uses_current_definition_and_original_input(world: World) -> None:
    await world.define(etl(input={"a": 1, "c": 3}, overlap_policy="allow"))
    letter = await failed(world, input={"b": 2, "c": 4})
    await world.define(etl(input={"a": 100, "c": 3}, function="repaired", overlap_policy="allow"))
    begun = await replayed(world, letter.id, input={"b": 5})
    assert begun.plan.input == {"a": 100, "b": 5, "c": 4}
    assert begun.plan.steps[0].function == "repaired"


async def test_a_step_keeps_the_input_of_its_own(world: World) -> None:
    steps = [{"name": STEP, "function": "f", "input": {"a": 2}}]
    await world.define({**etl(overlap_policy="allow", dag=steps), "function": None})
    letter = await failed(world)
    assert (await replayed(world, letter.id)).plan.steps[0].input == {"a": 2}


async def test_i4_what_is_delivered_again_adds_nothing(world: World) -> None:
    await world.define(etl())
    letter = await failed(world)
    begun = await replayed(world, letter.id)
    stages = (world.planner, world.dag_advancer, world.planner, world.dead_letter_sink, world.lock_keeper)
    size = await world.size()
    await world.redeliver(*stages)
    assert await world.size() == size
    await answer(world, begun.execution_id, "completed")
    size = await world.size()
    await world.redeliver(*stages)
    assert await world.size() == size
    assert world.pending == 0


async def test_i4_edit_between_deliveries_makes_no_second_execution(world: World) -> None:
    await world.define(etl())
    letter = await failed(world)
    await replayed(world, letter.id)
    await world.define(etl(function="other"))
    await world.redeliver(world.planner)
    assert len([r for r in await world.stored(Requested) if r.trigger == "replay"]) == 1


async def test_a_replay_that_completes_resolves_its_dead_letter(world: World) -> None:
    await world.define(etl())
    letter = await failed(world)
    begun = await replayed(world, letter.id)
    await answer(world, begun.execution_id, "completed")
    [resolved] = await world.stored(Resolved)
    assert (resolved.id, resolved.execution_id, resolved.reason) == (letter.id, begun.execution_id, "replayed")


async def test_failed_replay_is_a_dead_letter_linked_back(world: World) -> None:
    await world.define(etl())
    first = await failed(world)
    begun = await replayed(world, first.id)
    await answer(world, begun.execution_id, "failed")
    second = (await world.stored(DeadLettered))[-1]
    assert (second.id, second.replay_of) == (begun.execution_id, first.id)
    assert await world.stored(Resolved) == []
    again = await replayed(world, second.id)
    await answer(world, again.execution_id, "completed")
    assert [fact.id for fact in await world.stored(Resolved)] == [second.id, first.id]


async def test_replay_resolves_nothing_before_its_last_step(world: World) -> None:
    steps = [{"name": STEP, "function": "f"}, {"name": "next", "function": "f", "depends_on": [STEP]}]
    await world.define({**etl(overlap_policy="allow", dag=steps), "function": None})
    letter = await failed(world)
    begun = await replayed(world, letter.id)
    await answer(world, begun.execution_id, "completed")
    assert [task.step for task in await world.stored(Dispatched)] == [STEP, STEP, "next"]
    await world.redeliver(world.dag_advancer)
    assert await world.stored(Resolved) == []


async def test_completed_execution_without_replay_resolves_nothing(world: World) -> None:
    await world.define(etl())
    await failed(world)
    await world.trigger(ETL, "n")
    await run(world)
    await answer(world, (await world.stored(Dispatched))[-1].execution_id, "completed")
    assert await world.stored(Resolved) == []


@pytest.mark.parametrize("policy", ["skip", "cancel_previous", "enqueue"])
async def test_queued_replays_are_all_kept(world: World, policy: str) -> None:
    await world.define(etl(overlap_policy=policy))
    letters = [await failed(world, f"m{n}") for n in range(3)]
    begun = [(await replayed(world, letter.id)).execution_id for letter in letters]
    for _ in letters:
        running = (await world.stored(Dispatched))[-1].execution_id
        await answer(world, running, "completed")
    assert {fact.execution_id for fact in await world.stored(Completed)} == set(begun)
    assert (await world.stored(Skipped), await world.stored(Cancelled)) == ([], [])
    assert len(await world.stored(Queued)) == 2
    assert len(await world.stored(Acquired)) == 6


async def test_where_overlap_is_allowed_nothing_waits(world: World) -> None:
    await world.define(etl(overlap_policy="allow"))
    letters = [await failed(world, f"m{n}") for n in range(2)]
    for letter in letters:
        await replayed(world, letter.id)
    assert [fact.replay_of for fact in (await world.stored(Admitted))[2:]] == [letter.id for letter in letters]


async def test_replay_of_a_deleted_job_becomes_dead_letter(world: World) -> None:
    await world.define(etl())
    letter = await failed(world)
    state, sequence = await LedgerReader(world.log).load(ETL)
    [fact] = delete(state, ETL)
    await world.log.append(fact, expect=sequence)
    await replayed(world, letter.id)
    [refused] = await world.stored(PoisonMessage)
    assert (refused.reason, refused.durable) == (f"no job is called {ETL!r}", "planner-replays")
    size = await world.size()
    await world.redeliver(world.planner)
    assert await world.size() == size


async def test_replay_of_a_job_without_registration(world: World) -> None:
    definition = JobDefinition.model_validate(etl(overlap_policy="allow"))
    request = Enqueued(execution_id="0193a5b0-0000-7000-8000-00000000000a", definition=definition)
    await world.log.publish(subjects.subject_of(request), request, message_id="m")
    await run(world)
    await answer(world, request.execution_id, "failed")
    [letter] = await world.stored(DeadLettered)
    begun = len(await world.stored(Requested))
    await world.given(Replayed(job=ETL, id=letter.id, number=1))
    await run(world)
    replays = (await world.stored(Requested))[begun:]
    assert [(fact.replay_of, fact.plan.input) for fact in replays] == [(letter.id, {"a": 1})]
    assert await world.stored(PoisonMessage) == []


async def test_failed_steps_of_a_job_without_registration(world: World) -> None:
    steps = [{"name": "extract", "function": "f"}, {"name": "load", "function": "g", "depends_on": ["extract"]}]
    definition = JobDefinition.model_validate({**etl(overlap_policy="allow", dag=steps), "function": None})
    request = Enqueued(execution_id="0193a5b0-0000-7000-8000-00000000000a", definition=definition)
    await world.log.publish(subjects.subject_of(request), request, message_id="m")
    await run(world)
    await answer(world, request.execution_id, "completed", step="extract")
    await answer(world, request.execution_id, "failed", step="load")
    [letter] = await world.stored(DeadLettered)
    again = await dead_letters.replay(world.log, letter.id, failed_only=True)
    await run(world)
    tasks = [task for task in await world.stored(Dispatched) if task.execution_id == again.execution_id]
    assert [task.step for task in tasks] == ["load"]


async def test_request_of_an_unregistered_job_is_read(world: World) -> None:
    definition = JobDefinition.model_validate(etl(overlap_policy="allow"))
    request = Enqueued(execution_id="0193a5b0-0000-7000-8000-00000000000a", definition=definition)
    await world.log.publish(subjects.subject_of(request), request, message_id="m")
    await run(world)
    await answer(world, request.execution_id, "failed")
    [letter] = await world.stored(DeadLettered)

    original = await unregistered_request(world.log, letter)
    assert original is not None
    assert (original.execution_id, original.plan.input) == (request.execution_id, {"a": 1})


async def test_replay_with_invalid_input_becomes_dead_letter(world: World) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    await world.define(etl(input_schema=schema))
    letter = await failed(world)
    await replayed(world, letter.id, input={"a": "x"})
    [refused] = await world.stored(PoisonMessage)
    assert (refused.code, "`input.a`" in refused.reason) == ("invalid-definition", True)


async def test_replay_may_not_choose_a_secret(world: World) -> None:
    """Only a definition may. Otherwise every operator who may replay could read any secret."""
    await world.define(etl(input={"a": "${env:KNOWN}"}, overlap_policy="allow"))
    letter = await failed(world)
    assert (await replayed(world, letter.id)).trigger == "replay"
    await replayed(world, letter.id, number=2, input={"b": "${env:OTHER}"})
    [refused] = await world.stored(PoisonMessage)
    assert (refused.code, "`${env:OTHER}`" in refused.reason) == ("invalid-definition", True)


async def test_replay_of_unregistered_job_chooses_no_secret(world: World) -> None:
    """Also if the request passed another door; and its input has the usual limit."""
    definition = JobDefinition.model_validate(etl(overlap_policy="allow", input={"a": "${env:KNOWN}"}))
    request = Enqueued(execution_id="0193a5b0-0000-7000-8000-00000000000a", definition=definition)
    await world.log.publish(subjects.subject_of(request), request, message_id="m")
    await run(world)
    await answer(world, request.execution_id, "failed")
    [letter] = await world.stored(DeadLettered)
    wrong: list[tuple[dict[str, JsonValue], str]] = [
        ({"b": ["${env:OTHER}"]}, "secret-reference-not-allowed"),
        ({"b": "x" * 70_000}, "too-large"),
    ]
    for number, (given, code) in enumerate(wrong, 1):
        with pytest.raises(DefinitionError) as caught:
            await dead_letters.replay(world.log, letter.id, input=given)
        assert [problem.code for problem in caught.value.problems] == [code]
        await replayed(world, letter.id, number=number, input=given)
    assert [refused.code for refused in await world.stored(PoisonMessage)] == ["invalid-definition"] * len(wrong)
    again = await dead_letters.replay(world.log, letter.id, input={"b": 1}, again=True)
    await run(world)
    [planned] = [fact for fact in await world.stored(Requested) if fact.execution_id == again.execution_id]
    assert planned.plan.input == {"a": "${env:KNOWN}", "b": 1}


async def test_replay_uses_the_definition_when_it_was_requested(world: World) -> None:
    """Handled late, or again: it may have been refused then, and stays so."""
    await world.define(etl(overlap_policy="allow"))
    letter = await failed(world)
    state, sequence = await LedgerReader(world.log).load(ETL)
    [deleted] = delete(state, ETL)
    gone = await world.log.append(deleted, expect=sequence)
    await world.given(Replayed(job=ETL, id=letter.id, number=1, ledger=gone))
    await world.run(world.planner)
    await world.define(etl(function="new", overlap_policy="allow"))
    await world.redeliver(world.planner)
    [refused] = await world.stored(PoisonMessage)
    assert refused.reason == f"no job is called {ETL!r}"
    assert [fact.trigger for fact in await world.stored(Requested)] == ["event"]


async def test_trigger_before_its_job_is_planned_on_replay(world: World) -> None:
    other = QueuePaused(queue="other")
    await world.log.append(other, expect=0)  # the ledger begins with another event than a definition
    await world.trigger(ETL, input={"b": 2})
    await run(world)
    [refused] = await world.stored(PoisonMessage)
    await world.define(etl())
    begun = await replayed(world, refused.id)
    assert (begun.trigger, begun.replay_of, begun.plan.input) == ("replay", refused.id, {"a": 1, "b": 2})
    await answer(world, begun.execution_id, "completed")
    assert [fact.id for fact in await world.stored(Resolved)] == [refused.id]


def refused_message(subject: str, message: Any) -> PoisonMessage:  # noqa: ANN401 - any input
    return PoisonMessage.of(ETL, "some-durable", subject, 7, message.encode(), "for once")


async def test_a_fact_is_not_handed_in_again(world: World) -> None:
    end = Failed(job=ETL, execution_id="some-id", scheduled_time=world.clock.now(), trigger="cron")
    refused = refused_message(subjects.subject_of(end), end)
    await world.given(refused, Replayed(job=ETL, id=refused.id, number=1))
    await world.run(world.planner)
    letter = (await world.stored(PoisonMessage))[-1]
    assert letter.code == "not-rerunnable"
    assert await world.stored(Failed) == []
