"""The examples of "Run the scheduler in your application" run as they are written."""

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "in-process.md").read_text("utf-8")
BLOCKS = re.findall(r"```python[^\n]*\n(.*?)```", PAGE, re.DOTALL)
FOLDER = '"/var/lib/billing"'


async def test_examples_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, *others = BLOCKS
    assert FOLDER in first
    names: dict[str, Any] = {"__name__": "example"}
    for block in (first.replace(FOLDER, repr(str(tmp_path))), *others):
        exec(compile(block, "in-process.md", "exec"), names)  # noqa: S102 - our own page
    await names["main"]()
    assert "3" in capsys.readouterr().out.splitlines()
    assert await asyncio.to_thread(names["run_blocking"]) == 3
    app = names["app"]
    async with app.running():
        status = await names["report"]()
        assert (status.name, status.is_paused) == ("nightly", False)
        assert status.next_run is not None
        run = await app.trigger(names["summarize"])
        assert await run.result(timeout=60) == 1_000
