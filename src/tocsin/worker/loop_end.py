"""The end of an event loop, also if tasks ignore their cancellation.

`asyncio.run` waits without a limit for the tasks that it cancels at its end. A handler that catches its cancellation and runs on would keep a
worker, and with it the program, from ending.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from .. import telemetry

END_S: Final = 5.0
"""Seconds that cancelled tasks have to end."""

_log = telemetry.get_logger("tocsin.worker")
_left: Final[list[tuple[asyncio.Runner, set["asyncio.Task[Any]"]]]] = []
"""The event loops that were left with tasks: kept, so that their tasks get no turn, not even to be destroyed."""


@contextmanager
def ending_loop(loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None) -> Iterator[asyncio.Runner]:
    """Yield a runner, and end its event loop afterwards.

    Tasks that still run then are cancelled. Those that have not ended after `END_S` seconds get no further turn, and a warning counts them.
    """
    runner = asyncio.Runner(loop_factory=loop_factory)
    try:
        yield runner
    finally:
        if stubborn := runner.run(_cancelled_others()):
            _left.append((runner, stubborn))
            _log.warning(
                "tasks ignored their cancellation, and end with their event loop",
                action="tasks-stubborn",
                count=len(stubborn),
            )
        else:
            runner.close()


async def _cancelled_others() -> set["asyncio.Task[Any]"]:
    """Cancel all other tasks; return those that did not end."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    return (await asyncio.wait(others, timeout=END_S))[1] if others else set()
