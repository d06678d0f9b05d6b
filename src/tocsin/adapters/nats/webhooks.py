"""The queue of requests to webhooks, in a stream."""

from collections.abc import Mapping

from .client import wire
from .client.connection import Connection
from .client.names import Names


class NatsWebhookQueue:
    """Implement `ports.WebhookQueue`."""

    def __init__(self, connection: Connection, names: Names) -> None:
        self._connection = connection
        self._names = names

    async def store(self, durable: str, body: bytes, headers: Mapping[str, str], *, message_id: str) -> None:
        """See `WebhookQueue`."""
        await self._connection.store(self._names.webhook(durable), body, {**headers, wire.MESSAGE_ID: message_id})
