"""Durable consumers and their deliveries."""

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from ..subjects import Stream


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a durable in its stream."""

    floor: int
    """The sequence up to which the durable delivers nothing any more.

    Everything up to it was acknowledged, or precedes the start of the durable.
    """
    is_idle: bool
    """True: no message is waiting for delivery or acknowledgement."""


@dataclass(frozen=True, slots=True)
class EventDurable:
    """The durable of one trigger. Names are as on the wire."""

    name: str
    stream: str
    subjects: tuple[str, ...]
    """Its filters."""
    is_queue: bool = False
    """Whether the stream keeps each message until it is acknowledged. The durable then has all of them, also older messages."""


class EventReader(Protocol):
    """Reads a durable. Several readers, also of other processes, share its messages."""

    async def take(self, limit: int, *, wait: float) -> "Sequence[Delivery]":
        """Return up to `limit` messages; wait up to `wait` seconds for the first."""


class EventStreams(Protocol):
    """Creates, removes and reads the durables of triggers.

    A request raises `LogUnavailable` if the server did not answer, or the durable to read is gone.
    """

    @property
    def log_stream(self) -> str:
        """The name of the log on the wire."""

    @property
    def webhook_stream(self) -> str:
        """The name of the stream of requests to webhooks."""

    def webhook(self, durable: str) -> str:
        """Return the subject of the requests to a webhook.

        `durable`: the name of its trigger's durable.
        """

    async def create(self, durable: EventDurable) -> None:
        """Create a durable for the messages stored from now on, unless it exists.

        A durable of a queue also has older messages.

        Raises:
            RequestRefused: the stream does not exist, or has no such subject, or this user may not read it.
        """

    async def remove(self, stream: str, name: str) -> None:
        """Remove a durable, unless it is gone."""

    async def names(self, stream: str) -> Collection[str]:
        """Return the names of the durables of this installation's triggers.

        A stream that does not exist has none.
        """

    async def progress(self, durable: EventDurable) -> Progress:
        """Return the progress of a durable, of all its readers."""

    def reading(self, durable: EventDurable) -> AbstractAsyncContextManager[EventReader]:
        """Within the block, read a durable. Messages that were not handled are handed back."""


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

    @property
    def body(self) -> bytes:
        """The body as published."""

    @property
    def sequence(self) -> int:
        """The position in the stream."""

    @property
    def time(self) -> datetime:
        """The time (UTC) at which the log stored the message."""

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers as published."""

    @property
    def message_id(self) -> str | None:
        """The id that the publisher gave the message."""

    @property
    def delivered(self) -> int:
        """The number of this delivery, counted from 1."""

    async def ack(self) -> None:
        """Acknowledge the message: it is handled."""

    async def nak(self, delay: float) -> None:
        """Return the message, to be delivered again after `delay` seconds."""

    async def in_progress(self) -> None:
        """Restart the acknowledgement wait, because the work continues."""

    @staticmethod
    async def ack_many(deliveries: "Sequence[Any]") -> None:
        """Acknowledge several messages of this class; call it through `acknowledge`."""


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
