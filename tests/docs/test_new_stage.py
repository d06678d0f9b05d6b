"""The stage of the page "Add a stage" passes the page's own tests."""

import inspect
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.stages.world import World
from tocsin.engine.stage import AnyStage
from tocsin.stages import STAGES

PAGE = (Path(__file__).parents[2] / "docs" / "contributing" / "new-stage.md").read_text(encoding="utf-8")
BLOCKS = dict(re.findall(r'^```python title="([^"]+)"\n(.*?)^```$', PAGE, re.MULTILINE | re.DOTALL))
MODULE = "src/tocsin/stages/fallback.py"
TESTS = "tests/stages/test_fallback.py"


def module(name: str, code: str) -> dict[str, Any]:
    """Run a block of the page as a module, and return its names."""
    made = ModuleType(name)
    exec(compile(code, f"new-stage.md: {name}", "exec"), made.__dict__)  # noqa: S102 - our own page
    return made.__dict__


def names_of_tests() -> list[str]:
    return re.findall(r"^async def (test_\w+)", BLOCKS[TESTS], re.MULTILINE)


def declare(code: str, monkeypatch: pytest.MonkeyPatch) -> AnyStage:
    """List the stage of some code beside all others."""
    declared: AnyStage = module("fallback", code)["FALLBACK"]
    monkeypatch.setattr(sys.modules[World.__module__], "STAGES", (*STAGES, declared))
    return declared


def test_page_has_a_stage_and_its_tests() -> None:
    assert list(BLOCKS) == [MODULE, TESTS]
    assert len(names_of_tests()) == 5


@pytest.mark.parametrize("name", names_of_tests())
async def test_page_passes_its_own_test(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = declare(BLOCKS[MODULE], monkeypatch)
    world = World()
    assert stage.name in world.stages
    test = module("test_fallback", BLOCKS[TESTS])[name]
    assert inspect.iscoroutinefunction(test)
    await test(world)


MISTAKES = {
    "sends nothing": ("if not states.is_sent(message_id):", "if False:"),
    "sends twice after a crash": ('f"fallback-{letter.id}"', 'f"fallback-{letter.id}-{now}"'),
    "overrules an operator": ("if not resolved:", "if False:"),
    "serves every job": ("if tag.startswith(TAG)", "if tag"),
    "does not resolve": ("done(Events(ref, tuple(resolved)))", "done()"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
async def test_pages_tests_notice_a_mistake(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right, wrong = MISTAKES[mistake]
    assert BLOCKS[MODULE].count(right) == 1
    declare(BLOCKS[MODULE].replace(right, wrong), monkeypatch)
    tests = module("test_fallback", BLOCKS[TESTS])
    failed = []
    for name in names_of_tests():
        try:
            await tests[name](World())
        except (AssertionError, ValueError):
            failed.append(name)
    assert failed
