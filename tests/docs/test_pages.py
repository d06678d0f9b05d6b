"""The documentation names only files, commands and pages that exist."""

import io
import re
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from typer.main import get_command

from tocsin.adapters.files import load
from tocsin.bootstrap import STAGE_NAMES
from tocsin.bootstrap.nats_roles import permissions
from tocsin.cli import app
from tocsin.cli.processes.commands import select_stages
from tocsin.settings import Settings

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
MAX_DECISION_WORDS = 250
WRITTEN = [page for page in PAGES if page.parent.name != "reference"]


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: str(page.relative_to(ROOT)))
def test_named_files_exist(page: Path) -> None:
    named = re.findall(r"`((?:tests|src|schemas|compose|examples|benchmarks)/[\w./-]+)`", page.read_text())
    assert [path for path in named if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_named_tests_exist(page: Path) -> None:
    named = re.findall(r"`(tests/[\w./-]+\.py)::(\w+)`", page.read_text())
    assert [name for path, name in named if f"def {name}(" not in (ROOT / path).read_text()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_pages(page: Path) -> None:
    links = [link for link in re.findall(r"\]\(([^)#]*)[^)]*\)", page.read_text()) if link and "://" not in link]
    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: str(page.relative_to(ROOT)))
def test_named_commands_exist(page: Path) -> None:
    root = get_command(app)
    context = typer.Context(root, info_name="tocsin")
    text = page.read_text()
    if page.name == "new-operation.md":
        text = text.replace("`tocsin tags`", "")  # the command that this page adds
    for line in re.findall(r"(?:`|^|\$ |tocsin )tocsin ([a-z][a-z -]*)", text, re.MULTILINE):
        group, words = root, line.split()
        while words and hasattr(group, "get_command"):
            word = words.pop(0)
            found = group.get_command(context, word)
            assert found is not None, f"tocsin {line}"
            group = found


def test_navigation_names_every_page() -> None:
    def leaves(entry: Any) -> list[str]:  # noqa: ANN401 - YAML
        if isinstance(entry, str):
            return [entry]
        parts = entry.values() if isinstance(entry, dict) else entry
        return [leaf for part in parts for leaf in leaves(part)]

    navigation = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    assert sorted(leaves(navigation)) == sorted(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md"))


def test_decision_has_a_status_and_one_page() -> None:
    pages = {page.name: page.read_text() for page in sorted((DOCS / "internals" / "decisions").glob("[0-9]*.md"))}
    numbers = [int(name[:3]) for name in pages]
    rows = []
    for number, (name, text) in zip(numbers, pages.items(), strict=True):
        match = re.match(rf"# {number}\. (.+)\n\nStatus: (accepted|superseded by (\d+))\.", text)
        assert match, name
        assert match[3] is None or int(match[3]) in numbers, name
        assert len(text.split()) <= MAX_DECISION_WORDS, name
        rows.append(f"| {number} | [{match[1]}]({name}) | {match[2]} |")
    index = (DOCS / "internals" / "decisions" / "index.md").read_text().splitlines()
    assert [row for row in index if re.match(r"\| \d", row)] == rows


def test_architecture_lists_every_stage() -> None:
    page = (DOCS / "internals" / "architecture.md").read_text()
    assert (
        tuple(re.findall(r"^\| `(\w+)`(?: \(one copy leads\))? \| .* \| .* \|$", page, re.MULTILINE))[
            : len(STAGE_NAMES)
        ]
        == STAGE_NAMES
    )
    assert select_stages([], STAGE_NAMES, every=True) == STAGE_NAMES


def test_readme_has_two_commands_that_need_only_python() -> None:
    section = (ROOT / "README.md").read_text().split("\n## Two commands\n")[1].split("\n## ")[0]
    blocks = re.findall(r"^```sh\n(?:#[^\n]*\n)*(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        assert block.startswith("python3.11 -m venv .venv && .venv/bin/pip install ")


@pytest.mark.parametrize("page", ["settings", "jobs", "events", "http"])
def test_reference_explains_every_row(page: str) -> None:
    lines = (DOCS / "reference" / f"{page}.md").read_text().splitlines()
    rows = [line for line in lines if line.startswith("| `")]
    assert rows
    assert [row for row in rows if row.endswith("|  |")] == []


def test_every_user_of_nats_is_explained() -> None:
    page = (DOCS / "how-to" / "permissions.md").read_text()
    queues = {"a": {"transport": "mq"}, "b": {"transport": "matched"}}
    users = permissions(
        Settings.model_validate(
            {
                "queues": queues,
                "notary": {"key": "notary.pem"},
                "notifications": {"channels": {"a": {"type": "nats"}}},
                "screener": {"enabled": True},
            }
        )
    )
    of_stages = {name.replace("_", "-") for name in STAGE_NAMES}
    assert [user for user in users.keys() - of_stages if f"`{user}`" not in page] == []
    assert of_stages <= users.keys()


JOB_FILES = [
    (page, block)
    for page in WRITTEN
    for block in re.findall(r"^```yaml[^\n]*\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    if re.search(r"^jobs:", block, re.MULTILINE)
]


@pytest.mark.parametrize(("page", "block"), JOB_FILES, ids=lambda it: it.name if isinstance(it, Path) else "")
def test_job_files_are_accepted(page: Path, block: str) -> None:
    assert load("-", stdin=io.StringIO(block)), page.name
