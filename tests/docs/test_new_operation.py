"""The operation of the page "Add a command, an endpoint or an event" works as a command and as an endpoint."""

import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.cli.conftest import World as Program
from tests.http.conftest import World as Api
from tocsin.adapters.http.api import app as application
from tocsin.adapters.sql.history import open_history
from tocsin.cli.command_tree import COMMANDS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "contributing" / "new-operation.md").read_text(encoding="utf-8")
BLOCKS = dict(re.findall(r'^```python title="src/([^"]+)\.py"\n(.*?)^```$', PAGE, re.MULTILINE | re.DOTALL))


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> dict[str, ModuleType]:
    """The modules of the page, imported under their names."""
    made: dict[str, ModuleType] = {}
    for path, code in BLOCKS.items():
        name = path.replace("/", ".")
        made[name] = ModuleType(name)
        monkeypatch.setitem(sys.modules, name, made[name])
        exec(compile(code, f"new-operation.md: {path}", "exec"), made[name].__dict__)  # noqa: S102 - our own page
    return made


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    async with open_history(f"sqlite:///{tmp_path}/history.db") as history:
        yield Api(tmp_path, history)


@pytest.mark.usefixtures("modules")
def test_command_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tocsin.cli.command_tree.COMMANDS", {**COMMANDS, "tags": "jobs.tags:tags"})
    monkeypatch.setenv("TOCSIN_DATA_DIR", str(tmp_path))
    program = Program(tmp_path)
    assert program.call("tags").out.strip() == "no tags"
    jobs = program.jobs("jobs: [{name: a, function: f, tags: [x, y]}, {name: b, function: f, tags: [x]}]")
    assert program.call("jobs", "apply", "-f", jobs).code == 0
    assert program.call("tags", "-o", "json").json == {"x": 2, "y": 1}
    assert [line.split() for line in program.call("tags").out.splitlines()] == [["TAG", "JOBS"], ["x", "2"], ["y", "1"]]


async def test_endpoint_of_the_page_answers(
    api: Api, modules: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    router = modules["tocsin.adapters.http.api.tags"].router
    monkeypatch.setattr(application, "ROUTERS", (*application.ROUTERS, router))
    monkeypatch.setattr(application, "_included", application._included.__wrapped__)  # as in a new process
    api.client = api.copy()
    await api.given(name="a", tags=["x", "y"])
    await api.given(name="b", tags=["x"])
    answer = await api.ask("GET", "/v1/tags")
    assert (answer.status_code, answer.json()) == (200, {"tags": {"x": 2, "y": 1}})


def test_named_modules_exist() -> None:
    named = re.findall(r"`((?:cli|adapters|services|domain|subjects|bootstrap)/[\w./]+)`", PAGE)
    assert len(named) > 10
    assert [path for path in named if not (ROOT / "src" / "tocsin" / path).exists()] == []


def test_named_constants_exist() -> None:
    places = re.findall(r"`([A-Z_]+)` (?:in `|\(`)((?:cli|adapters|subjects)/[\w./]+)`", PAGE)
    assert {name for name, _ in places} == {"COMMANDS", "SERVED", "ROUTERS", "KINDS", "TAILS"}
    for name, path in places:
        assert re.search(rf"^{name}\b", (ROOT / "src" / "tocsin" / path).read_text(), re.MULTILINE)
