"""Calculations over time, away from the event loop; turns of parties; shared reads.

A calculation may take seconds. `Calculations` runs a few at once, each in a thread, and refuses calculations beyond a number
that wait. Threads share one interpreter lock, so a calculation gives it up every few milliseconds, and the event loop
continues. A calculation is bounded in processor time, not only in the size of its result: it calls `Effort.is_spent` between
two instants, and returns what it has when its time is over. It ends in the same way when the caller is cancelled.
"""

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from threading import Event
from typing import Final, Generic, Protocol, TypeVar

from ..domain.errors import TocsinError

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


MAX_WAITING: Final = 24
"""The requests of one party that wait. Further requests are refused."""


class ServerBusy(TocsinError):
    """Too many requests for the same kind of work wait already."""

    code = "busy"


class Turns:
    """A few places, at which parties take turns."""

    def __init__(self, places: int) -> None:
        """Let `places` parties have a place at a time."""
        self._places = places
        self._active: set[str] = set()
        self._lines: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        """The requests that wait, by party; the party that is next comes first."""

    def has(self, party: str) -> bool:
        """Return whether a party has a place or waits for one."""
        return party in self._active or party in self._lines

    @asynccontextmanager
    async def turn(self, party: str) -> AsyncIterator[None]:
        """Wait for a place, and keep it until the context ends."""
        await self.begin(party)
        try:
            yield
        finally:
            self.end(party)

    async def begin(self, party: str) -> None:
        """Wait for a place, which the party has until `end`.

        If this is cancelled, it has none.

        Raises:
            ServerBusy: too many requests of the party wait already.
        """
        line = self._lines.setdefault(party, deque())
        if len(line) >= MAX_WAITING:
            raise ServerBusy(f"{MAX_WAITING} such requests of this client or its namespaces wait already. Retry later")
        turn = asyncio.get_running_loop().create_future()
        line.append(turn)
        self._assign()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._leave(party, turn)
            else:  # the place was assigned before the cancellation
                self.end(party)
            raise

    def end(self, party: str) -> None:
        self._active.discard(party)
        if party in self._lines:
            self._lines.move_to_end(party)
        self._assign()

    def _leave(self, party: str, turn: asyncio.Future[None]) -> None:
        line = self._lines.get(party, deque())
        if turn in line:
            line.remove(turn)
            if not line:
                del self._lines[party]

    def _assign(self) -> None:
        while len(self._active) < self._places:
            party = next((party for party in self._lines if party not in self._active), None)
            if party is None:
                return
            line = self._lines[party]
            turn = line.popleft()
            if not line:
                del self._lines[party]
            if not turn.done():  # a cancelled request has not left the line yet
                self._active.add(party)
                turn.set_result(None)


VALID_S: Final = 1.0
"""An answer counts this long by default (seconds)."""


class SharedRead(Generic[T]):
    """One read at a time; its answer counts for a while.

    A failure counts for the callers that waited for it.
    """

    def __init__(self, read: Callable[[], Awaitable[T]], *, valid_s: float | None = None) -> None:
        """`valid_s`: the seconds for which an answer counts; None: `VALID_S`."""
        self._read = read
        self._valid_s = valid_s
        self._request: asyncio.Task[T] | None = None
        self._ended = float("-inf")

    async def answer(self) -> T:
        """Return the answer of a read up to `valid_s` seconds ago."""
        request = self._request
        if request is None or (request.done() and not self._counts(request)):
            request = self._request = asyncio.create_task(self._ask())
            request.add_done_callback(_retrieve)
        return await asyncio.shield(request)  # a caller that leaves does not end the request of the others

    def _counts(self, ended: asyncio.Task[T]) -> bool:
        valid_s = VALID_S if self._valid_s is None else self._valid_s
        is_answer = not ended.cancelled() and ended.exception() is None
        return is_answer and asyncio.get_running_loop().time() - self._ended < valid_s

    async def _ask(self) -> T:
        try:
            return await self._read()
        finally:
            self._ended = asyncio.get_running_loop().time()


def _retrieve(request: asyncio.Task[T]) -> None:
    """Retrieve a failure, which asyncio logs otherwise if each caller left before it."""
    if not request.cancelled():
        request.exception()
