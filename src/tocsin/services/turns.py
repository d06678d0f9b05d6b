"""Turns of several parties at a few shared places; no party keeps another waiting."""

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

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
