"""The examples of the page about testing."""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from tocsin.testing import Simulation

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "testing.md").read_text("utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
NAMES = re.findall(r"async def (test_\w+)", "".join(BLOCKS))


@pytest.mark.parametrize("name", NAMES)
async def test_example_holds(name: str) -> None:
    examples: dict[str, Any] = {"__name__": "examples"}
    exec("\n".join(BLOCKS), examples)  # noqa: S102 - our own page
    await examples[name]()


async def test_example_of_the_fixture_holds() -> None:
    [block] = re.findall(r"^    async def test_month\(tocsin_app: .*\n(?:     .*\n?)+", PAGE, re.MULTILINE)
    examples: dict[str, Any] = {"__name__": "examples", "Callable": Callable}
    exec("\n".join([*BLOCKS, dedent(block)]), examples)  # noqa: S102 - our own page
    await examples["test_month"](partial(Simulation, examples["app"]))


def test_page_has_examples() -> None:
    assert len(NAMES) == 4
