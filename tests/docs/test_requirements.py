"""The table of requirements names a test for each row."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "internals" / "scratchbird.md"
HEAD = "| section | requirement | here | test |"
TEST = re.compile(r"`(tests/[\w./-]+\.py)::(test_\w+)`")
ROWS = PAGE.read_text().partition(HEAD)[2].partition("\n\n")[0].strip().splitlines()[1:]
UNTESTED = {"13.1", "13.2"}
"""Sections about speed, which benchmarks measure."""


def cells_of(row: str) -> list[str]:
    return [cell.strip() for cell in row.strip().strip("|").split("|")]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: cells_of(row)[1][:40])
def test_requirement_has_tests_that_exist(row: str) -> None:
    section, _, answer, cell = cells_of(row)
    assert (not cell) == (section in UNTESTED), row
    assert cell or "benchmarks/" in answer, row
    assert TEST.sub("", cell).strip(", ") == "", "a row names tests alone, each by its file and name"
    for path, name in TEST.findall(cell):
        assert re.search(rf"^(async )?def {name}\(", (ROOT / path).read_text(), re.MULTILINE), f"{path}::{name}"


def test_table_was_found() -> None:
    assert len(ROWS) > len(UNTESTED)
    assert {cells_of(row)[0] for row in ROWS} > UNTESTED
