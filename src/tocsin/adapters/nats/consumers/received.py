"""A message as a consumer delivers it; what is known about it stands in its reply subject."""

from datetime import UTC, datetime, timedelta
from typing import Final

from nats.aio.msg import Msg

from ..client import wire
from ..client.names import Names

# $JS.ACK.<stream>.<consumer>.<delivered>.<sequence>.<consumer's sequence>.<nanoseconds>.<pending>, or the same behind
# a domain and an account: $JS.ACK.<domain>.<account>.<stream>.…, with a random token at the end.
_SHORT: Final = 9
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Received:
    """One delivered message, read once."""

    __slots__ = ("body", "delivered", "headers", "message_id", "order", "pending", "sequence", "subject", "time")

    def __init__(self, message: Msg, names: Names) -> None:
        """Read the reply subject.

        Raises:
            ValueError: the message was not delivered by a consumer.
        """
        tokens = message.reply.split(".")
        if len(tokens) < _SHORT or tokens[1] != "ACK":
            raise ValueError(f"{message.subject}: not delivered by a consumer")
        delivered, sequence, order, nanoseconds, pending = tokens[4:9] if len(tokens) == _SHORT else tokens[6:11]
        self.subject = names.from_wire(message.subject)
        self.body: bytes = message.data
        self.headers = message.headers or {}
        self.message_id = self.headers.get(wire.MESSAGE_ID)
        self.delivered = int(delivered)
        self.sequence = int(sequence)
        # Cut off, not rounded, as the time stamps of direct gets are: a message has one time, however it was read.
        self.time = _EPOCH + timedelta(microseconds=int(nanoseconds) // 1_000)
        self.order = int(order)
        """Which of the consumer's deliveries this is, from 1: a gap shows that one was lost on the way."""
        self.pending = int(pending)
        """How many more the consumer had to deliver when it delivered this one."""
