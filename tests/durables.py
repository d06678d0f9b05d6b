"""A reader of a durable by pull requests, as tests and programs outside read one."""

import asyncio
from collections.abc import Sequence
from typing import Final, Protocol

from tocsin.adapters.nats.client import wire
from tocsin.adapters.nats.client.connection import Connection
from tocsin.adapters.nats.client.names import Names
from tocsin.adapters.nats.consumers.pull import NatsDelivery, PullInbox
from tocsin.ports import Delivery, LogUnavailable
from tocsin.subjects import Stream


class Reader(Protocol):
    """A reader of a durable."""

    async def take(self, limit: int, *, wait: float) -> Sequence[Delivery]:
        """Take up to `limit` messages; wait up to `wait` seconds for the first."""


async def take(reader: Reader, count: int) -> list[Delivery]:
    """Take exactly so many messages that are there already, in however many portions."""
    taken: list[Delivery] = []
    while len(taken) < count:
        portion = await reader.take(count - len(taken), wait=10.0)
        assert portion
        taken += portion
    return taken


_LONGEST_REQUEST_S: Final = 5.0
"""A lost connection can swallow a request; it is noticed after this time."""
_SHORTEST_REQUEST_S: Final = 0.01
"""A request without an expiry could stay with the server and take messages that no caller waits for."""
_END_GRACE_S: Final = 1.0
"""The server may report the end of a request this much later."""
_QUIET_TIME_S: Final = 0.1
"""After this time without a message, the server is assumed to wait for acknowledgements."""


class NatsDurable:
    """One reader of a durable; any number of readers may share it."""

    def __init__(self, connection: Connection, names: Names, stream: Stream, durable: str) -> None:
        """Use a durable that `provision` created."""
        self._names = names
        self._durable = durable
        self._transport = connection.transport
        self._inbox = PullInbox(connection, names.stream(stream), durable)
        self._is_open = False
        self._lock = asyncio.Lock()

    async def take(self, limit: int, *, wait: float) -> Sequence[NatsDelivery]:
        """Return up to `limit` messages; wait up to `wait` seconds for the first.

        Callers take turns.

        Raises:
            LogUnavailable: there is no connection, or the durable does not exist.
        """
        async with self._lock:
            if not self._is_open:
                await self._inbox.open()
                self._is_open = True
            now = asyncio.get_running_loop().time
            until = now() + wait
            while not await self._fetch(limit, wait=min(until - now(), _LONGEST_REQUEST_S)) and now() < until:
                pass
            messages = self._inbox.messages
            return [
                NatsDelivery(messages.popleft(), self._names, self._transport) for _ in range(min(limit, len(messages)))
            ]

    async def close(self) -> None:
        """Stop, and hand back messages that arrived after the last caller gave up."""
        async with self._lock:
            await self._inbox.close()
            self._is_open = False
            while self._inbox.messages:
                await NatsDelivery(self._inbox.messages.popleft(), self._names, self._transport).nak(0)

    async def _fetch(self, limit: int, *, wait: float) -> bool:
        """Request missing messages; return whether there are any at the end of the request."""
        inbox = self._inbox
        if len(inbox.messages) >= limit:
            return True
        inbox.statuses.clear()
        await inbox.request(limit - len(inbox.messages), wait=max(wait, _SHORTEST_REQUEST_S), is_greedy=True)
        patience = wait + _END_GRACE_S
        while len(inbox.messages) < limit and await inbox.wait(patience, beyond=len(inbox.messages)):
            if inbox.statuses:
                break
            patience = _QUIET_TIME_S
        if wire.NO_RESPONDERS in inbox.statuses:
            raise LogUnavailable(
                f"durable {self._durable} does not answer: there is no connection, or it does not exist. Run `tocsin init`"
            )
        return bool(inbox.messages)
