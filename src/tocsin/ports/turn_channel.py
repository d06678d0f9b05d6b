"""Requests of processes that the others let them store a commit."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol, TypeAlias

ReceiveTurn: TypeAlias = Callable[[str], None]
"""Takes the name of the process that requests its turn; it returns at once."""


class TurnChannel(Protocol):
    """Requests for a turn, which no stream stores. Any request may be lost."""

    async def ask(self, name: str) -> None:
        """Ask the other processes to hold back.

        Raises:
            LogUnavailable: there is no connection.
        """
        ...

    def asked(self, receive: ReceiveTurn) -> AbstractAsyncContextManager[None]:
        """Within the block, pass on the request of each process, also of this process."""
        ...
