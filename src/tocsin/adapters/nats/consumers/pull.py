"""An inbox for the messages that a pull consumer sends on request, in order."""

import asyncio
import json
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from ....ports import LogUnavailable
from ..client import wire
from ..client.connection import Connection, Json
from ..client.requests import CONNECTION_ERRORS
from ..client.transport import Outgoing

_NANOSECONDS: Final = 1_000_000_000


class PullInbox:
    """An inbox for messages of a consumer, and for statuses that end requests."""

    def __init__(self, connection: Connection, stream: str, consumer: str) -> None:
        """Use the names of a stream and a consumer on the wire. `open` subscribes."""
        self._connection = connection
        self._next = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}"
        self._inbox = connection.client.new_inbox()
        self._subscription: Subscription | None = None
        self._changed = asyncio.Event()
        self.messages: deque[Msg] = deque()
        self.statuses: deque[str] = deque()
        """Statuses that end requests ("404", "408", "409"), heartbeats ("100"), and "503" after a lost connection."""
        self._forget: Callable[[], None] | None = None

    async def open(self) -> None:
        """Subscribe to the inbox."""
        try:
            self._subscription = await self._connection.transport.listen(self._inbox, self._receive)
        except CONNECTION_ERRORS as error:
            raise LogUnavailable(f"{self._next}: {error!r}") from error
        self._forget = self._connection.on_interrupt(self._interrupted)

    async def close(self) -> None:
        """Unsubscribe; unread messages stay in `messages`."""
        subscription, self._subscription = self._subscription, None
        if self._forget is not None:
            self._forget()
        if subscription is not None and not self._connection.client.is_closed:
            try:
                await subscription.unsubscribe()
            except CONNECTION_ERRORS:
                return  # the connection is gone, and the subscription with it

    async def request(self, limit: int, *, wait: float, heartbeat: float = 0, is_greedy: bool = False) -> None:
        """Request up to `limit` messages; the request stays with the server for `wait` seconds.

        A greedy request ends (404) as soon as it has brought messages and there are no more. Any other request ends
        when it is full.
        """
        if not self._connection.client.is_connected:
            # The client would buffer this request and all later requests, and then send them together.
            raise LogUnavailable(f"{self._next}: not connected")
        fields: Json = {"batch": limit, "expires": int(wait * _NANOSECONDS)}
        if is_greedy:
            fields["no_wait"] = True  # with `expires`: wait for the first message only
        if heartbeat:
            fields["idle_heartbeat"] = int(heartbeat * _NANOSECONDS)
        try:
            await self._connection.transport.send(
                [Outgoing(self._next, json.dumps(fields).encode(), reply=self._inbox)]
            )
        except CONNECTION_ERRORS as error:
            raise LogUnavailable(f"{self._next}: {error!r}") from error

    async def wait(self, seconds: float, *, beyond: int = 0) -> bool:
        """Wait up to `seconds` for a status, or for more than `beyond` messages.

        Return whether there are any.
        """
        try:
            async with asyncio.timeout(seconds):
                while len(self.messages) <= beyond and not self.statuses:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return False
        return True

    def _receive(self, subject: str, reply: str, body: bytes, headers: Mapping[str, str] | None) -> None:
        # A delivered message has a reply subject for its acknowledgement; a status message has none.
        if reply:
            self.messages.append(Msg(self._connection.client, subject, reply, body, headers))  # type: ignore[arg-type] # nats-py declares a dict
        else:
            self.statuses.append((headers or {}).get(wire.STATUS, ""))
        self._changed.set()

    def _interrupted(self) -> None:
        self.statuses.append(wire.NO_RESPONDERS)  # the server has forgotten the requests
        self._changed.set()
