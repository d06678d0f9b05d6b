"""Turns of several parties at a few shared places, and shared reads.

No party keeps another waiting, and the number of callers costs the server nothing.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final, Generic, TypeVar

from ..domain.errors import TocsinError

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


T = TypeVar("T")

VALID_S: Final = 1.0
"""An answer counts this long by default (seconds)."""


class SharedRead(Generic[T]):
    """One read at a time, whose answer counts for a time.

    A failure counts for the callers that waited for it.
    """

    def __init__(self, read: Callable[[], Awaitable[T]], *, valid_s: float | None = None) -> None:
        """`valid_s`: the seconds for which an answer counts; None: `VALID_S`."""
        self._read = read
        self._valid_s = valid_s
        self._request: asyncio.Task[T] | None = None
        self._ended = float("-inf")

    async def answer(self) -> T:
        """Return what was read, up to `valid_s` seconds ago."""
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
