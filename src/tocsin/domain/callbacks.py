"""The tree by which the steps of a job with callbacks run.

The callbacks are those of a batch, whose only member is the graph of the other steps.
"""

from collections.abc import Sequence
from typing import Final

from .definition import Step
from .events import Workflow, WorkflowNode
from .execution.workflow import ROOT

_STEPS: Final = "@steps"
"""The key of the node of the other steps; no step can have this name."""


def workflow_of(steps: Sequence[Step]) -> Workflow | None:
    """Return the tree by which a job's steps run; None: it has no callbacks."""
    called = {step.callback: step.name for step in steps if step.callback is not None}
    if not called:
        return None
    root = WorkflowNode(
        key=ROOT,
        kind="batch",
        members=(_STEPS,),
        on_complete=called.get("on_complete"),
        on_success=called.get("on_success"),
        on_failure=called.get("on_failure"),
        fails_with_members=True,
    )
    members = tuple(step.name for step in steps if step.callback is None)
    return Workflow(nodes=(root, WorkflowNode(key=_STEPS, kind="dag", members=members)))


def dependencies_of(step: Step, steps: Sequence[Step]) -> tuple[str, ...]:
    """Return the steps before a step: before a callback, all that are none."""
    if step.callback is None:
        return tuple(step.depends_on)
    return tuple(other.name for other in steps if other.callback is None)
