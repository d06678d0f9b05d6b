"""The generated reference: each argument is one list entry, however long its description is."""

import importlib.util
import inspect
import re
from pathlib import Path
from types import ModuleType

import pytest

import tocsin.app
import tocsin.client
import tocsin.testing
from tocsin import SyncClient, Tocsin, Worker
from tocsin.testing import Simulation

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_generate", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def described(first: str, *, second: str) -> str:
    """Return both texts.

    They are joined.

    Args:
        first: a text that goes on
            in a second line: with a colon,
            and in a third.
        second: a short text.

    Raises:
        ValueError: a text is
            empty.

    A last paragraph.
    """
    if not first or not second:
        raise ValueError("empty")
    return first + second


def test_description_of_several_lines_is_one_entry(generator: ModuleType) -> None:
    assert list(generator.docstring_lines(described)) == [
        "Return both texts.",
        "",
        "They are joined.",
        "",
        "Parameters:",
        "",
        "- `first`: a text that goes on",
        "  in a second line: with a colon,",
        "  and in a third.",
        "- `second`: a short text.",
        "",
        "Raises:",
        "",
        "- `ValueError`: a text is",
        "  empty.",
        "",
        "A last paragraph.",
    ]


def test_worker_page_lists_exactly_the_parameters() -> None:
    page = (DOCS / "reference" / "worker.md").read_text(encoding="utf-8")
    section = page.partition("### Worker\n")[2].partition("Parameters:\n\n")[2].partition("\n\n")[0]
    parameters = list(inspect.signature(Worker).parameters)
    assert re.findall(r"^- `(\w+)`: \S", section, re.MULTILINE) == parameters
    assert all(line.startswith(("- `", "  ")) for line in section.splitlines())


def test_python_api_names_every_public_class() -> None:
    page = (DOCS / "reference" / "python-api.md").read_text(encoding="utf-8")
    rows = set(re.findall(r"^\| \[?`(\w+)`", page, re.MULTILINE))
    for package in (tocsin, tocsin.app, tocsin.client, tocsin.testing):
        assert {name for name in package.__all__ if inspect.isclass(getattr(package, name))} <= rows
    sections = {section.partition("\n")[0]: section for section in page.split("\n## ")}
    for kind, called in ((Tocsin, "app"), (SyncClient, "client"), (Simulation, "simulation")):
        for name, _ in inspect.getmembers(
            kind, lambda member: inspect.isfunction(member) or isinstance(member, property)
        ):
            assert name.startswith("_") or f"\n### {called}.{name}\n" in sections[kind.__name__]


def test_every_list_entry_of_worker_page_has_text() -> None:
    page = (DOCS / "reference" / "worker.md").read_text(encoding="utf-8")
    entries = [line for line in page.splitlines() if line.startswith("- ")]
    assert entries
    assert [line for line in entries if not re.fullmatch(r"- `\w+`: .+", line)] == []
