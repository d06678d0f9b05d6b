"""Calculations over time, such as the occurrences of a schedule, away from the event loop.

A calculation may take seconds. `Calculations` runs a few at once, each in a thread, and refuses calculations beyond a number
that wait. Threads share one interpreter lock, so a calculation gives it up every few milliseconds, and the event loop
continues. A calculation is bounded in processor time, not only in the size of its result: it calls `Effort.is_spent` between
two instants, and returns what it has when its time is over. It ends in the same way when the caller is cancelled.
"""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from threading import Event
from typing import Final, Protocol, TypeVar

from ..domain.errors import TocsinError
from .turns import ServerBusy, Turns

T = TypeVar("T")
THREADS: Final = 2
MAX_OPEN: Final = 64
"""Calculations that run or wait. Beyond it, each party may have one."""
SECONDS: Final = 1.0
"""Processor time of one calculation."""
_TURN_S: Final = 0.002
_PAUSE_S: Final = 0.0002


class CalculationAbandoned(TocsinError):
    """The caller of a calculation was cancelled."""

    code = "calculation-abandoned"


class Effort:
    """The processor time that a calculation has used."""

    def __init__(self, seconds: float) -> None:
        """Allow `seconds` of processor time, counted from the first call of `is_spent`."""
        self._seconds = seconds
        self._began: float | None = None
        self._turn = 0.0
        self._is_abandoned = Event()

    def abandon(self) -> None:
        """End the calculation at its next call of `is_spent`."""
        self._is_abandoned.set()

    def is_spent(self) -> bool:
        """Return whether the calculation must end with what it has. Call it between two instants.

        Raises:
            CalculationAbandoned: its result is not needed.
        """
        if self._is_abandoned.is_set():
            raise CalculationAbandoned("the caller was cancelled")
        now = time.thread_time()
        if self._began is None:
            self._began = self._turn = now
        if now - self._turn >= _TURN_S:
            time.sleep(_PAUSE_S)  # the event loop takes the interpreter lock meanwhile
            self._turn = time.thread_time()
        return now - self._began >= self._seconds


class Calculator(Protocol):
    """Runs one calculation."""

    async def __call__(self, compute: Callable[[Effort], T], /) -> T:
        """Return the result of `compute`."""


async def in_place(compute: Callable[[Effort], T], /) -> T:
    """Run a calculation in the calling thread, without a limit.

    This is for programs with a single user.
    """
    return compute(Effort(float("inf")))


class Calculations:
    """A small pool of threads for calculations."""

    def __init__(self, threads: int = THREADS, most: int = MAX_OPEN) -> None:
        """Run `threads` calculations at once; refuse a calculation while `most` run or wait."""
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="calculation")
        self._most = most
        self._open: set[Effort] = set()
        self._turns = Turns(threads)

    async def run(self, compute: Callable[[Effort], T], /, *, party: str = "") -> T:
        """Return the result of a calculation; it is abandoned if this call is cancelled.

        Calculations of one party run one after another, and parties take turns, so that they delay each other little. An abandoned
        calculation has its turn until its thread is free.

        Raises:
            ServerBusy: too many others run or wait.
        """
        if len(self._open) >= self._most and self._turns.has(party):
            raise ServerBusy("the server is busy with the calculations of other requests. Retry later")
        effort = Effort(SECONDS)
        self._open.add(effort)
        try:
            await self._turns.begin(party)
        except BaseException:
            self._open.discard(effort)
            raise
        loop = asyncio.get_running_loop()
        try:
            future = self._pool.submit(compute, effort)
        except RuntimeError:  # it was closed meanwhile
            self._free(effort, party)
            raise

        def free(_: Future[T]) -> None:
            with suppress(RuntimeError):  # the event loop has ended meanwhile
                loop.call_soon_threadsafe(self._free, effort, party)

        future.add_done_callback(free)
        try:
            return await asyncio.wrap_future(future)
        finally:
            effort.abandon()

    def _free(self, effort: Effort, party: str) -> None:
        self._open.discard(effort)
        self._turns.end(party)

    def close(self) -> None:
        for effort in tuple(self._open):
            effort.abandon()
        self._pool.shutdown(wait=False, cancel_futures=True)
