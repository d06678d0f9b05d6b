"""Something that happens once, and that handlers may look at or wait for, in the loop or in a thread."""

import asyncio
import threading


class Flag:
    """Down until the worker raises it; it never comes down again."""

    __slots__ = ("_in_loop", "_in_threads", "is_heeded")

    def __init__(self) -> None:
        """A flag that is down."""
        self._in_loop = asyncio.Event()
        self._in_threads = threading.Event()
        self.is_heeded = False
        """Somebody has looked at it, or waits for it."""

    def is_set(self) -> bool:
        """Whether it is up; from anywhere."""
        self.is_heeded = True
        return self._in_threads.is_set()

    async def wait(self) -> None:
        """Until it is up; in an async handler."""
        self.is_heeded = True
        await self._in_loop.wait()

    def wait_in_thread(self, timeout: float | None = None) -> bool:
        """Until it is up, or `timeout` seconds are over: a sync handler's `time.sleep`. Whether it is up."""
        self.is_heeded = True
        return self._in_threads.wait(timeout)

    def set(self) -> None:
        """Raise it; in the worker's loop."""
        self._in_threads.set()
        self._in_loop.set()
