"""Calculations over time, such as the occurrences of a schedule, away from the event loop.

A calculation may take seconds. `Calculations` runs a few at once, each in a thread, and refuses calculations beyond a number
that wait. Threads share one interpreter lock, so a calculation gives it up every few milliseconds, and the event loop
continues. A calculation is bounded in processor time, not only in the size of its result: it calls `Effort.is_spent` between
two instants, and returns what it has when its time is over. It ends in the same way when the caller is cancelled.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from threading import Event
from typing import Final, Protocol, TypeVar

from ..domain.errors import TocsinError

T = TypeVar("T")
THREADS: Final = 2
MAX_OPEN: Final = 64
"""Calculations that run or wait."""
MAX_WAITING: Final = 24
"""Calculations of one client that wait, so that no client takes all places."""
SECONDS: Final = 1.0
"""Processor time of one calculation."""
_TURN_S: Final = 0.002
_PAUSE_S: Final = 0.0002


class CalculationsBusy(TocsinError):
    """Too many calculations wait already."""

    code = "busy"


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
        ...


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
        self._turns: dict[str, list[asyncio.Future[None]]] = {}
        """The calculations that wait for another calculation of the same client, by client."""

    async def run(self, compute: Callable[[Effort], T], /, *, client: str = "") -> T:
        """Return the result of a calculation; it is abandoned if this call is cancelled.

        Calculations of one client run one after another, so that they delay those of others little.

        Raises:
            CalculationsBusy: too many others run or wait.
        """
        if len(self._turns.get(client, ())) >= MAX_WAITING:
            raise CalculationsBusy("too many calculations of this client wait already. Retry later")
        if len(self._open) >= self._most:
            raise CalculationsBusy("the server is busy with the calculations of other requests. Retry later")
        effort = Effort(SECONDS)
        self._open.add(effort)
        try:
            async with self._turn(client):
                future = self._pool.submit(compute, effort)
                return await asyncio.wrap_future(future)
        finally:
            effort.abandon()
            self._open.discard(effort)

    @asynccontextmanager
    async def _turn(self, client: str) -> AsyncIterator[None]:
        """Wait for the calculations of the same client that began to wait before."""
        waiting = self._turns.get(client)
        if waiting is None:
            self._turns[client] = []
        else:
            turn = asyncio.get_running_loop().create_future()
            waiting.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if turn.cancelled():
                    waiting.remove(turn)
                else:
                    self._pass_on(client)
                raise
        try:
            yield
        finally:
            self._pass_on(client)

    def _pass_on(self, client: str) -> None:
        """Begin the next calculation of a client."""
        waiting = self._turns[client]
        while waiting:
            turn = waiting.pop(0)
            if not turn.done():
                turn.set_result(None)
                return
        del self._turns[client]

    def close(self) -> None:
        """Abandon all calculations."""
        for effort in self._open:
            effort.abandon()
        self._pool.shutdown(wait=False, cancel_futures=True)
