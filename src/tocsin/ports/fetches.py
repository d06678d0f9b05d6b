"""Messages between the API and the matcher, for workers over HTTP.

No stream stores them.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final, NamedTuple, Protocol, TypeAlias

from .agents import ReceiveBody

WEBHOOK_PATH: Final = "Tocsin-Webhook"
"""The header of a queued request with the path of its webhook."""
WEBHOOK_DELIVERY: Final = "Tocsin-Delivery"
"""The header of a queued request with its identity among those of its webhook."""
WEBHOOK_REGISTRATION: Final = "Tocsin-Registration"
"""The header of a queued request with the time at which its job was registered first."""


class WebhookQueue(Protocol):
    """Stores requests to webhooks until the event listener has handled them."""

    async def store(self, durable: str, body: bytes, headers: Mapping[str, str], *, message_id: str) -> None:
        """Store a request for the trigger with a durable, also before that durable exists.

        Requests with one `message_id` are stored once within two minutes.

        Raises:
            RequestRefused: the queue is full.
            LogUnavailable: the server did not answer, or there is no queue.
        """


# Submissions are for the screener only.
class Submission(NamedTuple):
    """A message that a user outside published for a stream."""

    subject: str
    """The relative subject under which it is to be stored."""
    body: bytes
    headers: Mapping[str, str]
    """All headers of its publisher, or the headers to store."""
    reply: str = ""
    """Where its publisher expects the answer; empty: it expects none."""


class Refusal(NamedTuple):
    """The answer to a message that no stream has."""

    code: int
    """As in HTTP: from 500 on, the publisher may send the message again."""
    reason: str


Answer: TypeAlias = bytes | Refusal
"""The answer of the stream as it is, also if it refuses the message; or the screener's."""


class ScreeningChannel(Protocol):
    """Submissions of one user, shared by all screeners: each submission reaches one of them.

    A message may be lost before it is stored. Then its publisher gets no answer.
    """

    def submissions(self, receive: Callable[[Submission], None]) -> AbstractAsyncContextManager[None]:
        """Within the block, pass each submission on; at its end, those that have arrived already."""

    async def store(self, submissions: Sequence[Submission]) -> list[Answer]:
        """Store messages in one write, and return the answer to each."""

    async def answer(self, submissions: Sequence[tuple[Submission, Answer]]) -> None:
        """Answer the publishers that expect it.

        The answers are lost if there is no connection.
        """


OpenScreening: TypeAlias = Callable[[str], AbstractAsyncContextManager[ScreeningChannel]]
"""Opens the channel of a user outside."""


class FetchChannel(Protocol):
    """Requests of gateways, the processes of the API, to all matchers, and their answers.

    Any message may be lost. An answer goes to a subject that the gateway's id names, never to a reply subject, which the sender
    of a request could choose. To send raises `LogUnavailable` without a connection, and `RequestRefused` if the message is
    too large for the server.
    """

    async def request(self, body: bytes) -> None:
        """Send a request to all matchers."""

    def requests(self, receive: ReceiveBody) -> AbstractAsyncContextManager[None]:
        """Within the block, pass each request on."""

    async def answer(self, gateway: str, body: bytes) -> None:
        """Send an answer to a gateway, whose id must be one token."""

    def answers(self, gateway: str, receive: ReceiveBody) -> AbstractAsyncContextManager[None]:
        """Within the block, pass on each answer to a gateway."""

    async def call_fetches(self) -> None:
        """Ask all gateways to send again what waits."""

    def calls(self, receive: Callable[[], None]) -> AbstractAsyncContextManager[None]:
        """Within the block, pass each such call on."""
