"""From a command to a loop that runs it, and what signals do: the first one ends it in order, the second one at once."""

import asyncio
import gc
import os
import signal
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final, TypeVar

from .errors import Exit, Interrupted

T = TypeVar("T")

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a command that has an end of its own.

    Raises:
        Interrupted: a signal came first.
    """
    with asyncio.Runner() as runner:
        return runner.run(_until_signalled(work))


def serve(work: Coroutine[Any, Any, None]) -> None:
    """Run what goes on until somebody ends it: being asked to end is no failure."""
    collect_patiently()
    with asyncio.Runner(loop_factory=_fast_loop()) as runner, suppress(Interrupted):
        runner.run(_until_signalled(work))


async def _until_signalled(work: Coroutine[Any, Any, T]) -> T:
    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
    asked = False

    def ask() -> None:
        nonlocal asked
        if asked:
            os._exit(Exit.INTERRUPTED)
        asked = True
        task.cancel()

    for number in SIGNALS:
        loop.add_signal_handler(number, ask)
    try:
        return await task
    except asyncio.CancelledError:
        if asked:
            raise Interrupted from None
        raise
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)


def _fast_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop  # noqa: PLC0415 - absent on some systems
    except ImportError:
        return None
    return uvloop.new_event_loop


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


THRESHOLDS: Final = (100_000, 20, 100)
"""Objects made before the youngest are looked at, and how many such looks before older ones are."""


def collect_patiently() -> None:
    """Leave out what is imported by now, and look at the rest more rarely. To be called once, when a process begins."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
