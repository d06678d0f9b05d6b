"""The graph of a job's steps: each mistake by its step and its reason, and every cycle found."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.domain.definition import DefinitionProblem, Step
from tocsin.domain.definition.step import cycle, graph_problems


def nodes(**edges: str) -> list[Step]:
    return [Step(name=name, function="f", depends_on=tuple(depends_on.split())) for name, depends_on in edges.items()]


def problems(steps: list[Step]) -> tuple[DefinitionProblem, ...]:
    return tuple(graph_problems(steps))


@pytest.mark.parametrize(
    "steps",
    [
        [],
        nodes(extract=""),
        nodes(extract="", transform="extract", load="transform", cleanup="load"),
        nodes(load="a b", a="extract", b="extract", extract="", notify="load"),
    ],
    ids=["none", "one", "chain", "fan-out, written in any order"],
)
def test_a_graph(steps: list[Step]) -> None:
    assert problems(steps) == ()


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        (nodes(a="b", b="c", c="a"), ("dependency-cycle", "a", "a → b → c → a")),
        (nodes(x="", b="a", a="b x"), ("dependency-cycle", "b", "b → a → b")),
        (nodes(a="a"), ("dependency-cycle", "a", "")),
        (nodes(extract="", load="extrat"), ("unknown-step", "load", "`extract`")),
        (nodes(extract="", load="zzz"), ("unknown-step", "load", "`zzz`")),
        (nodes(a="", b="a a"), ("duplicate-dependency", "b", "`a`")),
    ],
)
def test_mistake_names_the_step(steps: list[Step], expected: tuple[str, str, str]) -> None:
    [problem] = problems(steps)
    code, step, hint = expected
    assert (problem.code, problem.step) == (code, step)
    assert hint in problem.reason


def test_duplicate_names_are_distinct_from_edge_errors() -> None:
    for steps in ([*nodes(a="", b="a"), *nodes(a="")], [*nodes(a=""), *nodes(a="b", b="a")]):
        [problem] = problems(steps)
        assert (problem.code, problem.step) == ("duplicate-name", "a")


def test_all_mistakes_at_once_without_echoes() -> None:
    steps = [*nodes(a="b", b="a", c="c"), *nodes(c="nowhere")]
    assert [(problem.code, problem.step) for problem in problems(steps)] == [
        ("duplicate-name", "c"),
        ("dependency-cycle", "c"),
        ("unknown-step", "c"),
    ]


def test_circle_begins_with_its_first_step() -> None:
    [problem] = problems(nodes(x="", d="c", b="d x", c="b"))
    reason = "the steps depend on each other in a circle: d → c → b → d"
    assert (problem.step, problem.reason) == ("d", reason)


EDGES = st.dictionaries(
    st.sampled_from("abcdefgh"), st.sets(st.sampled_from("abcdefgh"), max_size=3).map(sorted), max_size=8
)


def _is_reachable(edges: dict[str, list[str]], start: str) -> bool:
    """Whether a step is its own ancestor, by plain search."""
    todo, seen = list(edges[start]), set()
    while todo:
        if (name := todo.pop()) == start:
            return True
        if name not in seen:
            seen.add(name)
            todo.extend(edges[name])
    return False


@given(EDGES)
def test_cycle_is_reported_exactly_if_present(edges: dict[str, list[str]]) -> None:
    known = {name: [other for other in others if other in edges] for name, others in edges.items()}
    found = cycle(known)
    assert bool(found) == any(_is_reachable(known, name) for name in known)
    assert all(after in known[before] for before, after in pairwise(found))
    assert not found or found[0] == found[-1]
