"""Sending and receiving by a NATS client, with the public methods of nats-py.

`fast_client` implements the same with private names of nats-py, for a third of the CPU time.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol, TypeAlias

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import MsgAlreadyAckdError

Headers: TypeAlias = dict[str, str]
Receive: TypeAlias = Callable[[str, str, bytes, Mapping[str, str] | None], None]
"""Takes the subject, the reply subject, the body and the headers of a message; it must return at once."""


SERVER_REPLIES: Final = "_R_."
"""The beginning of the reply subjects that the server makes for requests of other accounts. No client may choose one."""


class Outgoing(NamedTuple):
    """A message to send. The names of `headers` must be the tokens of `wire`."""

    subject: str
    body: bytes = b""
    headers: Headers | None = None
    reply: str = ""


class Transport(Protocol):
    """Sends and receives messages of one client, which may be shared."""

    async def send(self, messages: Sequence[Outgoing]) -> None:
        """Publish messages in order."""

    async def listen(self, subject: str, receive: Receive, *, queue: str = "") -> Subscription:
        """Subscribe, and call `receive` for each message in order.

        With `queue`, a message reaches a single subscription of that queue group.

        Its errors go to the client's `error_cb`. The subscription is in the client's buffer before this yields.
        """

    async def acknowledge(self, messages: Sequence[Msg]) -> None:
        """Acknowledge delivered messages.

        Raises:
            MsgAlreadyAckdError: a message is settled already; then none is acknowledged.
        """


class PublicTransport:
    """Implement `Transport` by public methods of nats-py."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def send(self, messages: Sequence[Outgoing]) -> None:
        for subject, body, headers, reply in messages:
            await self._client.publish(subject, body, reply=reply, headers=headers)

    async def listen(self, subject: str, receive: Receive, *, queue: str = "") -> Subscription:
        async def pass_on(message: Msg) -> None:
            receive(message.subject, message.reply, message.data, message.headers)

        return await self._client.subscribe(subject, queue=queue, cb=pass_on)

    async def acknowledge(self, messages: Sequence[Msg]) -> None:
        check_unsettled(messages)
        for message in messages:
            await message.ack()


def check_unsettled(messages: Sequence[Msg]) -> None:
    """Reject messages if any is settled already."""
    for message in messages:
        if message.is_acked:
            raise MsgAlreadyAckdError(message)
