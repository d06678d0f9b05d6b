"""The queue of requests to webhooks, in a stream."""

from collections.abc import Mapping

from ...ports import LogUnavailable, RequestRefused
from .client import wire
from .client.connection import Connection
from .client.names import Names
from .client.transport import Outgoing


class NatsWebhookQueue:
    """Implement `ports.WebhookQueue`."""

    def __init__(self, connection: Connection, names: Names) -> None:
        self._connection = connection
        self._names = names

    async def store(self, durable: str, body: bytes, headers: Mapping[str, str], *, message_id: str) -> None:
        """See `WebhookQueue`.

        A full queue answers at once, because requests that wait for room would hold connections of the API.
        """
        subject, headers = self._names.webhook(durable), {**headers, wire.MESSAGE_ID: message_id}
        (reply,) = await self._connection.request_each([Outgoing(subject, body, headers)])
        result = wire.result_of(subject, reply)
        if isinstance(result, wire.StreamFull):
            raise RequestRefused(str(result), wire.FULL) from result
        if isinstance(result, LogUnavailable):  # the server may have a leader soon; the id makes a second copy harmless
            await self._connection.store(subject, body, headers)
        elif isinstance(result, Exception):
            raise result
