"""Flags that handlers can watch, and the requests to stop a worker: calls and signals."""

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)

_FLAGS: Final = threading.RLock()
"""Held while a thread creates the event that it waits for, or while a flag is set: so no thread waits for a set flag."""


class Flag:
    """An event that happens once.

    Handlers may read it or wait for it, in the loop or in a thread. As a condition it is true once it is set:
    `if context.cancelled:`.
    """

    __slots__ = ("_in_loop", "_in_threads", "_is_set", "is_watched")

    def __init__(self) -> None:
        self._is_set = False
        # Each task has a flag that few handlers wait for, so its events are made for the first that does.
        self._in_loop: asyncio.Event | None = None
        self._in_threads: threading.Event | None = None
        self.is_watched = False
        """A handler has read the flag or waits for it."""

    def __bool__(self) -> bool:
        """Return whether the flag is set; from any thread."""
        return self.is_set()

    def is_set(self) -> bool:
        """Return whether the flag is set; from any thread."""
        self.is_watched = True
        return self._is_set

    async def wait(self) -> None:
        """Wait until the flag is set; for async handlers."""
        self.is_watched = True
        if self._in_loop is None:
            self._in_loop = asyncio.Event()
        if not self._is_set:
            await self._in_loop.wait()

    def wait_in_thread(self, timeout: float | None = None) -> bool:
        """Wait until the flag is set, at most `timeout` seconds; return whether it is.

        For sync handlers. A sync handler calls this instead of `time.sleep`.
        """
        self.is_watched = True
        with _FLAGS:
            if self._in_threads is None:
                self._in_threads = threading.Event()
        return self._is_set or self._in_threads.wait(timeout)

    def set(self) -> None:
        """Set the flag; only in the worker's loop."""
        with _FLAGS:
            self._is_set = True
            if self._in_threads is not None:
                self._in_threads.set()
        if self._in_loop is not None:
            self._in_loop.set()


class Shutdown:
    """The requests to stop a worker."""

    def __init__(self) -> None:
        self.requested = Flag()
        """Take no more tasks, and let handlers finish."""
        self.immediate = Flag()
        """Stop all handlers."""

    def request(self) -> None:
        """Request an orderly stop; a second call requests an immediate stop."""
        if self.requested.is_set():
            self.immediate.set()
        self.requested.set()


@contextmanager
def stop_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` on SIGTERM and SIGINT; after the second signal, restore their usual effect."""
    loop = asyncio.get_running_loop()
    received = 0

    def on_signal() -> None:
        nonlocal received
        received += 1
        stop()
        if received > 1:
            _remove_handlers(loop)

    try:
        for number in STOP_SIGNALS:
            loop.add_signal_handler(number, on_signal)
    except (NotImplementedError, RuntimeError, ValueError):  # the platform has none, or this is not the main thread
        yield
        return
    try:
        yield
    finally:
        _remove_handlers(loop)


def _remove_handlers(loop: asyncio.AbstractEventLoop) -> None:
    for number in STOP_SIGNALS:
        loop.remove_signal_handler(number)
