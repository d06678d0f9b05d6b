"""Requests for a turn, in memory."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ...ports.turn_channel import ReceiveTurn


class InMemoryTurnChannel:
    """Implement `ports.TurnChannel`: a channel that all processes of a test share."""

    def __init__(self) -> None:
        self._receivers: list[ReceiveTurn] = []

    async def ask(self, name: str) -> None:
        """See `TurnChannel`."""
        for receive in tuple(self._receivers):
            receive(name)

    @asynccontextmanager
    async def asked(self, receive: ReceiveTurn) -> AsyncIterator[None]:
        """See `TurnChannel`."""
        self._receivers.append(receive)
        try:
            yield
        finally:
            self._receivers.remove(receive)
