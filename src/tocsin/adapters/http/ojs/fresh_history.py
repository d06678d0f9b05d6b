"""Waits for the history to have what the log had at a request."""

import asyncio
from collections.abc import Iterable
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
    if not await catches_up(here, await here.log.tail(EXECUTIONS), CATCH_UP_PAUSES_S):
        raise Problem(
            503,
            "unavailable",
            "the history does not have the newest events yet. Check that the stage `recorder` runs",
            headers={"Retry-After": "1"},
        )


async def catches_up(here: Components, sequence: int, pauses: Iterable[float]) -> bool:
    """Return whether the history reads up to a sequence within these pauses (seconds)."""
    for pause in pauses:
        if await here.history.offset(Stream.LOG) >= sequence:
            return True
        await asyncio.sleep(pause)
    return False
