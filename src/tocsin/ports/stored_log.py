"""The log as stored in streams and archive, and the removal of archived messages."""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Protocol

from ..domain.events import Message, Recorded
from ..subjects import DecodeError, Stream
from .event_log import InputLog

FIRST_BOUNDED_PAGE: Final = 16
"""Messages of the first page of a read that ends at a sequence."""
PAGE_GROWTH: Final = 4
"""Each of its pages is as many times larger than the last. So at most about three times what it yields is read after its end."""


async def pages(
    log: InputLog,
    subject: str,
    *,
    after: int = 0,
    until: int | None = None,
    limit: int = 1_000,
) -> AsyncIterator[Sequence[Recorded[Message]]]:
    """Yield the readable messages of a subject, at most `limit` at a time, oldest first.

    A short page is not the end, because a page ends before an unreadable message. With `until`,
    the last sequence to yield, pages begin small, so that little is read after it.
    """
    size = limit if until is None else min(limit, FIRST_BOUNDED_PAGE)
    while until is None or after < until:
        try:
            page = await log.read(subject, after=after, limit=size)
        except DecodeError as error:
            if error.sequence is None:
                raise
            after = error.sequence
            continue
        if not page:
            return
        after, size = page[-1].sequence, min(limit, size * PAGE_GROWTH)
        wanted = page if until is None else [recorded for recorded in page if recorded.sequence <= until]
        if wanted:
            yield wanted


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message as stored, not decoded, for archives and audits."""

    stream: Stream
    sequence: int
    time: datetime
    """The time (UTC) at which the log stored the message."""
    subject: str
    """The relative subject."""
    headers: Mapping[str, str]
    body: bytes
    cause: str = ""
    """As in `Encoded`."""


@dataclass(frozen=True, slots=True)
class Extent:
    """The extent of a stream.

    It holds `messages` messages in `size` bytes, with sequences from `first` to `last` (0: nothing was ever stored).
    """

    first: int
    last: int
    messages: int
    size: int = field(default=0, compare=False)


class StoredLog(Protocol):
    """The stored streams, or the streams and their archive as one log."""

    async def archived_lines(self, execution_id: str) -> Sequence[StoredMessage]:
        """Return the lines of an execution that the archive keeps, oldest first."""

    async def extent(self, stream: Stream) -> Extent:
        """Return the current extent of a stream."""

    def messages(
        self, stream: Stream, *filters: str, after: int | datetime = 0, upto: int
    ) -> AsyncGenerator[Sequence[StoredMessage], None]:
        """Yield all matching messages, oldest first, and stop; without filters, the whole stream.

        It starts after the sequence `after`, or with messages stored at or after that instant (UTC), and stops at the
        sequence `upto`. It never ends before a message that the stream's leader has.

        Raises:
            StaleRead: the replicas that were read lag.
        """


class StreamPurge(Protocol):
    """The removal of archived messages from the streams."""

    async def decided(self, stream: Stream) -> int:
        """Return the sequence up to which every durable of a stream has handled its messages."""

    def obstacle(self) -> str | None:
        """Return the reason why nothing may be purged, for the operator; None: purging is safe."""

    async def purge(self, subject: str, *, upto: int) -> None:
        """Remove matching messages up to a sequence; removing absent messages is no error."""


class ArchiveStore(Protocol):
    """The objects of the archive; they are never changed or removed."""

    async def put(self, name: str, body: bytes) -> None:
        """Store a whole object or nothing; storing the same object again is no error."""

    async def get(self, name: str) -> bytes | None:
        """Return an object; None: it does not exist."""
