"""The examples of the page about testing."""

import re
from pathlib import Path
from typing import Any

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "testing.md").read_text("utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
NAMES = re.findall(r"async def (test_\w+)", "".join(BLOCKS))


@pytest.mark.parametrize("name", NAMES)
async def test_example_holds(name: str) -> None:
    examples: dict[str, Any] = {"__name__": "examples"}
    exec("\n".join(BLOCKS), examples)  # noqa: S102 - our own page
    await examples[name]()


def test_page_has_examples() -> None:
    assert len(NAMES) == 3
