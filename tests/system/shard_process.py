"""Workers for jobs with a partition.

RUNS_FILE=… tocsin worker tests.system.shard_process:worker
"""

import asyncio
import os

from tests.system.worker_process import RUNS_FILE
from tocsin import Context, Worker

worker = Worker(concurrency=4, shutdown_timeout=5.0)


@worker.task("sweep")
async def sweep(context: Context) -> None:
    """Note the shard, and work for a moment."""
    with open(os.environ[RUNS_FILE], "a", encoding="utf-8") as file:  # noqa: ASYNC230, PTH123 - one short line
        file.write(f"{context.execution_id} {context.shard} {context.worker} {context.shard_epoch}\n")
    if context.input.get("is_long"):
        await asyncio.sleep(3)
