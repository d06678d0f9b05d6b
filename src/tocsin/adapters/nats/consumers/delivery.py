"""Messages that consumers deliver; their reply subjects contain the delivery data."""

from collections.abc import Awaitable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from nats.aio.msg import Msg
from nats.errors import MsgAlreadyAckdError

from ....ports import LogUnavailable
from ..client import wire
from ..client.names import Names
from ..client.requests import CONNECTION_ERRORS
from ..client.transport import Transport

# $JS.ACK.<stream>.<consumer>.<delivered>.<sequence>.<consumer's sequence>.<nanoseconds>.<pending>. With a domain and
# an account: $JS.ACK.<domain>.<account>.<stream>.…, and a random token at the end.
_SHORT: Final = 9
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Received:
    """A delivered message."""

    __slots__ = ("_nanoseconds", "body", "delivered", "headers", "order", "pending", "sequence", "subject")

    def __init__(self, message: Msg, names: Names) -> None:
        """Parse the reply subject.

        Raises:
            ValueError: no consumer delivered the message.
        """
        tokens = message.reply.split(".")
        if len(tokens) < _SHORT or tokens[1] != "ACK":
            raise ValueError(f"{message.subject}: not delivered by a consumer")
        delivered, sequence, order, nanoseconds, pending = tokens[4:9] if len(tokens) == _SHORT else tokens[6:11]
        self.subject = names.from_wire(message.subject)
        self.body: bytes = message.data
        self.headers: Mapping[str, str] = message.headers or {}
        self.delivered = int(delivered)
        self.sequence = int(sequence)
        self._nanoseconds = nanoseconds
        self.order = int(order)
        """The number of this delivery in the consumer, from 1. A gap shows that a message was lost."""
        self.pending = int(pending)
        """The number of messages that the consumer still had to deliver."""

    @property
    def time(self) -> datetime:
        """The time at which the stream stored it (UTC)."""
        # Truncated, as the time stamps of direct gets are, so that a message has the same time on every path.
        return _EPOCH + timedelta(microseconds=int(self._nanoseconds) // 1_000)

    @property
    def message_id(self) -> str | None:
        """The id that its publisher set."""
        return self.headers.get(wire.MESSAGE_ID)


class NatsDelivery(Received):
    """Implement `ports.Delivery` over a message of nats-py."""

    __slots__ = ("_message", "_transport")

    def __init__(self, message: Msg, names: Names, transport: Transport) -> None:
        """Wrap a message from a JetStream consumer with explicit acknowledgement."""
        super().__init__(message, names)
        self._message = message
        self._transport = transport

    @property
    def message(self) -> Msg:
        """The message of nats-py."""
        return self._message

    async def ack(self) -> None:
        """Acknowledge the message. If the acknowledgement is lost, it is redelivered."""
        await self._reply(self._transport.acknowledge((self._message,)))

    async def nak(self, delay: float) -> None:
        """Hand the message back; it is redelivered after `delay` seconds."""
        await self._reply(self._message.nak(delay))

    async def term(self) -> None:
        """Prevent any further delivery."""
        await self._reply(self._message.term())

    async def in_progress(self) -> None:
        """Restart the acknowledgement wait."""
        await self._reply(self._message.in_progress())

    @staticmethod
    async def ack_many(deliveries: Sequence["NatsDelivery"]) -> None:
        """Acknowledge several messages of one client in one write."""
        first = deliveries[0]
        await first._reply(first._transport.acknowledge([delivery._message for delivery in deliveries]))  # noqa: SLF001 - its own class

    async def _reply(self, reply: Awaitable[None]) -> None:
        try:
            await reply
        except MsgAlreadyAckdError as error:
            raise RuntimeError(f"{self.subject}, delivery {self.delivered}: already settled") from error
        except CONNECTION_ERRORS as error:
            raise LogUnavailable(f"{self.subject}: {error!r}") from error
