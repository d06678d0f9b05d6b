"""The bound on the results that a job of a workflow receives."""

from tests.domain.test_workflow import Run
from tocsin.adapters.http.ojs import workflows
from tocsin.domain.events import Workflow, WorkflowNode
from tocsin.domain.execution import MAX_UPSTREAM_BYTES

STEPS = tuple(f"s{number}" for number in range(12))
LARGE = "x" * 60_000


def test_oldest_results_beyond_the_limit_are_left_out() -> None:
    run = Run(Workflow(nodes=(WorkflowNode(key="", kind="chain", members=STEPS),)))
    for step in STEPS[:-1]:
        run.succeed(step, LARGE)
    fields = workflows.parent_results(run.state, STEPS[-1])
    kept = MAX_UPSTREAM_BYTES // len(LARGE)
    assert fields["parent_results"] == [None] * (11 - kept) + [LARGE] * kept
    assert fields["parent_results_left_out"] == list(range(11 - kept))


def test_first_job_receives_no_results() -> None:
    run = Run(Workflow(nodes=(WorkflowNode(key="", kind="group", members=("a",)),)))
    assert workflows.parent_results(run.state, "a") == {"parent_results": []}
