"""The order of the steps of a workflow (I6), judged from each step upwards.

The domain walks down from the root; both must agree.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from ...domain.events import PlannedStep, Workflow, WorkflowNode


@dataclass(frozen=True, slots=True)
class WorkflowOrder:
    """The steps of a workflow that ended, and what that allows."""

    workflow: Workflow
    steps: Mapping[str, PlannedStep]
    completed: Collection[str]
    exhausted: Collection[str]

    def may_run(self, step: str) -> bool:
        """Return whether every node above a step lets it run."""
        name: str | None = step
        while name is not None:
            above = next((node for node in self.workflow.nodes if name in _below(node)), None)
            if above is not None and not self._lets_run(above, name):
                return False
            name = None if above is None else above.key
        return True

    def has_completed(self) -> bool:
        """Return whether the workflow as a whole completed."""
        return self._has_completed(self.workflow.nodes[0].key)

    def _lets_run(self, node: WorkflowNode, name: str) -> bool:
        if name not in node.members:
            has_failed = any(map(self._has_failed, node.members))
            is_over = all(self._has_failed(member) or self._has_completed(member) for member in node.members)
            return is_over and not (has_failed and name == node.on_success) and (has_failed or name != node.on_failure)
        if node.kind == "chain":
            return all(map(self._has_completed, node.members[: node.members.index(name)]))
        return node.kind != "dag" or set(self.steps[name].depends_on) <= set(self.completed)

    def _has_completed(self, name: str) -> bool:
        node = self._node(name)
        if node is None:
            return name in self.completed
        if node.kind != "batch":
            return all(map(self._has_completed, node.members))
        is_over = all(self._has_failed(member) or self._has_completed(member) for member in node.members)
        if node.fails_with_members and any(map(self._has_failed, node.members)):
            return False
        return is_over and all(map(self._has_completed, self._called(node)))

    def _has_failed(self, name: str) -> bool:
        node = self._node(name)
        if node is None:
            return name in self.exhausted
        if node.kind == "chain":
            return any(map(self._has_failed, node.members))
        if node.kind == "dag":
            return self._has_failed_graph(node)
        is_over = all(self._has_failed(member) or self._has_completed(member) for member in node.members)
        if node.kind != "batch":
            return is_over and any(map(self._has_failed, node.members))
        called = self._called(node)
        are_over = all(self._has_failed(step) or self._has_completed(step) for step in called)
        counted = (*called, *node.members) if node.fails_with_members else called
        return is_over and are_over and any(map(self._has_failed, counted))

    def _has_failed_graph(self, node: WorkflowNode) -> bool:
        """Return whether a step failed, and no other can go on."""
        never = set(self.exhausted) & set(node.members)
        while more := {name for name in node.members if name not in never and never & set(self.steps[name].depends_on)}:
            never |= more
        return bool(never) and never | set(self.completed) >= set(node.members)

    def _called(self, node: WorkflowNode) -> list[str]:
        """Return the callbacks that are due once all members are over."""
        due = node.on_failure if any(map(self._has_failed, node.members)) else node.on_success
        return [step for step in (node.on_complete, due) if step is not None]

    def _node(self, name: str) -> WorkflowNode | None:
        return next((node for node in self.workflow.nodes if node.key == name), None)


def _below(node: WorkflowNode) -> tuple[str | None, ...]:
    return (*node.members, node.on_complete, node.on_success, node.on_failure)
