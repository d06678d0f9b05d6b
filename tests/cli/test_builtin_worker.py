"""`tocsin worker --builtin`: what it refuses before it connects."""

import sys

import pytest

from tocsin.adapters.extras import ExtraNotInstalled
from tocsin.cli.processes.builtin_worker import builtin_worker, offer
from tocsin.cli.runtime.errors import UsageError
from tocsin.settings import SettingsError
from tocsin.settings.builtin import Builtin, CommandRules, SqlConnection, SqlRules


def test_worker_needs_an_object_or_a_builtin() -> None:
    with pytest.raises(UsageError) as raised:
        builtin_worker([], [], None)
    assert raised.value.code == "worker-required"


def test_unknown_builtin_is_refused() -> None:
    with pytest.raises(UsageError) as raised:
        offer(builtin_worker(["shell"], ["default"], None), ["shell"], Builtin())
    assert raised.value.code == "unknown-builtin"


def test_command_needs_something_allowed() -> None:
    with pytest.raises(SettingsError) as raised:
        offer(builtin_worker(["command"], [], None), ["command"], Builtin())
    assert [(p.field, p.code) for p in raised.value.problems] == [("builtin.command.programs", "required")]


@pytest.mark.parametrize("module", ["sqlalchemy", "psycopg"])
def test_missing_extra_is_named(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "tocsin.worker.builtin.sql", raising=False)
    monkeypatch.delattr("tocsin.worker.builtin.sql", raising=False)
    monkeypatch.setitem(sys.modules, module, None)
    rules = SqlRules(connections={"dwh": SqlConnection(url="postgresql://x/y")})
    with pytest.raises(ExtraNotInstalled) as raised:
        offer(builtin_worker(["sql"], [], None), ["sql"], Builtin(sql=rules))
    assert (raised.value.part, raised.value.extra) == ("tocsin worker --builtin sql", "sql")


def test_missing_client_of_kubernetes_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    with pytest.raises(ExtraNotInstalled) as raised:
        offer(builtin_worker(["container"], ["default"], None), ["container"], Builtin())
    assert (raised.value.part, raised.value.extra) == ("tocsin worker --builtin container", "container")


def test_worker_offers_the_function(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tocsin.cli.processes.builtin_worker.hide_memory", hide_memory := _Calls())
    worker = builtin_worker(["command"], ["reports"], "w-1")
    offer(worker, ["command"], Builtin(command=CommandRules(programs=("/bin/true",))))
    assert (list(worker.handlers), worker.options.queues, worker.options.name) == (
        ["tocsin.command"],
        ("reports",),
        "w-1",
    )
    assert hide_memory.number == 1


@pytest.mark.parametrize("rules", [{"programs": ["bin/x"]}, {"programs": ["/a/../b"]}, {"variables": ["A=B"]}])
def test_wrong_rule_is_refused(rules: dict[str, list[str]]) -> None:
    with pytest.raises(ValueError, match="must be"):
        CommandRules.model_validate(rules)


class _Calls:
    def __init__(self) -> None:
        self.number = 0

    def __call__(self) -> None:
        self.number += 1
