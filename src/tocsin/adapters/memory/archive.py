"""The archive in memory: stored messages, archive objects and the removal of archived messages."""

from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from typing import Final

from ... import subjects
from ...ports import Extent, StoredMessage
from ...subjects import Stream
from .event_log import InMemoryEventLog
from .stored_stream import Entry

MESSAGES_AT_ONCE: Final = 1_000
MESSAGE_ID: Final = "Nats-Msg-Id"


class InMemoryStoredLog:
    """Implement `ports.StoredLog` over an `InMemoryEventLog`."""

    def __init__(self, log: InMemoryEventLog) -> None:
        """Read the streams of `log`."""
        self._log = log

    async def archived(self, stream: Stream) -> int:  # noqa: ARG002 - the port's parameter
        """Return 0: the streams alone have no archive."""
        return 0

    async def may_be_archived(self, scope: str) -> bool:  # noqa: ARG002 - the port's parameter
        """Return False: the streams alone have no archive."""
        return False

    async def extent(self, stream: Stream) -> Extent:
        """Return the extent of a stream."""
        stored = self._log.stream(stream)
        entries = list(stored.entries_after(0))
        first = entries[0].sequence if entries else stored.last_sequence + 1
        size = sum(len(entry.subject) + len(entry.body) for entry in entries)
        return Extent(first, stored.last_sequence, len(entries), size)

    async def messages(
        self, stream: Stream, *filters: str, after: int | datetime = 0, upto: int
    ) -> AsyncIterator[Sequence[StoredMessage]]:
        """Yield all matching messages up to a sequence."""
        entries = [
            entry
            for entry in self._log.stream(stream).entries_after(after if isinstance(after, int) else 0)
            if entry.sequence <= upto
            and (isinstance(after, int) or entry.time >= after)
            and (not filters or any(subjects.matches(name, entry.subject) for name in filters))
        ]
        for i in range(0, len(entries), MESSAGES_AT_ONCE):
            yield [_stored(stream, entry) for entry in entries[i : i + MESSAGES_AT_ONCE]]


def _stored(stream: Stream, entry: Entry) -> StoredMessage:
    headers = {} if entry.message_id is None else {MESSAGE_ID: entry.message_id}
    return StoredMessage(stream, entry.sequence, entry.time, entry.subject, headers, entry.body)


class InMemoryArchiveStore:
    """Implement `ports.ArchiveStore`."""

    def __init__(self) -> None:
        """Start empty."""
        self._objects: dict[str, bytes] = {}

    async def put(self, name: str, body: bytes) -> None:
        """Store an object."""
        self._objects.setdefault(name, body)

    async def get(self, name: str) -> bytes | None:
        """Return an object, or None if it does not exist."""
        return self._objects.get(name)


class InMemoryStreamPurge:
    """Implement `ports.StreamPurge` over an `InMemoryEventLog`."""

    def __init__(self, log: InMemoryEventLog) -> None:
        """Purge the streams of `log`."""
        self._log = log

    async def decided(self, stream: Stream) -> int:
        """Return the sequence up to which every durable is done."""
        end = self._log.stream(stream).last_sequence
        floors = [progress.floor for progress in self._log.progress_of_all(stream) if not progress.is_idle]
        return min([end, *floors])

    def obstacle(self) -> str | None:
        """Return None: purging is always possible."""
        return None

    async def purge(self, subject: str, *, upto: int) -> None:
        """Remove matching messages up to a sequence."""
        stream = self._log.stream(subjects.stream_of(subject))
        for entry in stream.matching((subject,), 0):
            if entry.sequence <= upto:
                stream.remove(entry.sequence)
