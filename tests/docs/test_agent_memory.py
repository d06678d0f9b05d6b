"""Each row of "A scheduler in a process, requirement by requirement" names tests that exist."""

import ast
import re
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from tocsin.bootstrap import STAGE_NAMES

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = (ROOT / "docs" / "internals" / "agent-memory.md").read_text("utf-8")
ROWS: Final = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in PAGE.splitlines()
    if line.startswith("| ") and not line.startswith("| section ")
]
SECTIONS: Final = {
    "Overview",
    "SchedulerService",
    "Lifecycle",
    "Lifecycle, shutdown",
    "Overlap policies",
    "Jitter",
    "JobRegistry",
    "Shutdown",
    "Observability",
    "Persistence",
}


@cache
def names_in(file: str) -> frozenset[str]:
    """Return the names of the tests of a module."""
    tree = ast.parse((ROOT / file).read_text("utf-8"))
    functions = (node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return frozenset(function.name for function in functions if function.name.startswith("test_"))


def test_every_section_has_rows() -> None:
    assert {section for section, *_ in ROWS} == SECTIONS


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[1][:60])
def test_named_tests_exist(row: list[str]) -> None:
    _, requirement, here, tests = row
    assert requirement
    assert here
    named = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", tests)
    assert named
    assert tests == ", ".join(f"`{file}::{test}`" for file, test in named)
    for file, test in named:
        assert test in names_in(file), f"{file} has no {test}"


def test_counterparts_of_the_built_in_jobs_are_stages() -> None:
    named = re.findall(r"^- `(\w+)`: ", PAGE, re.MULTILINE)
    assert named == ["recorder", "archiver", "recoverer"]
    assert set(named) <= set(STAGE_NAMES)
