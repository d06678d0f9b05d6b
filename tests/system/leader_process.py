"""Workers that may lead.

RUNS_FILE=… tocsin worker tests.system.leader_process:worker
"""

import asyncio
import os

from tests.system.worker_process import RUNS_FILE
from tocsin import Context, Worker

worker = Worker(concurrency=4, shutdown_timeout=5.0)


@worker.task("lead")
async def lead(context: Context) -> None:
    """Note the epoch, and work for a while."""
    with open(os.environ[RUNS_FILE], "a", encoding="utf-8") as file:  # noqa: ASYNC230, PTH123 - one short line
        file.write(f"{context.execution_id} {context.worker} {context.leader_epoch} {context.fence}\n")
    if context.input.get("is_long"):
        await asyncio.sleep(600)
