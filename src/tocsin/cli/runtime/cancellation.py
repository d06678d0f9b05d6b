"""Ending what can end in order: being cancelled means that it is asked, and then waited for."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


async def until_done(work: Coroutine[Any, Any, None], *, stop: Callable[[], None]) -> None:
    """Run `work`; when cancelled call `stop` and wait until the work has come to its end."""
    task = asyncio.create_task(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        if not task.done():
            stop()
            await task
        raise
