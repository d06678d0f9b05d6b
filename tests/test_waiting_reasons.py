"""Tables over the reasons for which executions and tasks wait: none lacks a reason."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import get_args

import pytest

import tocsin
from tocsin.adapters.http.api.overview import Waits
from tocsin.domain.execution import WaitsFor
from tocsin.domain.hold_up_time import HoldUpCause
from tocsin.services.hold_ups import HoldUpKind

SOURCE = Path(tocsin.__file__).parent
REASONS = {"waits": get_args(WaitsFor), "causes": get_args(HoldUpCause), "kinds": get_args(HoldUpKind)}


@cache
def tables() -> tuple[tuple[str, set[str]], ...]:
    """Return the keys of each literal table of the program and of the console, with its place."""
    return tuple(_tables())


def _tables() -> Iterator[tuple[str, set[str]]]:
    for file in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Dict) and all(isinstance(key, ast.Constant) for key in node.keys):
                yield f"{file}:{node.lineno}", {str(key.value) for key in node.keys if isinstance(key, ast.Constant)}
    for file in sorted(SOURCE.rglob("static/**/*.js")):
        for body in re.findall(r"^(?:export )?const \w+ = \{(.*?)^\}", file.read_text(), re.MULTILINE | re.DOTALL):
            yield str(file), set(re.findall(r'^  "?(\w+)"?:', body, re.MULTILINE))


@pytest.mark.parametrize(("reasons", "number"), [("waits", 2), ("causes", 1), ("kinds", 0)])
def test_each_table_has_every_reason(reasons: str, number: int) -> None:
    every = {*REASONS[reasons]}
    found = {place: keys for place, keys in tables() if len(keys) > 1 and keys <= every}
    assert {place: every - keys for place, keys in found.items() if keys != every} == {}
    assert len(found) == number


def test_overview_counts_every_reason() -> None:
    assert {*Waits.model_fields} - {"count", "examined"} == {*get_args(WaitsFor)}
