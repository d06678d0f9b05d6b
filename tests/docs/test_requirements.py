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
SECTIONS = {
    *(
        "3.1",
        "3.2",
        "3.3",
        "3.4",
        "4.1",
        "4.2",
        "4.3",
        "5.1",
        "5.2",
        "5.3",
        "6.1",
        "6.2",
        "6.3",
        "6.4",
        "7.1",
        "7.2",
        "7.3",
    ),
    *(
        "8.1",
        "8.2",
        "9.1",
        "9.2",
        "9.3",
        "9.4",
        "9.5",
        "9.6",
        "10.1",
        "10.2",
        "10.3",
        "11.1",
        "12.1",
        "12.2",
        "12.3",
        "12.4",
    ),
    *("13.1", "13.2"),
}
"""The sections of the specification with requirements; 1 and 2 introduce them, and 14 and 15 are lists."""
CANONICAL = (
    "AT",
    "EVERY",
    "ON COMPLETION",
    "catch_up",
    "heartbeat",
    "SIGTERM",
    "JOB_CREATED",
    "metrics",
    "RUN AS",
    "KEEP HISTORY",
)
"""Requirements of the canonical specification."""


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


def sections_of(written: str) -> set[str]:
    """Return the sections that a cell stands for: `8` is each of it, and `9.4–9.6` are three."""
    named = set[str]()
    for part in written.split(", "):
        first, _, last = part.partition("–")
        chapter, _, number = first.partition(".")
        upto = int((last or first).partition(".")[2] or 0)
        named |= {name for name in SECTIONS if name == first or (not number and name.startswith(f"{chapter}."))}
        named |= {f"{chapter}.{each}" for each in range(int(number or 1), upto + 1)}
    return named


def test_every_section_has_a_row() -> None:
    cells = [cells_of(row)[0] for row in ROWS]
    assert SECTIONS - set[str]().union(*(sections_of(cell) for cell in cells if cell != "C")) == set()


def test_canonical_requirements_are_answered() -> None:
    assert [word for word in CANONICAL if word not in PAGE.read_text()] == []
