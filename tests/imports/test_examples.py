"""The examples of the how-to pages are what the command writes."""

import ast
import re
from pathlib import Path

import pytest

from tests.imports.given import NOW, registrable
from tocsin.adapters.imports import FINDING_CODES, LOSSES, Kind, findings, import_files
from tocsin.adapters.imports.findings import NOTES

DOCS = Path(__file__).parents[2] / "docs" / "how-to"
PAGES: list[tuple[str, Kind]] = [
    ("cron", "crontab"),
    ("kubernetes", "kubernetes"),
    ("celery", "celery"),
    ("airflow", "airflow"),
]


@pytest.mark.parametrize(("page", "kind"), PAGES)
def test_example_is_what_the_command_writes(
    page: str, kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (DOCS / f"migrate-from-{page}.md").read_text("utf-8")
    (name, source), (_, expected) = re.findall(r'^```\w+ title="([\w.]+)"\n(.*?)^```$', text, re.MULTILINE | re.DOTALL)
    monkeypatch.chdir(tmp_path)
    Path(name).write_text(source, "utf-8")
    written = import_files(kind, [name], now=NOW)
    assert written.text == expected
    assert registrable(written, tmp_path)


@pytest.mark.parametrize("page", [page for page, _ in PAGES])
def test_page_names_existing_codes(page: str) -> None:
    text = (DOCS / f"migrate-from-{page}.md").read_text("utf-8")
    rows = [row.split("|")[2] for row in text.splitlines() if row.startswith("|") and row.count("|") == 4]
    named = {code for row in rows for code in re.findall(r"`([a-z-]+)`", row) if "-" in code}
    assert named
    assert named <= FINDING_CODES.keys()


def test_every_code_is_reported_and_documented() -> None:
    literals: set[object] = set()
    for path in Path(findings.__file__).parent.glob("*.py"):
        if path.name != "findings.py":
            literals |= {node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant)}
    assert FINDING_CODES.keys() - literals == set()
    assert NOTES.keys() & LOSSES.keys() == set()
