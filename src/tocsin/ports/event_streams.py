"""Durables for the events of triggers, in streams of Tocsin or of others."""

from collections.abc import Collection, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from .durables import Delivery
from .event_log import Progress


@dataclass(frozen=True, slots=True)
class EventDurable:
    """The durable of one trigger. Names are those on the wire."""

    name: str
    stream: str
    subjects: tuple[str, ...]
    """Its filters."""
    is_queue: bool = False
    """Whether the stream keeps each message until it is acknowledged. The durable then has all of them, also older messages."""


class EventReader(Protocol):
    """Reads a durable. Several readers, also of other processes, share its messages."""

    async def take(self, limit: int, *, wait: float) -> Sequence[Delivery]:
        """Return up to `limit` messages; wait up to `wait` seconds for the first.

        Raises:
            LogUnavailable: the durable is gone, or the server did not answer.
        """
        ...


class EventStreams(Protocol):
    """Creates, removes and reads the durables of triggers."""

    @property
    def log_stream(self) -> str:
        """The name of the log on the wire."""
        ...

    @property
    def webhook_stream(self) -> str:
        """The name of the stream of requests to webhooks."""
        ...

    def webhook(self, durable: str) -> str:
        """Return the subject of the requests to a webhook.

        `durable`: the name of its trigger's durable.
        """
        ...

    async def create(self, durable: EventDurable) -> None:
        """Create a durable for the messages stored from now on, unless it exists.

        That of a queue also has older messages.

        Raises:
            RequestRefused: the stream does not exist, or has no such subject, or this user may not read it.
            LogUnavailable: the server did not answer.
        """
        ...

    async def remove(self, stream: str, name: str) -> None:
        """Remove a durable, unless it is gone.

        Raises:
            LogUnavailable: the server did not answer.
        """
        ...

    async def names(self, stream: str) -> Collection[str]:
        """Return the names of the durables of this installation's triggers.

        A stream that does not exist has none.

        Raises:
            LogUnavailable: the server did not answer.
        """
        ...

    async def progress(self, durable: EventDurable) -> Progress:
        """Return the progress of a durable, of all its readers.

        Raises:
            LogUnavailable: the durable is gone, or the server did not answer.
        """
        ...

    def reading(self, durable: EventDurable) -> AbstractAsyncContextManager[EventReader]:
        """Within the block, read a durable. Messages that were not handled are handed back."""
        ...
