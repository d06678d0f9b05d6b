"""What a pull consumer sends to one inbox: asked for in portions, kept in order until somebody takes it."""

import asyncio
import json
from collections import deque
from collections.abc import Callable
from typing import Final

from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from ....ports import LogUnavailable
from ..client import wire
from ..client.connection import TROUBLE, Connection, Json
from ..client.inline_delivery import listen
from ..client.publish import send

_NANOSECONDS: Final = 1_000_000_000


class PullInbox:
    """An inbox for the messages of one consumer, and for the status messages that end a portion."""

    def __init__(self, connection: Connection, stream: str, consumer: str) -> None:
        """`stream` and `consumer`: their names on the wire. Nothing is subscribed before `open`."""
        self._connection = connection
        self._next = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}"
        self._inbox = connection.client.new_inbox()
        self._subscription: Subscription | None = None
        self._changed = asyncio.Event()
        self.messages: deque[Msg] = deque()
        self.statuses: deque[str] = deque()
        """What ended portions ("404", "408", "409"), heartbeats ("100"), and "503" when the connection was lost."""
        self._forget: Callable[[], None] | None = None

    async def open(self) -> None:
        """Subscribe."""
        try:
            self._subscription = await listen(self._connection.client, self._inbox, self._receive)
        except TROUBLE as error:
            raise LogUnavailable(f"{self._next}: {error!r}") from error
        self._forget = self._connection.on_interrupt(self._interrupted)

    async def close(self) -> None:
        """Unsubscribe; what nobody took stays in `messages`."""
        subscription, self._subscription = self._subscription, None
        if self._forget is not None:
            self._forget()
        if subscription is not None and not self._connection.client.is_closed:
            try:
                await subscription.unsubscribe()
            except TROUBLE:
                return  # and so is the subscription

    async def ask(self, limit: int, *, wait: float, heartbeat: float = 0, is_greedy: bool = False) -> None:
        """Ask for a portion of up to `limit`; the request stays with the server for `wait` seconds.

        A greedy one ends (404) as soon as it has brought anything and there is no more; any other when it is full.
        """
        if not self._connection.client.is_connected:
            # The client would keep the request, and with it those of every later call, and then send them all.
            raise LogUnavailable(f"{self._next}: not connected")
        request: Json = {"batch": limit, "expires": int(wait * _NANOSECONDS)}
        if is_greedy:
            request["no_wait"] = True  # together with `expires`: no waiting for a second one
        if heartbeat:
            request["idle_heartbeat"] = int(heartbeat * _NANOSECONDS)
        try:
            await send(self._connection.client, self._next, json.dumps(request).encode(), reply=self._inbox)
        except TROUBLE as error:
            raise LogUnavailable(f"{self._next}: {error!r}") from error

    async def wait(self, seconds: float, *, beyond: int = 0) -> bool:
        """Whether there is a status, or more than `beyond` messages, within `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                while len(self.messages) <= beyond and not self.statuses:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return False
        return True

    def _receive(self, message: Msg) -> None:
        # What a consumer delivers has a reply subject, to acknowledge on; a status message has none.
        if message.reply:
            self.messages.append(message)
        else:
            self.statuses.append((message.headers or {}).get(wire.STATUS, ""))
        self._changed.set()

    def _interrupted(self) -> None:
        self.statuses.append(wire.NO_RESPONDERS)  # the server has forgotten what was asked for
        self._changed.set()
