"""Durable consumers and their deliveries."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from ..subjects import Stream


@dataclass(frozen=True, slots=True)
class DurableSpec:
    """A durable consumer, as data; `filters` are relative subjects of its only stream."""

    name: str
    stream: Stream
    filters: tuple[str, ...]
    ack_wait: float = 30.0
    """Seconds after which an unacknowledged message is delivered again."""
    max_ack_pending: int = 20_000
    """Maximum number of unacknowledged messages, over all consumers of the durable."""


class Delivery(Protocol):
    """A message as a durable delivers it."""

    @property
    def subject(self) -> str:
        """The relative subject."""
        ...

    @property
    def body(self) -> bytes:
        """The body as published."""
        ...

    @property
    def sequence(self) -> int:
        """The position in the stream."""
        ...

    @property
    def time(self) -> datetime:
        """The time (UTC) at which the log stored the message."""
        ...

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers as published."""
        ...

    @property
    def message_id(self) -> str | None:
        """The id that the publisher gave the message."""
        ...

    @property
    def delivered(self) -> int:
        """The number of this delivery, counted from 1."""
        ...

    async def ack(self) -> None:
        """Acknowledge the message: it is handled."""
        ...

    async def nak(self, delay: float) -> None:
        """Return the message, to be delivered again after `delay` seconds."""
        ...

    async def term(self) -> None:
        """Terminate the message: it is never delivered again."""
        ...

    async def in_progress(self) -> None:
        """Restart the acknowledgement wait, because the work continues."""
        ...

    @staticmethod
    async def ack_many(deliveries: "Sequence[Any]") -> None:
        """Acknowledge several messages of this class; call it through `acknowledge`."""
        ...


async def acknowledge(deliveries: Sequence[Delivery]) -> None:
    """Acknowledge several messages at once: they are handled.

    Raises:
        LogUnavailable: some acknowledgements may not be sent; their messages are delivered again.
        RuntimeError: a message is settled already.
    """
    for kind in {type(delivery): None for delivery in deliveries}:
        await kind.ack_many([delivery for delivery in deliveries if type(delivery) is kind])


async def acknowledge_each(deliveries: Sequence[Delivery]) -> None:
    """Implement `Delivery.ack_many` by one acknowledgement for each message."""
    for delivery in deliveries:
        await delivery.ack()
