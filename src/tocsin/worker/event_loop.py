"""Event loops: that of the caller, and the end of a worker's.

`asyncio.run` waits without a limit for the tasks that it cancels at its end. A handler that catches its cancellation and runs on would keep a
worker, and with it the program, from ending.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
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

    Raises:
        RuntimeError: an event loop runs in this thread already.
    """
    if running_loop() is not None:
        raise RuntimeError(
            "an event loop runs in this thread already, where no other can; use `running()` with `await`"
        )
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
    loop, cancelled = asyncio.get_running_loop(), set["asyncio.Task[Any]"]()
    deadline = loop.time() + END_S
    while others := asyncio.all_tasks() - {asyncio.current_task()}:  # again: the cleanup of a task may start others
        for task in others - cancelled:
            task.cancel()
        cancelled |= others
        left = deadline - loop.time()
        if left <= 0:
            return others
        await asyncio.wait(others, timeout=left)
    return set()


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the event loop in which the caller runs; None: it runs in none."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


async def first(*awaitables: Awaitable[object], timeout_s: float | None = None) -> None:
    """Wait for the first result, at most `timeout_s` seconds, and cancel the others."""
    waiting = [asyncio.ensure_future(awaitable) for awaitable in awaitables]
    try:
        await asyncio.wait(waiting, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for future in waiting:
            future.cancel()
