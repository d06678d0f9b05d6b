"""Workflows: the planner begins them, the retrier ends a job, and the DAG advancer goes on."""

import pytest

from tests.domain.given import ID, JOB, admitted, plan, started
from tests.domain.test_workflow import BATCH, CHAIN, plan_of
from tests.stages.test_dag_advancer import answer
from tests.stages.world import World
from tocsin import subjects
from tocsin.domain import execution
from tocsin.domain.definition import JobDefinition, Step
from tocsin.domain.events import (
    Admitted,
    Completed,
    Dispatched,
    Enqueued,
    Failed,
    Failure,
    StepMeta,
    Workflow,
    WorkflowNode,
)
from tocsin.domain.execution import Status

BOOM = Failure(type="ValueError", message="boom", retryable=False)


async def run(world: World) -> None:
    await world.run(world.dag_advancer, world.retrier)


async def end(world: World, outcome: str, step: str) -> None:
    """A worker takes a step and reports on it."""
    await world.given(started(step))
    more = {"error": BOOM} if outcome == "failed" else {"result": {"of": step}}
    await answer(world, outcome, step, **more)
    await run(world)


async def tasks(world: World) -> list[str]:
    return [task.step for task in await world.stored(Dispatched)]


async def status(world: World) -> Status:
    return execution.fold(await world.log.load(subjects.execution(JOB, ID))).status


async def test_chain_passes_results_on(world: World) -> None:
    await world.given(admitted(plan_of(CHAIN)))
    await run(world)
    await end(world, "completed", "a")
    await end(world, "completed", "b")
    assert await tasks(world) == ["a", "b", "c"]
    assert [task.upstream for task in await world.stored(Dispatched)] == [{}, {"a": {"of": "a"}}, {"b": {"of": "b"}}]
    await end(world, "completed", "c")
    assert await status(world) is Status.COMPLETED


async def test_chain_stops_at_a_failure(world: World) -> None:
    await world.given(admitted(plan_of(CHAIN)))
    await run(world)
    await end(world, "completed", "a")
    await end(world, "failed", "b")
    [failed] = await world.stored(Failed)
    assert (failed.step, failed.cancelled_steps) == ("b", ("c",))
    assert await tasks(world) == ["a", "b"]


@pytest.mark.parametrize("order", ["ab", "ba"])
async def test_callbacks_of_a_failed_batch_are_dispatched(world: World, order: str) -> None:
    await world.given(admitted(plan_of(BATCH)))
    await run(world)
    for step in order:
        await end(world, "failed" if step == "b" else "completed", step)
    assert await tasks(world) == ["a", "b", "x", "z"]
    await end(world, "completed", "x")
    await end(world, "completed", "z")
    [completed] = await world.stored(Completed)
    assert completed.cancelled_steps == ("y",)


async def test_batch_without_a_due_callback_ends(world: World) -> None:
    tree = Workflow(nodes=(WorkflowNode(key="", kind="batch", members=("a",), on_success="y"),))
    await world.given(admitted(plan_of(tree)))
    await run(world)
    await end(world, "failed", "a")
    [completed] = await world.stored(Completed)
    assert (completed.step, completed.cancelled_steps) == (None, ("y",))


async def test_failure_in_a_graph_changes_nothing_more(world: World) -> None:
    await world.given(admitted(plan({"a": (), "b": (), "c": ("a",)})))
    await run(world)
    await end(world, "failed", "a")
    assert await tasks(world) == ["a", "b"]
    assert await status(world) is Status.ADMITTED


async def test_enqueued_workflow_begins_with_its_first_job(world: World) -> None:
    steps = tuple(Step(name=name, function=f"f/{name}", args=(name,)) for name in "abc")
    definition = JobDefinition(name=JOB, dag=steps, overlap_policy="allow")
    wish = Enqueued(
        execution_id=ID,
        definition=definition,
        workflow=CHAIN,
        step_meta=(StepMeta(step="a", meta={"own": 1}),),
    )
    await world.log.publish(subjects.subject_of(wish), wish, message_id=ID)
    await world.run(world.planner, world.dag_advancer)
    [admission] = await world.stored(Admitted)
    assert admission.plan.workflow == CHAIN
    [task] = await world.stored(Dispatched)
    assert (task.step, task.args, task.meta) == ("a", ("a",), {"own": 1})
