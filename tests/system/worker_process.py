"""A worker that records every handler call in a file, so that runs are counted outside the log.

RUNS_FILE=… tocsin worker tests.system.worker_process
"""

import asyncio
import os
import signal
from collections import Counter
from pathlib import Path
from typing import Final

from tocsin import Context, NonRetryableError, Worker

RUNS_FILE: Final = "RUNS_FILE"
"""The variable that names the file: a line for each call, `<execution> <step> <attempt>`."""

worker = Worker(concurrency=20, shutdown_timeout=5.0)


@worker.task("work")
async def work(context: Context) -> str:
    note(context)
    return context.step


@worker.task("slow")
async def slow(context: Context, seconds: float) -> None:
    note(context)
    await asyncio.sleep(seconds)


@worker.task("flaky")
async def flaky(context: Context, failures: int) -> None:
    note(context)
    if context.attempt <= failures:
        raise ConnectionError(f"attempt {context.attempt}")


@worker.task("broken")
async def broken(context: Context) -> None:
    note(context)
    raise ValueError(f"attempt {context.attempt}")


@worker.task("hopeless")
async def hopeless(context: Context) -> None:
    note(context)
    raise NonRetryableError("never")


@worker.task("deadly")
async def deadly(context: Context) -> None:
    note(context)
    os.kill(os.getpid(), signal.SIGKILL)


def note(context: Context) -> None:
    """One write to the end of the file: lines of many processes do not mix."""
    file = os.open(os.environ[RUNS_FILE], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, f"{context.execution_id} {context.step} {context.attempt}\n".encode())
    finally:
        os.close(file)


def noted(file: Path) -> Counter[tuple[str, str, int]]:
    """Return the number of runs of each attempt: (execution, step, attempt)."""
    calls = (line.split() for line in file.read_text("utf-8").splitlines())
    return Counter((execution_id, step, int(attempt)) for execution_id, step, attempt in calls)
