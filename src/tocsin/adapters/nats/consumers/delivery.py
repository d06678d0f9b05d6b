"""One message as a durable hands it out."""

from collections.abc import Awaitable
from datetime import datetime

from nats.aio.msg import Msg
from nats.errors import MsgAlreadyAckdError

from ....ports import LogUnavailable
from ..client.connection import TROUBLE
from ..client.names import Names
from ..client.publish import send
from .received import Received


class NatsDelivery:
    """Implements `ports.Delivery` over a message of nats-py, whoever fetched it."""

    __slots__ = ("_message", "_received")

    def __init__(self, message: Msg, names: Names) -> None:
        """The message comes from a JetStream consumer with explicit acknowledgement."""
        self._message = message
        self._received = Received(message, names)

    @property
    def subject(self) -> str:
        """Relative."""
        return self._received.subject

    @property
    def body(self) -> bytes:
        """As it was published."""
        return self._received.body

    @property
    def sequence(self) -> int:
        """In its stream."""
        return self._received.sequence

    @property
    def time(self) -> datetime:
        """When the stream stored it, UTC."""
        return self._received.time

    @property
    def message_id(self) -> str | None:
        """What its publisher called it."""
        return self._received.message_id

    @property
    def delivered(self) -> int:
        """1 the first time."""
        return self._received.delivered

    async def ack(self) -> None:
        """Dealt with. Should the word get lost, the message comes again."""
        await self._answer(self._ack())

    async def nak(self, delay: float) -> None:
        """Hand it back, to come again after `delay` seconds."""
        await self._answer(self._message.nak(delay))

    async def term(self) -> None:
        """Never again."""
        await self._answer(self._message.term())

    async def in_progress(self) -> None:
        """Start the acknowledgement wait anew."""
        await self._answer(self._message.in_progress())

    async def _ack(self) -> None:
        message = self._message
        if message.is_acked:
            raise MsgAlreadyAckdError(message)
        await send(message._client, message.reply, b"")  # noqa: SLF001 - as its own `ack` does
        message._ackd = True  # noqa: SLF001

    async def _answer(self, said: Awaitable[None]) -> None:
        try:
            await said
        except MsgAlreadyAckdError as error:
            raise RuntimeError(f"{self.subject}, delivery {self.delivered}: answered already") from error
        except TROUBLE as error:
            raise LogUnavailable(f"{self.subject}: {error!r}") from error
