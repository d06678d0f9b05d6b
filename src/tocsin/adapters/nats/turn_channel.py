"""Requests for a turn over core NATS."""

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager

from ...ports.turn_channel import ReceiveTurn
from .client.connection import Connection
from .core_messages import CoreMessages

MAX_NAME_BYTES = 300


class NatsTurnChannel:
    """Implement `ports.TurnChannel`."""

    def __init__(self, connection: Connection, subject: str) -> None:
        """`subject`: the subject of the requests, on the wire. No stream may capture it."""
        self._messages = CoreMessages(connection)
        self._subject = subject

    async def ask(self, name: str) -> None:
        """See `TurnChannel`."""
        await self._messages.send(self._subject, name.encode())

    def asked(self, receive: ReceiveTurn) -> AbstractAsyncContextManager[None]:
        """See `TurnChannel`."""

        def pass_on(_: str, __: str, body: bytes, ___: Mapping[str, str] | None) -> None:
            if len(body) <= MAX_NAME_BYTES:
                receive(body.decode(errors="replace"))

        return self._messages.listening(self._subject, pass_on)
