"""Messages over core NATS, which no stream stores."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress

from nats.errors import Error as NatsError
from nats.errors import NoRespondersError
from nats.errors import TimeoutError as NatsTimeoutError

from ...ports import LogUnavailable
from .client.connection import Connection
from .client.connection_end import CLOSING_ERRORS
from .client.transport import Headers, Outgoing, Receive
from .client.wire import too_large


class CoreMessages:
    """Sends and receives messages of one connection.

    It raises `RequestRefused` for a message that is too large, and `LogUnavailable` without a connection.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def send(self, subject: str, body: bytes, headers: Headers | None = None) -> None:
        self.check(subject, body, headers)
        try:
            await self._connection.transport.send([Outgoing(subject, body, headers)])
        except CLOSING_ERRORS as error:
            raise LogUnavailable(f"{subject}: {error!r}") from error

    def check(self, subject: str, body: bytes, headers: Headers | None = None) -> None:
        """Check that a message can be sent."""
        client = self._connection.client
        if not client.is_connected:  # the client would keep it, and send it when it is old
            raise LogUnavailable(f"{subject}: there is no connection")
        if (refusal := too_large(Outgoing(subject, body, headers), client.max_payload)) is not None:
            raise refusal

    @asynccontextmanager
    async def listening(self, subject: str, receive: Receive) -> AsyncIterator[None]:
        """Within the block, pass on each message of a subject or filter."""
        subscription = await self._connection.transport.listen(subject, receive)
        try:
            yield
        finally:
            with suppress(*CLOSING_ERRORS):
                await subscription.unsubscribe()

    def bodies(self, subject: str, receive: Callable[[bytes], None]) -> AbstractAsyncContextManager[None]:
        """Within the block, pass on the body of each message of a subject."""
        return self.listening(subject, lambda _subject, _reply, body, _headers: receive(body))


async def is_heard(connection: Connection, subject: str, body: bytes = b"", *, wait: float) -> bool:
    """Return whether a process hears a subject, whose messages are not answered.

    If no process does, the server says so at once; otherwise nothing comes for `wait` seconds.
    """
    try:
        await connection.client.request(subject, body, timeout=wait)
    except NoRespondersError:
        return False
    except (TimeoutError, NatsTimeoutError):
        return True
    except NatsError as error:
        raise LogUnavailable(f"{subject}: {error!r}") from error
    return True
