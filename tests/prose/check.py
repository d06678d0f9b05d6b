"""Applies the rules to the files of the repository."""

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.prose import rules
from tests.prose.sources import passages

ROOT: Final = Path(__file__).parents[2]
SUFFIXES: Final = frozenset({".py", ".md", ".yaml", ".yml", ".toml", ".sh"})
_LEFT_OUT: Final = (
    "tests/ojs/suites/",  # the public suite's own words
    "tests/prose/rules.py",  # names the words that it bans
)


def prose_files() -> Iterator[Path]:
    """Yield the files that hold prose: those that git tracks, or all where there is no git."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],  # noqa: S607 - the user's git
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    names = listed.stdout.splitlines() if listed.returncode == 0 else [str(p.relative_to(ROOT)) for p in _all()]
    for name in sorted(names):
        path = ROOT / name
        if path.suffix in SUFFIXES and not name.startswith(_LEFT_OUT) and path.is_file():
            yield path


def findings(path: Path) -> Iterator[str]:
    """Yield a line for each finding: file, line, and what to write instead."""
    name = path.relative_to(ROOT)
    for passage in passages(path):
        problems = list(rules.wording(passage.text)) if passage.kind != "test name" else []
        if passage.kind == "docstring":
            most = rules.MAX_TEST_SUMMARY_WORDS if "tests" in name.parts else rules.MAX_SUMMARY_WORDS
            problems += rules.summary(passage.text, most=most)
        elif passage.kind == "test name":
            problems += rules.test_name(passage.text)
        for problem in problems:
            yield f"{name}:{passage.line}: {problem}"


def _all() -> Iterator[Path]:
    for folder in ("src", "tests", "docs", "benchmarks", "examples", "schemas", "compose"):
        yield from (ROOT / folder).rglob("*")
    yield from ROOT.glob("*.md")
