"""A durable, read by pull requests that never ask for more than the caller has room for."""

import asyncio
from collections.abc import Sequence
from typing import Final

from ....ports import LogUnavailable
from ....subjects import Stream
from ..client import wire
from ..client.connection import Connection
from ..client.names import Names
from .delivery import NatsDelivery
from .pull import PullInbox

_LONGEST_REQUEST: Final = 5.0
"""Seconds: a request that a lost connection swallowed is noticed after as long."""
_SHORTEST_REQUEST: Final = 0.01
"""Seconds: one without an end could stay with the server, and bring messages when nobody is there to take them."""
_GRACE: Final = 1.0
"""Seconds that the server's own word on the end of a request may take."""
_LULL: Final = 0.1
"""Seconds without another message after which the server is taken to wait for acknowledgements before it goes on."""


class NatsDurable:
    """One reader of a durable; any number may share it."""

    def __init__(self, connection: Connection, names: Names, stream: Stream, durable: str) -> None:
        """The durable exists: `provision` made it."""
        self._names = names
        self._durable = durable
        self._inbox = PullInbox(connection, names.stream(stream), durable)
        self._is_open = False
        self._turn = asyncio.Lock()

    @property
    def has_some(self) -> bool:
        """Messages came when the last caller had given up: the next one has them at once."""
        return bool(self._inbox.messages)

    async def take(self, limit: int, *, wait: float) -> Sequence[NatsDelivery]:
        """Up to `limit` messages, whatever is there; waits up to `wait` seconds for the first. Callers take turns.

        Raises:
            LogUnavailable: nothing can be asked for now, or there is no such durable.
        """
        async with self._turn:
            if not self._is_open:
                await self._inbox.open()
                self._is_open = True
            now = asyncio.get_running_loop().time
            until = now() + wait
            while not await self._portion(limit, wait=min(until - now(), _LONGEST_REQUEST)) and now() < until:
                pass
            messages = self._inbox.messages
            return [NatsDelivery(messages.popleft(), self._names) for _ in range(min(limit, len(messages)))]

    async def close(self) -> None:
        """Stop, and hand back at once what came after the last caller had given up."""
        async with self._turn:
            await self._inbox.close()
            self._is_open = False
            while self._inbox.messages:
                await NatsDelivery(self._inbox.messages.popleft(), self._names).nak(0)

    async def _portion(self, limit: int, *, wait: float) -> bool:
        """Ask for what is missing to `limit`, and wait until it has come, or the server says that it was all.

        Whether there is anything.
        """
        inbox = self._inbox
        if len(inbox.messages) >= limit:
            return True
        inbox.statuses.clear()
        await inbox.ask(limit - len(inbox.messages), wait=max(wait, _SHORTEST_REQUEST), is_greedy=True)
        patience = wait + _GRACE
        while len(inbox.messages) < limit and await inbox.wait(patience, beyond=len(inbox.messages)):
            if inbox.statuses:
                break
            patience = _LULL
        if wire.NO_RESPONDERS in inbox.statuses:
            raise LogUnavailable(f"durable {self._durable} does not answer: no connection, or it was never provisioned")
        return bool(inbox.messages)
