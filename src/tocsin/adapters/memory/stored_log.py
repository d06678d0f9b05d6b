"""The stored messages of the streams in memory."""

from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from typing import Final

from ... import subjects
from ...ports import Extent, StoredMessage
from ...subjects import Stream
from .event_log import InMemoryEventLog
from .stored_stream import Entry

PORTION: Final = 1_000
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
        entries = list(stored.behind(0))
        first = entries[0].sequence if entries else stored.last_sequence + 1
        return Extent(first, stored.last_sequence, len(entries))

    async def messages(
        self, stream: Stream, *filters: str, after: int | datetime = 0, upto: int
    ) -> AsyncIterator[Sequence[StoredMessage]]:
        """Yield all matching messages up to a sequence."""
        entries = [
            entry
            for entry in self._log.stream(stream).behind(after if isinstance(after, int) else 0)
            if entry.sequence <= upto
            and (isinstance(after, int) or entry.time >= after)
            and (not filters or any(subjects.matches(name, entry.subject) for name in filters))
        ]
        for i in range(0, len(entries), PORTION):
            yield [_stored(stream, entry) for entry in entries[i : i + PORTION]]


def _stored(stream: Stream, entry: Entry) -> StoredMessage:
    headers = {} if entry.message_id is None else {MESSAGE_ID: entry.message_id}
    return StoredMessage(stream, entry.sequence, entry.time, entry.subject, headers, entry.body)
