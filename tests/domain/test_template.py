"""Templates: the work for hostile texts, and numbers that JSON does not have."""

from unittest.mock import patch

import pytest
from jinja2 import nodes
from pydantic import JsonValue

from tocsin.domain.template import TemplateError, check, render, render_value

VALUES: dict[str, JsonValue] = {"input": {"x": "1e999", "y": {"x": 1}}}


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("{{ input.x" + " | trim" * 99 + " }}", nodes.Filter),
        ("{{ input" + ".x" * 120 + " }}", nodes.Getattr),
        ("{{ " + " ~ ".join(["input" + ".x" * 40] * 20) + " }}", nodes.Getattr),
        ("{{ " + "not " * 120 + "input.x }}", nodes.Not),
        ("{{ " + " and ".join(["input.x"] * 120) + " }}", nodes.And),
    ],
)
def test_work_of_a_check_follows_the_length(text: str, kind: type[nodes.Expr]) -> None:
    compute, calls = kind.as_const, 0

    def counted(node: nodes.Expr, context: nodes.EvalContext | None = None) -> object:
        nonlocal calls
        calls += 1
        return compute(node, context)

    with patch.object(kind, "as_const", counted):
        check(text)
    assert calls <= len(text)


@pytest.mark.parametrize("expression", ["'1e999' | float", "input.x | float", "'nan' | float", "'1e999' | float | int"])
def test_number_outside_of_json_is_an_error(expression: str) -> None:
    for text in (f"{{{{ {expression} }}}}", f"day {{{{ {expression} }}}}"):
        check(text)
        with pytest.raises(TemplateError, match="cannot be rendered"):
            render(text, VALUES, limit=1_000)
        with pytest.raises(TemplateError, match="cannot be rendered"):
            render_value(text, VALUES, limit=1_000)


def test_finite_numbers_are_written_as_json() -> None:
    assert render_value("{{ '1.5' | float }}", VALUES, limit=1_000) == 1.5
    assert render("{{ input.y.x | float }} {{ '7' | int }}", VALUES, limit=1_000) == "1.0 7"
