"""Workflows: which steps are ready and the outcome, by tables, and against a second statement for any history."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.domain.given import KEY, NOON, admitted, plan, recorded, report, started
from tests.properties import examples
from tocsin.domain import execution, execution_plan
from tocsin.domain.definition import JobDefinition, RetryPolicy
from tocsin.domain.events import (
    Completed,
    Dispatched,
    Exhausted,
    Failed,
    Failure,
    Message,
    Plan,
    Recorded,
    StepMeta,
    Trigger,
    Workflow,
    WorkflowNode,
    validated,
)
from tocsin.domain.execution import Execution, Status, workflow
from tocsin.domain.execution.workflow import Outcome
from tocsin.services.audit.execution_parts import WorkflowOrder

BOOM = Failure(type="ValueError", message="boom")

CHAIN = Workflow(nodes=(WorkflowNode(key="", kind="chain", members=("a", "b", "c")),))
GROUP = Workflow(nodes=(WorkflowNode(key="", kind="group", members=("a", "b")),))
BATCH = Workflow(
    nodes=(WorkflowNode(key="", kind="batch", members=("a", "b"), on_complete="x", on_success="y", on_failure="z"),)
)
FAN_OUT = Workflow(
    nodes=(
        WorkflowNode(key="", kind="chain", members=("a", "g", "d")),
        WorkflowNode(key="g", kind="group", members=("b", "c")),
    )
)
CHAINS = Workflow(
    nodes=(
        WorkflowNode(key="", kind="batch", members=("p", "q"), on_failure="z", on_success="y"),
        WorkflowNode(key="p", kind="chain", members=("a", "b")),
        WorkflowNode(key="q", kind="chain", members=("c", "d")),
    )
)
INNER_BATCH = Workflow(
    nodes=(
        WorkflowNode(key="", kind="chain", members=("w", "d")),
        WorkflowNode(key="w", kind="batch", members=("a", "b"), on_failure="z"),
    )
)


def planned(**steps: Any) -> Plan:  # noqa: ANN401 - fields of a step, or the steps before it
    """Return the plan of a registered job, whose failed attempts are not tried again."""
    dag = [
        {"name": name, "function": "f", **(fields if isinstance(fields, dict) else {"depends_on": [*fields]})}
        for name, fields in steps.items()
    ]
    job = JobDefinition(name="j", dag=dag, retry=RetryPolicy(max_attempts=1, jitter=0))  # type: ignore[arg-type]
    trigger = Recorded(Trigger(), "trigger.j", 1, NOON)
    return execution_plan.from_trigger(trigger, job, 1).plan


def with_callbacks(**callbacks: str) -> Plan:
    """Return the plan of a job whose step `c` follows `a`, and whose step `b` is free."""
    return planned(a="", b="", c="a", **{name: {"callback": kind} for name, kind in callbacks.items()})


def plan_of(tree: Workflow, *, attempts: int = 1) -> Plan:
    retry = RetryPolicy(max_attempts=attempts, jitter=0)
    # The job of a workflow is not registered.
    return plan(workflow.edges(tree), retry=retry).changed(workflow=tree, definition=0)


class Run:
    """An execution that goes on as the stages would let it."""

    def __init__(self, tree: Workflow, plan_: Plan | None = None) -> None:
        self.plan = plan_ or plan_of(tree)
        self.facts: list[Message] = [admitted(self.plan)]
        self.decide(execution.dispatch(self.state, key=KEY))

    @property
    def state(self) -> Execution:
        return execution.fold(self.recorded)

    @property
    def recorded(self) -> list[Recorded[Message]]:
        return recorded(self.facts)

    def decide(self, facts: Iterable[Message]) -> list[Message]:
        """Store a decision; workers start its tasks."""
        decided = [*facts]
        self.facts += decided
        self.facts += [started(fact.step) for fact in decided if isinstance(fact, Dispatched)]
        return decided

    def succeed(self, step: str, result: Any = None) -> list[Message]:  # noqa: ANN401 - JSON
        return self.decide(execution.succeed(self.state, report("completed", step, result=result), key=KEY))

    def fail(self, step: str) -> list[Message]:
        failed = self.decide(execution.fail(self.state, report("failed", step, delivery=None, error=BOOM), at=NOON))
        return [*failed, *self.decide(execution.go_on(self.state, key=KEY))]

    @property
    def running(self) -> set[str]:
        return {name for name, _ in execution.running_steps(self.state)}


def played(tree: Workflow, moves: str) -> Run:
    """Play moves: `+a` completes a step, and `-a` fails it."""
    run = Run(tree)
    for move in moves.split():
        (run.succeed if move[0] == "+" else run.fail)(move[1:])
    return run


@pytest.mark.parametrize(
    ("tree", "moves", "running", "status"),
    [
        (CHAIN, "", "a", "admitted"),
        (CHAIN, "+a", "b", "admitted"),
        (CHAIN, "+a +b +c", "", "completed"),
        (CHAIN, "+a -b", "", "failed"),
        (GROUP, "", "ab", "admitted"),
        (GROUP, "-a", "b", "admitted"),
        (GROUP, "-a +b", "", "failed"),
        (GROUP, "+a -b", "", "failed"),
        (GROUP, "+b +a", "", "completed"),
        (BATCH, "+a", "b", "admitted"),
        (BATCH, "+a +b", "xy", "admitted"),
        (BATCH, "+a -b", "xz", "admitted"),
        (BATCH, "-a +b", "xz", "admitted"),
        (BATCH, "-a -b", "xz", "admitted"),
        (BATCH, "+a -b +x +z", "", "completed"),
        (BATCH, "+a +b -x", "y", "admitted"),
        (BATCH, "+a +b -x +y", "", "failed"),
        (BATCH, "+a +b +x -y", "", "failed"),
        (FAN_OUT, "+a", "bc", "admitted"),
        (FAN_OUT, "+a +c", "b", "admitted"),
        (FAN_OUT, "+a +c +b", "d", "admitted"),
        (FAN_OUT, "+a -c", "b", "admitted"),
        (FAN_OUT, "+a -c +b", "", "failed"),
        (FAN_OUT, "-a", "", "failed"),
        (CHAINS, "", "ac", "admitted"),
        (CHAINS, "-a", "c", "admitted"),
        (CHAINS, "-a +c", "d", "admitted"),
        (CHAINS, "-a +c +d", "z", "admitted"),
        (CHAINS, "+a +b +c +d", "y", "admitted"),
        (INNER_BATCH, "-a +b", "z", "admitted"),
        (INNER_BATCH, "-a +b +z", "d", "admitted"),
        (INNER_BATCH, "+a +b", "d", "admitted"),
        (INNER_BATCH, "-a +b -z", "", "failed"),
    ],
)
def test_steps_that_run_after_some_ended(tree: Workflow, moves: str, running: str, status: str) -> None:
    run = played(tree, moves)
    assert (run.running, run.state.status) == (set(running), status)


ALL = with_callbacks(x="on_complete", y="on_success", z="on_failure")
ON_FAILURE = with_callbacks(z="on_failure")
ON_SUCCESS = with_callbacks(y="on_success")


@pytest.mark.parametrize(
    ("plan_", "moves", "running", "status"),
    [
        (ALL, "+a +b", "c", "admitted"),
        (ALL, "+a +b +c", "xy", "admitted"),
        (ALL, "+a +b +c +x +y", "", "completed"),
        (ALL, "+a +b +c -x +y", "", "failed"),
        (ALL, "-a", "b", "admitted"),
        (ALL, "-a +b", "xz", "admitted"),
        (ALL, "+a -c +b", "xz", "admitted"),
        (ALL, "-a +b +x +z", "", "failed"),
        (ALL, "-a +b +z -x", "", "failed"),
        (ON_FAILURE, "+a +b +c", "", "completed"),
        (ON_FAILURE, "+b -a", "z", "admitted"),
        (ON_FAILURE, "+b -a +z", "", "failed"),
        (ON_SUCCESS, "+b -a", "", "failed"),
        (ON_SUCCESS, "-a +b", "", "failed"),
        (ON_SUCCESS, "+b +a +c", "y", "admitted"),
    ],
)
def test_callbacks_of_a_job_run_after_its_steps(plan_: Plan, moves: str, running: str, status: str) -> None:
    assert plan_.workflow is not None
    run = Run(plan_.workflow, plan_)
    for move in moves.split():
        (run.succeed if move[0] == "+" else run.fail)(move[1:])
    assert (run.running, run.state.status) == (set(running), status)
    end = run.facts[-1]
    if isinstance(end, Failed) and "-a" in moves and "-x" not in moves:
        assert end.error == BOOM


@pytest.mark.parametrize("moves", ["-a +b", "+b -a"])
def test_batch_without_a_due_callback_completes(moves: str) -> None:
    tree = Workflow(nodes=(WorkflowNode(key="", kind="batch", members=("a", "b"), on_success="y"),))
    run = played(tree, moves)
    end = run.facts[-1]
    assert isinstance(end, Completed)
    assert end.cancelled_steps == ("y",)


@pytest.mark.parametrize("stored", [0, 1, 2])
def test_callbacks_are_dispatched_once_after_a_crash(stored: int) -> None:
    """The DAG advancer died after it had stored `stored` of two tasks, and decides on the failure again."""
    run = played(BATCH, "+a")
    run.facts += execution.fail(run.state, report("failed", "b", delivery=None, error=BOOM), at=NOON)
    decided = execution.go_on(run.state, key=KEY)
    assert [type(fact) for fact in decided] == [Dispatched, Dispatched]
    run.facts += decided[:stored]
    assert execution.go_on(run.state, key=KEY) == decided[stored:]


def test_report_of_success_dispatches_callbacks_too() -> None:
    """The last job completed before the DAG advancer read of the failure."""
    run = Run(BATCH)
    run.facts += execution.fail(run.state, report("failed", "b", delivery=None, error=BOOM), at=NOON)
    run.succeed("a")
    assert run.running == {"x", "z"}
    assert execution.go_on(run.state, key=KEY) == []


def test_failure_in_a_graph_dispatches_nothing() -> None:
    graph = plan({"a": (), "b": ()})
    run = Run(GROUP, graph)
    assert [type(fact) for fact in run.fail("a")] == [Exhausted]


def test_retry_is_no_failure_of_the_workflow() -> None:
    run = Run(GROUP, plan_of(GROUP, attempts=2))
    run.fail("a")
    run.succeed("b")
    assert run.state.status is Status.ADMITTED


def test_cancelled_workflow_dispatches_nothing() -> None:
    run = played(CHAIN, "+a")
    run.decide(execution.cancel(run.state))
    assert run.succeed("b") == []
    assert run.state.status is Status.CANCELLED


def test_dag_waits_for_each_dependency() -> None:
    graph = {"a": (), "b": (), "c": ("a", "b"), "d": ("a",)}
    tree = Workflow(nodes=(WorkflowNode(key="", kind="dag", members=("c", "a", "b", "d")),), names_steps=True)
    run = Run(tree, plan(graph).changed(workflow=tree))
    run.succeed("a")
    assert run.running == {"b", "d"}
    run.fail("b")
    assert run.running == {"d"}
    end = run.succeed("d")[-1]
    assert isinstance(end, Failed)
    assert end.cancelled_steps == ("c",)


def test_metadata_of_a_step_is_in_its_tasks() -> None:
    plan_ = plan_of(GROUP)
    own = StepMeta(step="a", meta={"k": 1})
    steps = tuple(step.changed(meta=own.meta if step.name == own.step else None) for step in plan_.steps)
    tasks = [fact for fact in Run(GROUP, plan_.changed(steps=steps)).facts if isinstance(fact, Dispatched)]
    assert [task.meta.get("k") for task in tasks] == [1, None]


@pytest.mark.parametrize(
    ("tree", "step", "parents"),
    [
        (CHAIN, "a", ""),
        (CHAIN, "c", "ab"),
        (GROUP, "b", ""),
        (BATCH, "z", "ab"),
        (FAN_OUT, "b", "a"),
        (FAN_OUT, "d", "ag"),
        (CHAINS, "d", "c"),
        (CHAINS, "z", "pq"),
        (INNER_BATCH, "a", ""),
        (INNER_BATCH, "d", "w"),
    ],
)
def test_members_whose_results_a_step_receives(tree: Workflow, step: str, parents: str) -> None:
    planned = {planned.name: planned for planned in plan_of(tree).steps}
    assert workflow.parents(tree, planned, step) == tuple(parents)


def test_results_of_nested_workflows() -> None:
    run = Run(FAN_OUT)
    for step in "abc":
        run.succeed(step, {"of": step})
    steps = run.state.steps
    assert workflow.result(FAN_OUT, steps, "g") == {"0": {"of": "b"}, "1": {"of": "c"}}
    run.succeed("d", 7)
    assert workflow.result(FAN_OUT, run.state.steps, workflow.ROOT) == 7


@st.composite
def workflows(draw: st.DrawFn) -> Workflow:
    nodes: list[WorkflowNode] = []
    names = iter(f"s{number}" for number in range(1_000))

    def drawn(key: str, depth: int) -> None:
        place = len(nodes)
        members: list[str] = []
        kind = draw(st.sampled_from(["chain", "group", "batch"]))
        nodes.append(WorkflowNode(key=key, kind="chain", members=()))
        for index in range(draw(st.integers(1, 3))):
            if depth < 3 and draw(st.integers(0, 2)) == 0:
                inner = f"{key}n{index}"
                drawn(inner, depth + 1)
                members.append(inner)
            else:
                members.append(next(names))
        given = draw(st.sets(st.sampled_from(["on_complete", "on_success", "on_failure"]), min_size=1))
        called = {name: next(names) for name in sorted(given)} if kind == "batch" else {}
        nodes[place] = validated(WorkflowNode, {"key": key, "kind": kind, "members": members, **called})

    drawn(workflow.ROOT, 1)
    return Workflow(nodes=tuple(nodes))


def order(run: Run) -> WorkflowOrder:
    """The audit's statement of what may run."""
    ended: Mapping[bool, list[str]] = {True: [], False: []}
    for name, step in run.state.steps.items():
        if step.phase in {execution.Phase.COMPLETED, execution.Phase.EXHAUSTED}:
            ended[step.phase is execution.Phase.COMPLETED].append(name)
    assert run.plan.workflow is not None
    return WorkflowOrder(run.plan.workflow, {step.name: step for step in run.plan.steps}, ended[True], ended[False])


@st.composite
def jobs(draw: st.DrawFn) -> Plan:
    """Draw the plan of a registered job with callbacks."""
    number = draw(st.integers(1, 6))
    graph = {
        f"s{index}": draw(st.sets(st.sampled_from([f"s{i}" for i in range(index)]))) if index else ()
        for index in range(number)
    }
    kinds = draw(st.sets(st.sampled_from(["on_complete", "on_success", "on_failure"]), min_size=1))
    return planned(**graph, **{f"c{index}": {"callback": kind} for index, kind in enumerate(sorted(kinds))})


@given(st.one_of(workflows().map(plan_of), jobs()), st.data())
@settings(max_examples=examples(100), deadline=None)
def test_any_history_keeps_the_order(plan_: Plan, data: st.DataObject) -> None:
    tree = plan_.workflow
    assert tree is not None
    run = Run(tree, plan_)
    dispatched = set[str]()
    while True:
        state, judge = run.state, order(run)
        tasks = [fact.step for fact in run.facts if isinstance(fact, Dispatched)]
        assert len(tasks) == len(set(tasks)), "a step is dispatched once"
        assert all(map(judge.may_run, set(tasks) - dispatched))
        dispatched = set(tasks)
        if state.is_over:
            break
        assert run.running, "an open workflow has a step at work"
        assert dispatched == {name for name in state.steps if judge.may_run(name)}
        step = data.draw(st.sampled_from(sorted(run.running)))
        (run.succeed if data.draw(st.booleans()) else run.fail)(step)
    assert (run.state.status is Status.COMPLETED) == order(run).has_completed()
    walk = workflow.Walk(tree, {step.name: step for step in run.plan.steps}, run.state.steps)
    assert walk.outcome is (Outcome.COMPLETED if run.state.status is Status.COMPLETED else Outcome.FAILED)
    assert not walk.ready
    end = run.facts[-1]
    assert isinstance(end, Completed | Failed)
    assert set(end.cancelled_steps) == set(run.state.steps) - dispatched


@given(workflows(), st.randoms(use_true_random=False))
@settings(max_examples=examples(50), deadline=None)
def test_order_of_outcomes_does_not_change_the_end(tree: Workflow, random: Any) -> None:  # noqa: ANN401 - random.Random
    fails = {step: random.random() < 0.3 for step in workflow.edges(tree)}
    ends = []
    for _ in range(2):
        run = Run(tree)
        while not run.state.is_over:
            step = random.choice(sorted(run.running))
            (run.fail if fails[step] else run.succeed)(step)
        ran: Sequence[str] = [fact.step for fact in run.facts if isinstance(fact, Dispatched)]
        ends.append((run.state.status, set(ran)))
    assert ends[0] == ends[1]
