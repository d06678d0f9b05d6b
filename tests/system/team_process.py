"""A worker of one of two teams, which share a queue and have no function in common.

RUNS_FILE=… tocsin worker tests.system.team_process:left
"""

import asyncio
from typing import Final

from tests.system.worker_process import note
from tocsin import Context, Worker

BUSY_S: Final = 1.5

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


@right.task("right/load")
async def other(context: Context) -> None:
    note(context)
