"""The tree of a workflow, whose leaves are the steps of a plan.

Workflows of the Open Job Spec have one, and jobs with callbacks.
"""

from typing import Literal, TypeAlias

from .message import Input, Message

WorkflowKind: TypeAlias = Literal["chain", "group", "batch", "dag"]
"""How the members of a node run: one after another, together, together with callbacks, or by their dependencies."""


class WorkflowNode(Message):
    """A chain, group, batch or DAG of a workflow."""

    key: str
    """The name by which another node names it; that of the outermost node is empty."""
    kind: WorkflowKind
    """How its members run."""
    members: tuple[str, ...]
    """The names of its steps and the keys of its nodes, in their order."""
    on_complete: str | None = None
    """The step of a batch that runs after all members ended; absent: none."""
    on_success: str | None = None
    """The step of a batch that runs after all members completed; absent: none."""
    on_failure: str | None = None
    """The step of a batch that runs after all members ended, if one failed; absent: none."""
    fails_with_members: bool = False
    """True: the batch fails if a member failed, also if its callbacks completed."""
    name: str | None = None
    """The name that the client gave; absent: none."""
    id: str | None = None
    """The id that the client gave to a nested node; absent: none."""


class Workflow(Message):
    """The order in which the steps of an execution run.

    It decides when a step is ready. The dependencies of the steps show the graph, and say which results a step receives.
    """

    nodes: tuple[WorkflowNode, ...]
    """The nodes; the first is the outermost."""
    names_steps: bool = False
    """True: the client named each step with its dependencies (ojs-http-binding §14), and reads the workflow in this form."""


class StepMeta(Message):
    """Metadata that only the tasks of one step carry."""

    step: str
    meta: Input
    """The metadata."""
