"""The table of the Open Job Spec's requirements is complete, and its tests exist."""

import re
from pathlib import Path
from typing import Final

import pytest

from tests.ojs.runner import cases

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = (ROOT / "docs" / "internals" / "open-job-spec.md").read_text()
NUMBERED: Final = {"PRI": 6, "PRG": 8, "GS": 5, "ERR": 15, "DT": 7, "CE": 17, "BLK": 5, "RL": 6, "ADM": 8}
"""The required capabilities that the texts number from 1: ojs-priority, ojs-progress and so on."""
HEADINGS: Final = (
    *(
        "HTTP binding",
        "Unique jobs",
        "Workflows",
        "Several jobs, statistics and rate limits",
        "Priorities",
        "Progress",
        "Results",
    ),
    *(
        "Admin API",
        "Graceful shutdown",
        "Errors",
        "Events",
        "CloudEvents",
        "Distributed tracing",
        "gRPC binding",
        "Conformance",
    ),
)
_NUMBER: Final = re.compile(r"\b([A-Z]{2,3})-(\d{3})(?: to [A-Z]{2,3}-(\d{3}))?")


def rows() -> list[list[str]]:
    """The cells of each row of a table of requirements."""
    lines = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith("| SDK")]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return [row for row in cells if len(row) == 4 and row[-1] != "test"]


@pytest.mark.parametrize("heading", HEADINGS)
def test_each_text_has_its_table(heading: str) -> None:
    assert f"\n## {heading}\n" in PAGE


@pytest.mark.parametrize(("prefix", "number"), NUMBERED.items())
def test_each_numbered_requirement_has_a_row(prefix: str, number: int) -> None:
    named: set[int] = set()
    for row in rows():
        for kind, first, last in _NUMBER.findall(" ".join(row[:2])):
            if kind == prefix:
                named |= set(range(int(first), int(last or first) + 1))
    assert set(range(1, number + 1)) <= named


def test_requirement_without_a_test_says_why() -> None:
    silent = [row for row in rows() if not row[3].strip("| ") and not row[2]]
    assert silent == []
    claimed = [row for row in rows() if row[2] == "as specified" and not row[3].strip("| ")]
    assert claimed == []


def test_named_tests_exist() -> None:
    section = re.compile(r"`?(tests/[\w/]+\.py)(?:::(\w+))?")
    found = section.findall(PAGE)
    assert len(found) > 100
    for file, name in found:
        source = (ROOT / file).read_text()
        assert not name or f"def {name}(" in source, (file, name)
    for letter, name in re.findall(r"\b([A-Z])`::(\w+)`", PAGE):
        files = re.findall(rf"`{letter}` is (?:\n)?`(tests/[\w/]+\.py)`", PAGE)
        assert any(f"def {name}(" in (ROOT / file).read_text() for file in files), (letter, name)


def test_named_cases_are_in_the_suite() -> None:
    known = {case.id for case in cases()}
    for name in re.findall(r"\bL\d-[A-Z]+-\d{3}\b", PAGE):
        is_of_text = name in {"L0-MW-001", "L0-MW-002", "L0-EVT-002", "L1-HB-002", "L4-RATE-001"}
        assert is_of_text or name in known, name
