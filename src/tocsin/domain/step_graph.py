"""The graph of a job's steps and its problems (hip-62, Job Dependency Graphs)."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches
from graphlib import CycleError, TopologicalSorter
from typing import NamedTuple, Protocol


class Node(Protocol):
    """A step, as far as the graph is concerned."""

    @property
    def name(self) -> str:
        """Unique within the job."""
        ...

    @property
    def depends_on(self) -> Sequence[str]:
        """The names of the steps that must complete first."""
        ...


class GraphProblem(NamedTuple):
    """One problem of a graph: the step, the reason, and a stable code."""

    step: str
    reason: str
    code: str


def problems(steps: Sequence[Node]) -> tuple[GraphProblem, ...]:
    """Return the problems of the edges.

    A cycle is reported only if every edge leads to exactly one existing step; otherwise it would repeat the other
    problems.
    """
    names = Counter(step.name for step in steps)
    edge_problems = [problem for step in steps for problem in _edge_problems(step, names)]
    if (
        not edge_problems
        and len(names) == len(steps)
        and (loop := cycle({step.name: step.depends_on for step in steps}))
    ):
        reason = f"the steps depend on each other in a circle: {' → '.join(loop)}"
        edge_problems.append(GraphProblem(loop[0], reason, "dependency-cycle"))
    return tuple(edge_problems)


def namesakes(steps: Sequence[Node]) -> dict[str, int]:
    """Return the names that several steps share, with the number of steps."""
    return {name: count for name, count in Counter(step.name for step in steps).items() if count > 1}


def cycle(edges: Mapping[str, Iterable[str]]) -> tuple[str, ...]:
    """Return one cycle as a closed walk along "depends on", or nothing.

    The walk begins at the step of the cycle that is written first.
    """
    try:
        TopologicalSorter({name: tuple(edges[name]) for name in edges}).prepare()
    except CycleError as error:
        walk: list[str] = error.args[1][:0:-1]  # graphlib lists dependencies first
        place = {name: index for index, name in enumerate(edges)}
        start = min(range(len(walk)), key=lambda index: place[walk[index]])
        return (*walk[start:], *walk[:start], walk[start])
    return ()


def _edge_problems(step: Node, names: Collection[str]) -> Iterable[GraphProblem]:
    for dependency, count in Counter(step.depends_on).items():
        if count > 1:
            yield GraphProblem(step.name, f"`{dependency}` is named {count} times", "duplicate-dependency")
        if dependency == step.name:
            yield GraphProblem(step.name, "a step cannot depend on itself", "dependency-cycle")
        elif dependency not in names:
            close = get_close_matches(dependency, names, n=1)
            hint = f", did you mean `{close[0]}`?" if close else ""
            yield GraphProblem(step.name, f"there is no step `{dependency}`{hint}", "unknown-step")
