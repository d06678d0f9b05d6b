"""A watch over the event loop of a simulation.

An async handler that computes and never waits holds the loop up, so no code in the loop notices. A thread does, and raises an error in the handler.
"""

import ctypes
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

LOOKS: Final = 4
"""How often the thread looks within the limit."""


class HeldUp(BaseException):
    """An async handler holds up the event loop.

    No `except Exception` of a handler catches it.
    """


class Watchdog:
    """Ends an async handler that gives no turn to the event loop."""

    def __init__(self, limit: float) -> None:
        """`limit`: seconds of the machine's time without a turn of the loop."""
        self._limit = limit
        self._turned_at: float | None = None

    def turn(self) -> None:
        """Note that the event loop has a turn."""
        self._turned_at = time.monotonic()

    def rest(self) -> None:
        """Note that nothing has to run, because the test has its turn, of any length."""
        self._turned_at = None

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch the event loop of the calling thread within the block."""
        is_over = threading.Event()
        arguments = (threading.get_ident(), is_over)
        thread = threading.Thread(target=self._watch, args=arguments, name="tocsin-watchdog", daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()

    def _watch(self, loop_thread: int, is_over: threading.Event) -> None:
        seen, looks = None, 0
        while not is_over.wait(self._limit / LOOKS):
            turned_at = self._turned_at
            # Looks are counted, and not seconds: while the whole machine stands still, this thread does, too.
            seen, looks = turned_at, looks + 1 if turned_at is not None and turned_at == seen else 0
            if looks >= LOOKS and self._turned_at == turned_at:
                looks = 0  # the next task may hold the loop up, too
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(loop_thread), ctypes.py_object(HeldUp))
