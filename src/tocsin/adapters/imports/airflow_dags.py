"""DAGs of Airflow: tasks, groups, and the tasks before each task."""

from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from .python_syntax import Call

_DEEPEST: Final = 1_000


@dataclass(eq=False, slots=True)
class Group:
    """A task group."""

    name: str
    parent: "Group | None"

    @property
    def path(self) -> tuple["Group", ...]:
        """The group and those around it, the outermost first."""
        return (*(self.parent.path if self.parent else ()), self)


@dataclass(eq=False, slots=True)
class Task:
    """A task of a DAG.

    Attributes:
        call: the call of its operator, or of its function.
        line: the line.
        group: the group around it.
        function: the decorated function, of a task of the TaskFlow API.
        settings: the arguments of the decorator and of `override`.
        is_mapped: whether the number of its copies is computed at run time.
    """

    call: Call
    line: int
    group: Group | None = None
    function: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    is_mapped: bool = False
    has_upstream_values: bool = False
    parameters: tuple[str, ...] = ()
    """The names of the function's positional parameters."""


Node: TypeAlias = Task | Group


@dataclass(eq=False, slots=True)
class Dag:
    """A DAG of the file, with its tasks and the links between them."""

    call: Call | None
    """The call that makes it; None: a decorator without arguments."""
    line: int
    name: str | None = None
    """The name of the function that `@dag` decorates."""
    tasks: list[Task] = field(default_factory=list)
    links: list[tuple[Node, Node]] = field(default_factory=list)
    skipped: list[tuple[int, str]] = field(default_factory=list)
    """Lines with tasks or links that are computed at run time."""
    changes: list[tuple[int, str]] = field(default_factory=list)
    """Lines that set an attribute of the DAG or of a task, and its name."""


def task_links(dag: Dag) -> dict[Task, list[Task]]:
    """Return the tasks before each task; a group stands for its first or last tasks."""
    before: dict[Task, dict[Task, None]] = {task: {} for task in dag.tasks}
    after: dict[Task, dict[Task, None]] = {task: {} for task in dag.tasks}
    ends: dict[tuple[Node, bool], list[Task]] = {}

    def members(node: Node, *, are_last: bool) -> list[Task]:
        if isinstance(node, Task):
            return [node]
        if (node, are_last) not in ends:
            inner = after if are_last else before
            inside = {task for task in dag.tasks if task.group and node in task.group.path}
            ends[node, are_last] = [task for task in dag.tasks if task in inside and inside.isdisjoint(inner[task])]
        return ends[node, are_last]

    # Links inside a group come before those of the group, whose first and last tasks they determine.
    for first, second in sorted(dag.links, key=lambda link: min(map(_depth, link)), reverse=True):
        for one in members(first, are_last=True):
            for other in members(second, are_last=False):
                if one in before and other in before and one is not other:
                    before[other][one] = None
                    after[one][other] = None
    return {task: [*earlier] for task, earlier in before.items()}


def _depth(node: Node) -> int:
    return len(node.path) if isinstance(node, Group) else _DEEPEST
