"""Waits for the history to have what the log had at a request."""

import asyncio
from typing import Final

from ....services.operations.event_waiter import EXECUTIONS
from ....subjects import Stream
from ..api.dependencies import Components
from ..api.problems import Problem

CATCH_UP_PAUSES_S: Final = (0.005, 0.01, 0.02, 0.04, *(0.08,) * 40)
"""Pauses between looks at the place of the history."""


async def until_current(here: Components) -> None:
    """Wait until the history has all events of executions that were stored before this request.

    Raises:
        Problem: it has not, after some seconds.
    """
    newest = await here.log.tail(EXECUTIONS)
    for pause in CATCH_UP_PAUSES_S:
        if await here.history.offset(Stream.LOG) >= newest:
            return
        await asyncio.sleep(pause)
    raise Problem(
        503,
        "unavailable",
        "the history does not have the newest events yet. Check that the stage `recorder` runs",
        headers={"Retry-After": "1"},
    )
