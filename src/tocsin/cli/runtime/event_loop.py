"""Running of commands on an event loop, with signals and garbage collection."""

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
REFRESH_SIGNAL: Final = getattr(signal, "SIGUSR1", None)
"""The signal to read time-zone data again; SIGHUP would keep a process alive whose terminal is gone."""


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a command that finishes by itself, or raise `Interrupted` at a signal."""
    with asyncio.Runner() as runner:
        return runner.run(_until_signalled(work))


def serve(work: Coroutine[Any, Any, None], *, on_refresh: Callable[[], object] | None = None) -> None:
    """Run a command until the user stops it; a signal is not a failure."""
    from ...worker.event_loop import ending_loop  # noqa: PLC0415 - other commands need no worker

    collect_patiently()
    with ending_loop(_fast_loop()) as runner, suppress(Interrupted):
        if on_refresh is not None and REFRESH_SIGNAL is not None:
            runner.get_loop().add_signal_handler(REFRESH_SIGNAL, on_refresh)
        runner.run(_until_signalled(work))


def refresh_timezones() -> None:
    """Read the time-zone data of this process again."""
    from ...engine.timezone_refresh import take_over  # noqa: PLC0415 - the commands start without the engine

    take_over()


async def _until_signalled(work: Coroutine[Any, Any, T]) -> T:
    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
    is_interrupted = False

    def interrupt() -> None:
        nonlocal is_interrupted
        if is_interrupted:
            os._exit(Exit.INTERRUPTED)
        is_interrupted = True
        task.cancel()

    for number in SIGNALS:
        loop.add_signal_handler(number, interrupt)
    try:
        return await task
    except asyncio.CancelledError:
        if is_interrupted:
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
    """Run `work`; on cancellation call `stop` and wait for the work to finish."""
    task = asyncio.create_task(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        if not task.done():
            stop()
            await task
        raise


THRESHOLDS: Final = (100_000, 20, 100)
"""Allocations before the youngest generation is collected, and collections before the next generations are."""


def collect_patiently() -> None:
    """Exempt imported objects from garbage collection, and collect the rest less often.

    Python visits all surviving objects after enough allocations. With tens of thousands of executions in memory that took
    a third of the CPU of a stage and freed almost nothing, because reference counting frees what the stages drop. Call this
    once, when a process starts.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
