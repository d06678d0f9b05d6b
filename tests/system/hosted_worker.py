"""A worker for a host of any kind.

Hosts are the lifespan of an application, a thread, and `tocsin worker tests.system.hosted_worker`.
"""

import asyncio
import os
import threading
from pathlib import Path
from typing import Any, Final

from pydantic import JsonValue

from tocsin import Context, Worker

SEEN_FILE: Final = "SEEN_FILE"
"""The variable that names a file, which exists once a handler saw that its execution was cancelled."""

worker = Worker(shutdown_timeout=30.0)


@worker.task("describe")
async def describe(context: Context, day: str) -> dict[str, Any]:
    context.logger.info("seen", day=day)
    return {"day": day, "queue": context.queue, "tags": list(context.tags)}


@worker.task("compute")
def compute(_: Context) -> bool:
    """Return whether a sync handler runs in a thread of its own."""
    return threading.current_thread().name.startswith("tocsin-task")


@worker.task("resume")
async def resume(context: Context) -> JsonValue:
    if context.attempt == 1:
        await context.heartbeat({"row": 7})
        raise ConnectionError("no route")
    return context.last_heartbeat


@worker.task("watch")
async def watch(context: Context) -> None:
    while not context.cancelled:  # noqa: ASYNC110 - a handler may read the flag as a condition
        await asyncio.sleep(0.05)
    _note()


def _note() -> None:
    Path(os.environ[SEEN_FILE]).touch()


@worker.task("last")
async def last(context: Context) -> str:
    await context.shutting_down.wait()
    return "finished"
