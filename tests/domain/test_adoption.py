"""Adoption of the steps that a failed execution completed."""

from typing import Any

import pytest

from tests.domain.given import ID, admitted, recorded
from tests.domain.test_workflow import BATCH, FAN_OUT, Run, plan_of, planned
from tocsin.domain import execution
from tocsin.domain.events import Advanced, Cancelled, Plan
from tocsin.domain.execution import Execution

EARLIER = "0193a5b0-0000-7000-8000-00000000000e"


def failed(plan: Plan, *completed: str) -> Execution:
    """Return an execution in which the rest of the steps failed, or never ran."""
    run = Run(plan.workflow, plan)  # type: ignore[arg-type]
    for step in completed:
        run.succeed(step, {"of": step})
    while in_flight := [name for name, step in run.state.steps.items() if not step.phase.is_end and step.attempt]:
        run.fail(in_flight[0])
    return run.state


def replayed(plan: Plan, *more: Any) -> Execution:  # noqa: ANN401 - events
    fact = admitted(plan).changed(replay_of=EARLIER, failed_only=True)
    return execution.fold(recorded([fact, *more]))


def adopted(before: Execution, plan: Plan) -> list[str]:
    return [fact.step for fact in execution.adopt(replayed(plan), before) if isinstance(fact, Advanced)]


def test_completed_steps_are_adopted_with_their_results() -> None:
    plan = planned(a="", b="a", c="b", d="")
    [first, second] = execution.adopt(replayed(plan), failed(plan, "a", "b"))
    assert isinstance(first, Advanced)
    assert isinstance(second, Advanced)
    assert (first.step, first.result, first.adopted_from) == ("a", {"of": "a"}, EARLIER)
    assert second.step == "b"
    state = replayed(plan, first, second)
    assert execution.adopt(state, failed(plan, "a", "b")) == []
    assert [step.name for step in execution.ready_steps(state)] == ["c", "d"]


@pytest.mark.parametrize(
    "step",
    [{"function": "g"}, {"input": {"day": 2}}, {"args": [1]}, {"depends_on": ["d"]}],
    ids=["function", "input", "args", "dependencies"],
)
def test_changed_step_and_its_successors_run_again(step: dict[str, Any]) -> None:
    before = failed(planned(d="", a="", b="a", c="b"), "d", "a", "b")
    assert adopted(before, planned(d="", a={"function": "f", **step}, b="a", c="b")) == ["d"]


def test_changed_timeout_and_retry_keep_the_result() -> None:
    before = failed(planned(a="", b="a"), "a")
    assert adopted(before, planned(a={"timeout": "1h", "retry": {"max_attempts": 7}, "queue": "default"}, b="a")) == [
        "a"
    ]


def test_changed_input_of_the_job_adopts_nothing() -> None:
    plan = planned(a="", b="a")
    assert adopted(failed(plan, "a"), plan.changed(input={"day": 2})) == []


def test_nothing_is_adopted_after_a_dispatch() -> None:
    plan = planned(a="", b="a", d="")
    before = failed(plan, "a")
    [task, _] = execution.dispatch(replayed(plan), key=b"k")
    assert execution.adopt(replayed(plan, task), before) == []


def test_archived_execution_cancels_the_replay() -> None:
    [cancelled] = execution.adopt(replayed(planned(a="", b="a")), execution.initial)
    assert isinstance(cancelled, Cancelled)
    assert cancelled.execution_id == ID
    assert "not in the log any more" in str(cancelled.reason)


def test_callbacks_of_a_workflow_run_again() -> None:
    """The callback `x` completed, but it runs after the member that failed."""
    plan = plan_of(BATCH)
    before = failed(plan, "a")
    assert before.steps["x"].phase.is_end
    assert adopted(before, plan) == ["a"]


def test_completed_steps_of_a_workflow_are_adopted() -> None:
    plan = plan_of(FAN_OUT)
    before = failed(plan, "a", "b")
    facts = execution.adopt(replayed(plan), before)
    assert [fact.step for fact in facts if isinstance(fact, Advanced)] == ["a", "b"]
    assert [step.name for step in execution.ready_steps(replayed(plan, *facts))] == ["c"]


def test_many_steps_are_adopted_some_at_a_time() -> None:
    names = [f"s{number}" for number in range(70)]
    plan = planned(**dict.fromkeys(names, ""), z={"depends_on": ["s0"]})
    before = failed(plan, *names)
    state, sizes = replayed(plan), list[int]()
    facts: list[Any] = []
    while new := execution.adopt(state, before):
        sizes.append(len(new))
        facts += new
        state = replayed(plan, *facts)
    assert sizes == [64, 6]
    assert [step.name for step in execution.ready_steps(state)] == ["z"]
