"""The log as it lies in the streams and in the archive, and what makes room there."""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from ..subjects import Stream


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message as it is stored, unread: for whoever keeps the log elsewhere, or proves it."""

    stream: Stream
    sequence: int
    time: datetime
    """When the log stored it, UTC."""
    subject: str
    """Relative."""
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Extent:
    """What a stream holds: `messages` of them, under sequences from `first` to `last` (0: none was ever stored)."""

    first: int
    last: int
    messages: int


class StoredLog(Protocol):
    """The streams as they are stored; or the streams and what was archived of them, as one."""

    async def archived(self, stream: Stream) -> int:
        """The sequence up to which some of a stream may be in the archive alone (0: none is)."""
        ...

    async def may_be_archived(self, scope: str) -> bool:
        """Whether the archive may hold something of an execution's or a dead letter's scope; False is certain, and cheap."""
        ...

    async def extent(self, stream: Stream) -> Extent:
        """What a stream holds now."""
        ...

    def messages(
        self, stream: Stream, *filters: str, after: int | datetime = 0, upto: int
    ) -> AsyncIterator[Sequence[StoredMessage]]:
        """Everything that matches, oldest first, and then the end; without filters the whole stream.

        From behind the sequence `after`, or from what was stored at that instant (UTC) or later, to the sequence `upto`.
        """
        ...


class StreamPurge(Protocol):
    """Taking out of the streams what is kept elsewhere."""

    async def decided(self, stream: Stream) -> int:
        """The sequence up to which every durable of a stream has dealt with what it was given: it comes to none again."""
        ...

    def obstacle(self) -> str | None:
        """Why nothing may be purged, for whoever operates this; None: nothing is in the way."""
        ...

    async def purge(self, subject: str, *, upto: int) -> None:
        """Remove what matches a subject or filter, up to a sequence. Removing what is absent is no error."""
        ...


class ArchiveStore(Protocol):
    """Where the objects of the archive are kept. None is ever changed or removed."""

    async def put(self, name: str, body: bytes) -> None:
        """Keep an object, whole or not at all. The same object again is no error."""
        ...

    async def get(self, name: str) -> bytes | None:
        """An object; None: there is none of that name."""
        ...
