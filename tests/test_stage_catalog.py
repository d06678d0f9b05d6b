"""Everything that names the stages agrees with `tocsin.stages.STAGES`.

`python -m tests.test_stage_catalog` writes the table of the stages into the Markdown files that have its markers.
"""

import ast
import inspect
import re
import sys
import textwrap
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.prose.check import prose_files
from tests.stages.world import World
from tocsin.settings import load
from tocsin.stages import STAGES

ROOT: Final = Path(__file__).parents[1]
COMPOSE: Final = ROOT / "compose"
TABLE: Final = re.compile(r"<!-- stages -->\n.*?<!-- /stages -->", re.DOTALL)
INSTALLED: Final = [stage for stage in STAGES if stage.is_installed(load(COMPOSE / "tocsin.yaml"))]


def services() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((COMPOSE / "compose.yaml").read_text())["services"]
    return found


def markdown() -> Iterator[Path]:
    for path in prose_files():
        if path.suffix == ".md" and TABLE.search(path.read_text()):
            yield path


def with_table(text: str) -> str:
    """Return a Markdown text with the current table between its markers."""
    rows = [f"| `{s.name}` | {s.purpose} | {s.consumes} | {s.decides} |" for s in STAGES]
    table = "\n".join(["| stage | purpose | consumes | decides |", "|---|---|---|---|", *rows])
    return TABLE.sub(lambda _: f"<!-- stages -->\n{table}\n<!-- /stages -->", text)


def test_compose_runs_every_stage_in_order() -> None:
    commands = [service.get("command") or [""] for service in services().values()]
    assert [command[1] for command in commands if command[0] == "run"] == [stage.user for stage in INSTALLED]


def test_compose_runs_a_standby_of_every_leader() -> None:
    for stage in INSTALLED:
        if any(key.endswith("LEASE") or key == stage.name for _, key in stage.access.writes):
            assert services()[stage.user]["deploy"]["replicas"] >= 2, stage.name


def test_stages_with_history_get_the_database() -> None:
    for stage in INSTALLED:
        assert ("DATABASE_URL" in services()[stage.user]["environment"]) is stage.needs_history, stage.name


VALUES: Final = frozenset({"_defaults", "_grace", "_handled", "_key", "_quotas", "_queues", "_teams", "_sampling"})
"""The parts of a stage that decisions may use: values, readings, and counts of this process that a guard checks, but no port."""


def used_by(decide: Callable[..., Any]) -> tuple[set[str], set[str]]:
    """The parts of a stage that a decision uses, and its coroutines, with all functions that it calls by name."""
    names, coroutines, seen, waiting = set[str](), set[str](), set[Any](), [decide]
    owner = getattr(sys.modules[decide.__module__], decide.__qualname__.split(".")[0])
    while waiting:
        function = inspect.unwrap(waiting.pop())
        if function in seen:
            continue
        seen.add(function)
        if inspect.iscoroutinefunction(function):
            coroutines.add(function.__qualname__)
        for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(function)))):
            called = None
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
                called = getattr(owner, node.attr, None)
                names |= set() if inspect.isfunction(called) else {node.attr}
            elif isinstance(node, ast.Name):
                called = function.__globals__.get(node.id)
            if inspect.isfunction(called) and called.__module__.startswith("tocsin."):
                waiting.append(called)
    return names, coroutines


@pytest.mark.parametrize(
    "decide",
    [
        *(each.decide for stage in STAGES for each in stage.subscriptions),
    ],
    ids=lambda decide: decide.__qualname__,
)
def test_decision_waits_for_nothing(decide: Callable[..., Any]) -> None:
    names, coroutines = used_by(decide)
    assert names <= VALUES
    assert coroutines == set()


def test_every_stage_has_a_nats_user() -> None:
    users = re.findall(r"\{ user: ([\w-]+),", (COMPOSE / "nats/accounts.conf").read_text())
    assert users[: len(INSTALLED)] == [stage.user for stage in INSTALLED]


def test_kubernetes_runs_all_stages() -> None:
    documents = yaml.safe_load_all((COMPOSE / "kubernetes/tocsin.yaml").read_text())
    deployments = [document["spec"]["template"] for document in documents if document["kind"] == "Deployment"]
    runs = [
        pod["spec"]["containers"][0]["args"]
        for pod in deployments
        if "run" in pod["spec"]["containers"][0].get("args", [])
    ]
    covered = {name for run in runs for name in ([s.user for s in STAGES] if "--all" in run else run[1:])}
    assert covered == {stage.user for stage in STAGES}


def test_markdown_tables_are_current() -> None:
    files = list(markdown())
    assert ROOT / "docs/internals/architecture.md" in files
    for path in files:
        assert with_table(path.read_text()) == path.read_text(), f"{path}: run python -m tests.test_stage_catalog"


def test_the_import_contract_covers_every_stage() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    [contract] = [contract for contract in contracts if contract["type"] == "independence"]
    assert contract["modules"] == ["tocsin.stages.*"]
    folder = ROOT / "src/tocsin/stages"
    modules = {path.stem for path in folder.iterdir() if path.stem not in {"__init__", "__pycache__"}}
    assert modules == {stage.name for stage in STAGES}


def test_names_and_durables_are_unique() -> None:
    names = [stage.name for stage in STAGES]
    durables = [(s.stream, s.durable) for stage in STAGES for s in stage.subscriptions]
    assert len(set(names)) == len(names)
    assert len(set(durables)) == len(durables)


def test_the_test_world_has_every_reader() -> None:
    assert set(World().stages) == {stage.name for stage in STAGES if stage.subscriptions or stage.deadlines}


if __name__ == "__main__":
    for file in markdown():
        file.write_text(with_table(file.read_text()))
