"""Durables for the events of triggers, in memory."""

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final

from ...ports import (
    DurableSpec,
    EventDurable,
    EventReader,
    LogUnavailable,
    Progress,
    RequestRefused,
)
from ...subjects import Stream, matches
from .durable import InMemoryDurable
from .event_log import InMemoryEventLog
from .stored_stream import StoredStream

MAX_ACK_PENDING: Final = 1_000


class InMemoryEventStreams:
    """Implement `ports.EventStreams`, with streams of programs that exist as long as the process."""

    def __init__(self, log: InMemoryEventLog, opened: Mapping[str, Sequence[str]]) -> None:
        """`opened`: the subjects of each stream of programs that triggers may name."""
        self._log = log
        self._opened = opened
        self._streams = {name: StoredStream(log.clock) for name in opened}
        self._durables: dict[tuple[str, str], InMemoryDurable] = {}

    @property
    def log_stream(self) -> str:
        return str(Stream.LOG)

    @property
    def webhook_stream(self) -> str:
        """See `EventStreams`; it does not exist, because no API receives requests."""
        return "WEBHOOKS"

    def webhook(self, durable: str) -> str:
        return f"webhook.{durable}"

    def publish(self, subject: str, body: bytes, headers: Mapping[str, str] | None = None) -> int:
        """Store a message in each stream that is open for its subject; return their number."""
        streams = [
            stream for stream, filters in self._opened.items() if any(matches(each, subject) for each in filters)
        ]
        for stream in streams:
            self._streams[stream].store(subject, body, headers=headers)
        return len(streams)

    @property
    def is_idle(self) -> bool:
        """Whether no durable has anything left to deliver or to settle."""
        return all(durable.is_idle for durable in self._durables.values())

    async def create(self, durable: EventDurable) -> None:
        stream = self._streams.get(durable.stream)
        if stream is None:
            raise RequestRefused(f"{durable.stream}: this stream does not exist", "stream not found")
        key = durable.stream, durable.name
        if key not in self._durables:
            # The spec names a stream of Tocsin; only the messages of `stream` are read.
            spec = DurableSpec(durable.name, Stream.LOG, durable.subjects, max_ack_pending=MAX_ACK_PENDING)
            self._durables[key] = InMemoryDurable(stream, spec, self._log.clock, after=stream.last_sequence)

    async def remove(self, stream: str, name: str) -> None:
        self._durables.pop((stream, name), None)

    async def names(self, stream: str) -> Collection[str]:
        return [name for of, name in self._durables if of == stream]

    async def progress(self, durable: EventDurable) -> Progress:
        return self._durable(durable).progress

    @asynccontextmanager
    async def reading(self, durable: EventDurable) -> AsyncIterator[EventReader]:
        yield self._durable(durable)

    def _durable(self, durable: EventDurable) -> InMemoryDurable:
        try:
            return self._durables[durable.stream, durable.name]
        except KeyError:
            raise LogUnavailable(f"{durable.stream}: the durable {durable.name} is gone") from None
