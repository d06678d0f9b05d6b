"""Mistakes of a graph that are named once, and not as a circle too."""

from dataclasses import dataclass

from tocsin.domain.definition.dependencies import namesakes, problems


@dataclass(frozen=True)
class Node:
    name: str
    depends_on: tuple[str, ...] = ()


def test_namesakes_make_no_circle() -> None:
    steps = [Node("a"), Node("a", ("b",)), Node("b", ("a",))]
    assert namesakes(steps) == {"a": 2}
    assert tuple((problem.step, problem.reason) for problem in problems(steps)) == ()


def test_a_circle_begins_with_its_first_step() -> None:
    steps = [Node("x"), Node("d", ("c",)), Node("b", ("d", "x")), Node("c", ("b",))]
    assert tuple((problem.step, problem.reason) for problem in problems(steps)) == (
        ("d", "the steps depend on each other in a circle: d → c → b → d"),
    )
