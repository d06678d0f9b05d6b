"""Workflows of the Open Job Spec: ready steps, and the outcome of each node.

A walk visits the tree from its root. It reaches a member only if the members before it allow that, so a nested workflow needs no rule of its own. Nothing is
stored about nodes: their outcomes follow from the phases of the steps.
"""

from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Final

from pydantic import JsonValue

from ..events import PlannedStep, Workflow, WorkflowNode
from .steps import Phase, Step

ROOT: Final = ""
"""The key of the outermost node."""


class Outcome(StrEnum):
    """The outcome of a node or a step."""

    OPEN = "open"
    COMPLETED = "completed"
    FAILED = "failed"


class Walk:
    """One walk through a workflow.

    Attributes:
        outcomes: the outcome of each node and step that was reached.
        ready: the steps that may be dispatched, in the order of the walk.
        outcome: the outcome of the whole.
    """

    def __init__(self, workflow: Workflow, planned: Mapping[str, PlannedStep], steps: Mapping[str, Step]) -> None:
        self._nodes = {node.key: node for node in workflow.nodes}
        self._planned = planned
        self._steps = steps
        self.outcomes: dict[str, Outcome] = {}
        self.ready: list[str] = []
        self.outcome = self._visit(workflow.nodes[0].key)

    def _visit(self, name: str) -> Outcome:
        outcome = self._of_node(self._nodes[name]) if name in self._nodes else self._of_step(name)
        self.outcomes[name] = outcome
        return outcome

    def _of_step(self, name: str) -> Outcome:
        match self._steps[name].phase:
            case Phase.COMPLETED:
                return Outcome.COMPLETED
            case Phase.EXHAUSTED:
                return Outcome.FAILED
            case Phase.WAITING:
                self.ready.append(name)
        return Outcome.OPEN

    def _of_node(self, node: WorkflowNode) -> Outcome:
        match node.kind:
            case "chain":
                return self._of_chain(node)
            case "group":
                return _joint(map(self._visit, node.members))
            case "batch":
                return self._of_batch(node)
            case "dag":
                return _joint(map(self._visit, self._reached(node)))

    def _of_chain(self, node: WorkflowNode) -> Outcome:
        for member in node.members:
            outcome = self._visit(member)
            if outcome is not Outcome.COMPLETED:
                return outcome
        return Outcome.COMPLETED

    def _of_batch(self, node: WorkflowNode) -> Outcome:
        jobs = _joint(map(self._visit, node.members))
        if jobs is Outcome.OPEN:
            return jobs
        outcomes = [self._visit(name) for name in triggered(node, jobs)]
        return _joint([*outcomes, jobs] if node.fails_with_members else outcomes)

    def _reached(self, node: WorkflowNode) -> Iterator[str]:
        """Yield the steps of a DAG whose dependencies completed.

        Before a step that is not reached, there is one that is open or failed.
        """
        for name in node.members:
            if all(self._steps[before].phase is Phase.COMPLETED for before in self._planned[name].depends_on):
                yield name


def _joint(outcomes: Iterable[Outcome]) -> Outcome:
    """Return the outcome of members that run together.

    It is open until all ended, and failed if one failed.
    """
    together = set(outcomes)
    for outcome in (Outcome.OPEN, Outcome.FAILED):
        if outcome in together:
            return outcome
    return Outcome.COMPLETED


def triggered(node: WorkflowNode, jobs: Outcome) -> tuple[str, ...]:
    """Return the callbacks that a batch runs after its members (ojs-workflows §6.5)."""
    conditional = node.on_success if jobs is Outcome.COMPLETED else node.on_failure
    return tuple(name for name in (node.on_complete, conditional) if name is not None)


def callbacks(node: WorkflowNode) -> dict[str, str]:
    """Return the steps of the callbacks of a batch, by `on_complete` and so on."""
    given = {"on_complete": node.on_complete, "on_success": node.on_success, "on_failure": node.on_failure}
    return {kind: step for kind, step in given.items() if step is not None}


def edges(workflow: Workflow) -> dict[str, tuple[str, ...]]:
    """Return the dependencies of each step that the tree implies.

    A step of a chain depends on the steps of the member before it, and a callback on those of all members.
    """
    nodes = {node.key: node for node in workflow.nodes}
    depends_on: dict[str, tuple[str, ...]] = {}

    def connect(name: str, before: tuple[str, ...]) -> tuple[str, ...]:
        """Connect the steps of a node with the steps before it, and return them."""
        if name not in nodes:
            depends_on[name] = before
            return (name,)
        node, steps = nodes[name], list[str]()
        for member in node.members:
            own = connect(member, before)
            steps += own
            before = own if node.kind == "chain" else before
        called = list(callbacks(node).values())
        depends_on.update(dict.fromkeys(called, tuple(steps)))
        return (*steps, *called)

    connect(workflow.nodes[0].key, ())
    return depends_on


def parents(workflow: Workflow, planned: Mapping[str, PlannedStep], step: str) -> tuple[str, ...]:
    """Return the members whose results a step receives, in their order (ojs-workflows §7).

    A step of a chain receives those of all members before it, and a callback those of the members of its batch. The first step of a nested
    workflow receives what its workflow does.
    """
    name = step
    while True:
        node = container(workflow, name)
        if node is None:
            return ()
        if node.kind == "dag":
            return planned[step].depends_on
        if name not in node.members:
            return node.members
        if node.kind == "chain" and name != node.members[0]:
            return node.members[: node.members.index(name)]
        name = node.key


def container(workflow: Workflow, name: str) -> WorkflowNode | None:
    """Return the node that a step or node belongs to.

    None: it is the outermost node.
    """
    return next(
        (node for node in workflow.nodes if name in node.members or name in callbacks(node).values()),
        None,
    )


def result(workflow: Workflow, steps: Mapping[str, Step], name: str) -> JsonValue:
    """Return the result of a step or node; None: it has none.

    That of a chain is the result of its last member. That of a group or batch has the results of its members, by index.
    """
    node = next((node for node in workflow.nodes if node.key == name), None)
    if node is None:
        return steps[name].result
    if node.kind == "chain":
        return result(workflow, steps, node.members[-1])
    return {str(index): result(workflow, steps, member) for index, member in enumerate(node.members)}
