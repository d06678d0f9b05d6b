"""The graph of a job's steps (hip-62, Job Dependency Graphs): what is wrong with it, and in which order it can run."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches
from graphlib import CycleError, TopologicalSorter
from typing import Protocol


class Node(Protocol):
    """What this module needs to know of a step."""

    @property
    def name(self) -> str:
        """Unique within the job."""
        ...

    @property
    def depends_on(self) -> Sequence[str]:
        """The names of the steps that must have completed before this one."""
        ...


def problems(steps: Sequence[Node]) -> tuple[tuple[str, str], ...]:
    """What is wrong with the edges of a graph without cycles: pairs of a step's name and the reason, none if all is well.

    A cycle is reported only where every edge leads to a step that exists once: before that, it would be an echo of the
    other mistakes.
    """
    names = Counter(step.name for step in steps)
    found = [problem for step in steps for problem in _edge_problems(step, names)]
    if not found and len(names) == len(steps) and (loop := cycle({step.name: step.depends_on for step in steps})):
        found.append((loop[0], f"the steps depend on each other in a circle: {' → '.join(loop)}"))
    return tuple(found)


def namesakes(steps: Sequence[Node]) -> dict[str, int]:
    """The names that several steps have, and how many do."""
    return {name: count for name, count in Counter(step.name for step in steps).items() if count > 1}


def cycle(edges: Mapping[str, Iterable[str]]) -> tuple[str, ...]:
    """One cycle as a closed walk along "depends on", from its first step in the order written; empty if there is none."""
    try:
        TopologicalSorter({name: tuple(edges[name]) for name in edges}).prepare()
    except CycleError as error:
        walk: list[str] = error.args[1][
            :0:-1
        ]  # graphlib walks from a dependency to its dependent, first and last equal
        place = {name: index for index, name in enumerate(edges)}
        start = min(range(len(walk)), key=lambda index: place[walk[index]])
        return (*walk[start:], *walk[:start], walk[start])
    return ()


def _edge_problems(step: Node, names: Collection[str]) -> Iterable[tuple[str, str]]:
    for dependency, count in Counter(step.depends_on).items():
        if count > 1:
            yield step.name, f"`{dependency}` is named {count} times"
        if dependency == step.name:
            yield step.name, "a step cannot depend on itself"
        elif dependency not in names:
            close = get_close_matches(dependency, names, n=1)
            hint = f", did you mean `{close[0]}`?" if close else ""
            yield step.name, f"there is no step `{dependency}`{hint}"
