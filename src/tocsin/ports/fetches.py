"""Messages between the API and the matcher, for workers over HTTP.

No stream stores them.
"""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol, TypeAlias

ReceiveBody: TypeAlias = Callable[[bytes], None]
"""Takes the body of a message; it returns at once."""


class FetchChannel(Protocol):
    """Requests of gateways, the processes of the API, to all matchers, and their answers.

    Any message may be lost. An answer goes to a subject that the gateway's id names, never to a reply subject, which the sender
    of a request could choose.
    """

    async def request(self, body: bytes) -> None:
        """Send a request to all matchers.

        Raises:
            RequestRefused: it is too large for the server.
            LogUnavailable: there is no connection.
        """
        ...

    def requests(self, receive: ReceiveBody) -> AbstractAsyncContextManager[None]:
        """Within the block, pass each request on."""
        ...

    async def answer(self, gateway: str, body: bytes) -> None:
        """Send an answer to a gateway, whose id must be one token.

        Raises:
            RequestRefused: it is too large for the server.
            LogUnavailable: there is no connection.
        """
        ...

    def answers(self, gateway: str, receive: ReceiveBody) -> AbstractAsyncContextManager[None]:
        """Within the block, pass on each answer to a gateway."""
        ...

    async def call_fetches(self) -> None:
        """Ask all gateways to send again what waits.

        Raises:
            LogUnavailable: there is no connection.
        """
        ...

    def calls(self, receive: Callable[[], None]) -> AbstractAsyncContextManager[None]:
        """Within the block, pass each such call on."""
        ...
