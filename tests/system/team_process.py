"""A worker of one of two teams, which share a queue and have no function in common.

RUNS_FILE=… tocsin worker tests.system.team_process:left
"""

import asyncio
import os
from pathlib import Path
from typing import Final

from tests.system.worker_process import RUNS_FILE, note
from tocsin import Context, Worker

BUSY_S: Final = 1.5
POLL_S: Final = 0.05

left = Worker(concurrency=2, shutdown_timeout=5.0)
right = Worker(concurrency=20, shutdown_timeout=5.0)


@left.task("left/load")
async def load(context: Context) -> None:
    note(context)
    await asyncio.sleep(BUSY_S)


@left.task("left/slowly")
async def slowly(context: Context, seconds: float) -> None:
    note(context)
    await asyncio.sleep(seconds)


@left.task("left/held")
async def held(context: Context) -> None:
    """Run until the test releases it."""
    note(context)
    while not released(Path(os.environ[RUNS_FILE])).exists():  # noqa: ASYNC110 - another process writes the file
        await asyncio.sleep(POLL_S)


def released(runs: Path) -> Path:
    """Return the file beside that of the runs whose existence ends the tasks."""
    return runs.with_suffix(".released")


@right.task("right/load")
async def other(context: Context) -> None:
    note(context)
