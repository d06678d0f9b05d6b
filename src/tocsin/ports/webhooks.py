"""The queue of requests to webhooks, between the API and the event listener."""

from collections.abc import Mapping
from typing import Final, Protocol

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
        ...
