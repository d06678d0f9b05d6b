"""The examples of "Define jobs in code" run as they are written."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.system.running import running
from tocsin.bootstrap.workers import worker_connection

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "code-first.md").read_text("utf-8")
README = (Path(__file__).parents[2] / "README.md").read_text("utf-8")
BLOCKS = re.findall(r"```python[^\n]*\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, Any]]]:
    """Return the names that each example defines; `billing` is the first."""
    (tmp_path / "billing.py").write_text(BLOCKS[0], "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "billing", raising=False)  # that of another test
    defined = []
    for block in BLOCKS[1:]:
        names: dict[str, Any] = {"__name__": "example"}
        exec(compile(block, "code-first.md", "exec"), names)  # noqa: S102 - our own page
        defined.append(names)
    yield defined
    del sys.modules["billing"]


def test_example_of_the_readme_is_a_graph() -> None:
    [example] = re.findall(r"```python\n# billing.py.*?```", README, re.DOTALL)
    names: dict[str, Any] = {"__name__": "example"}
    exec(compile(example.removeprefix("```python").removesuffix("```"), "README.md", "exec"), names)  # noqa: S102
    assert [step.name for step in names["order_summary"].definition.dag] == ["extract", "extract-2", "load"]


async def test_examples_run(nats_url: str, tmp_path: Path, examples: list[dict[str, Any]]) -> None:
    graphs, callbacks, starting = examples
    app = graphs["app"]
    assert [definition.name for definition in app.definitions] == ["clean-up", "daily-total", "weekly", "monthly"]
    assert [step.callback for step in callbacks["monthly"].definition.dag][-2:] == ["on_complete", "on_failure"]
    assert [step.name for step in graphs["weekly"].definition.dag] == ["germany", "total", "tell"]
    async with running(nats_url, tmp_path) as world:
        app._given_settings = world.settings  # the example takes those of the environment
        await app.apply()
        options = app.worker.options
        async with worker_connection(world.installation, options) as connection, app.worker.running(connection):
            assert await starting["main"]() == 20.0
