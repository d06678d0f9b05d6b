"""An inbox for the messages that a pull consumer sends on request, in order."""

import asyncio
import json
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, Protocol

from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import MsgAlreadyAckdError

from ....ports import LogUnavailable
from ..client import wire
from ..client.connection import Connection, Json
from ..client.requests import CONNECTION_ERRORS
from ..client.transport import Outgoing, Transport

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
        """Statuses that end requests ("404", "408", "409", `wire.FULL_REQUEST`, `wire.COMPLETED_REQUEST`), heartbeats ("100"), and "503" after a lost connection."""
        self.unserved = 0
        """The number of messages that ended requests did not bring. The reader sets it to 0."""
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

    async def request(
        self, limit: int, *, wait: float, heartbeat: float = 0, is_greedy: bool = False, max_bytes: int = 0
    ) -> None:
        """Request up to `limit` messages; the request stays with the server for `wait` seconds.

        With `max_bytes`, it ends (409) before the message that would exceed this size of all together.
        A greedy request ends (404) as soon as it has brought messages and there are no more. Any other request ends
        when it is full.
        """
        if not self._connection.client.is_connected:
            # The client would buffer this request and all later requests, and then send them together.
            raise LogUnavailable(f"{self._next}: not connected")
        fields: Json = {"batch": limit, "expires": int(wait * _NANOSECONDS)}
        if is_greedy:
            fields["no_wait"] = True  # with `expires`: wait for the first message only
        if max_bytes:
            fields["max_bytes"] = max_bytes
        if heartbeat:
            fields["idle_heartbeat"] = int(heartbeat * _NANOSECONDS)
        try:
            await self._connection.transport.send(
                [Outgoing(self._next, json.dumps(fields).encode(), reply=self._inbox)]
            )
        except CONNECTION_ERRORS as error:
            raise LogUnavailable(f"{self._next}: {error!r}") from error

    async def wait(self, seconds: float, *, beyond: int = 0) -> bool:
        """Wait up to `seconds`; return whether there is a status or more than `beyond` messages."""
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
            self.statuses.append(_status(headers or {}))
            self.unserved += int((headers or {}).get(wire.PENDING_MESSAGES, 0))
        self._changed.set()

    def _interrupted(self) -> None:
        self.statuses.append(wire.NO_RESPONDERS)  # the server has forgotten the requests
        self._changed.set()


def _status(headers: Mapping[str, str]) -> str:
    """Return the code of a status; two reasons of 409 have codes of their own."""
    match headers.get(wire.DESCRIPTION, ""):
        case "Message Size Exceeds MaxBytes":
            return wire.FULL_REQUEST
        case "Batch Completed":
            return wire.COMPLETED_REQUEST
        case _:
            return headers.get(wire.STATUS, "")


# $JS.ACK.<stream>.<consumer>.<delivered>.<sequence>.<consumer's sequence>.<nanoseconds>.<pending>. With a domain and
# an account: $JS.ACK.<domain>.<account>.<stream>.…, and a random token at the end.
_SHORT: Final = 9


class RelativeNames(Protocol):
    """The relative names of subjects on the wire."""

    def from_wire(self, wire: str, /) -> str:
        """Return the relative name of a subject."""


class Received:
    """A delivered message."""

    __slots__ = ("_delivered", "_nanoseconds", "_order", "_pending", "_time", "body", "headers", "sequence", "subject")

    def __init__(self, message: Msg, names: RelativeNames) -> None:
        """Parse the reply subject; `ValueError`: no consumer delivered the message."""
        tokens = message.reply.split(".")
        if len(tokens) < _SHORT or tokens[1] != "ACK":
            raise ValueError(f"{message.subject}: not delivered by a consumer")
        delivered, sequence, order, nanoseconds, pending = tokens[4:9] if len(tokens) == _SHORT else tokens[6:11]
        self.subject = names.from_wire(message.subject)
        self.body: bytes = message.data
        headers = message.headers
        self.headers: Mapping[str, str] = {} if headers is None else headers
        self.sequence = int(sequence)
        # Durables read the first of the others, and followers the last two, so each is converted when it is read.
        self._delivered, self._order, self._pending, self._nanoseconds = delivered, order, pending, nanoseconds
        self._time: datetime | None = None

    @property
    def delivered(self) -> int:
        """The number of deliveries of the message to this consumer."""
        return int(self._delivered)

    @property
    def order(self) -> int:
        """The number of this delivery in the consumer; a gap shows a lost message."""
        return int(self._order)

    @property
    def pending(self) -> int:
        """The number of messages that the consumer still had to deliver."""
        return int(self._pending)

    @property
    def time(self) -> datetime:
        """The time at which the stream stored it (UTC)."""
        if self._time is None:
            # Truncated, as the time stamps of direct gets are, so that a message has the same time on every path. A float
            # holds microseconds exactly until the year 2225, and this takes a third of the time of adding a `timedelta`.
            self._time = datetime.fromtimestamp(int(self._nanoseconds) // 1_000 / 1_000_000, UTC)
        return self._time

    @property
    def message_id(self) -> str | None:
        """The id that its publisher set."""
        return self.headers.get(wire.MESSAGE_ID)


class NatsDelivery(Received):
    """Implement `ports.Delivery` over a message of nats-py."""

    __slots__ = ("_message", "_transport")

    def __init__(self, message: Msg, names: RelativeNames, transport: Transport) -> None:
        """Wrap a message from a JetStream consumer with explicit acknowledgement."""
        super().__init__(message, names)
        self._message = message
        self._transport = transport

    async def ack(self) -> None:
        """Acknowledge the message. If the acknowledgement is lost, it is redelivered."""
        await self._reply(self._transport.acknowledge((self._message,)))

    async def nak(self, delay: float) -> None:
        await self._reply(self._message.nak(delay))

    async def in_progress(self) -> None:
        await self._reply(self._message.in_progress())

    @staticmethod
    async def ack_many(deliveries: Sequence["NatsDelivery"]) -> None:
        first = deliveries[0]
        await first._reply(first._transport.acknowledge([delivery._message for delivery in deliveries]))  # noqa: SLF001 - its own class

    async def _reply(self, reply: Awaitable[None]) -> None:
        try:
            await reply
        except MsgAlreadyAckdError as error:
            raise RuntimeError(f"{self.subject}, delivery {self.delivered}: already settled") from error
        except CONNECTION_ERRORS as error:
            raise LogUnavailable(f"{self.subject}: {error!r}") from error
