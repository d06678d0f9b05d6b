"""Start times of a peer's handlers, reported to the client over a named pipe.

Each handler writes one line, which costs it one system call.
"""

import asyncio
import os
import threading
import time
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.peers.peer import Assignment

_AT_ONCE: Final = 65_536


class Start(NamedTuple):
    """The start of a handler, by the wall clock (UNIX seconds) and the monotonic clock."""

    key: str
    at: float
    monotonic: float


def record(key: str) -> None:
    """The whole of every task: report its start."""
    os.write(_pipe(), f"{key} {time.time()} {time.perf_counter()}\n".encode())


async def record_async(key: str) -> None:
    """The same for libraries whose tasks are coroutines."""
    record(key)


@cache
def _pipe() -> int:
    return os.open(Assignment.received().starts, os.O_WRONLY)


class Starts:
    """Reads the pipe in a thread."""

    def __init__(self, path: Path) -> None:
        self._all: list[Start] = []
        self._changed = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        os.mkfifo(path)
        descriptor = os.open(path, os.O_RDWR)  # a writer of its own, so that the pipe never ends
        threading.Thread(target=self._read, args=(descriptor,), daemon=True).start()

    def of(self, kind: str) -> list[Start]:
        """Return the starts so far of tasks whose key has a prefix."""
        return [start for start in self._all if start.key.startswith(kind)]

    async def until(self, kind: str, number: int) -> None:
        """Wait until a number of different tasks have started."""
        while len({start.key for start in self.of(kind)}) < number:
            self._changed.clear()
            await self._changed.wait()

    async def until_begun(self, key: str) -> Start:
        """Wait for a task that has not been seen yet."""
        while not (self._all and self._all[-1].key == key):
            self._changed.clear()
            await self._changed.wait()
        return self._all[-1]

    def _read(self, descriptor: int) -> None:
        rest = b""
        while True:
            *lines, rest = (rest + os.read(descriptor, _AT_ONCE)).split(b"\n")
            for line in lines:
                key, at, monotonic = line.decode().split()
                self._all.append(Start(key, float(at), float(monotonic)))
            if lines:
                self._loop.call_soon_threadsafe(self._changed.set)
