"""Streams and archive as a single log with its original order."""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from datetime import datetime
from heapq import heappop, heappush
from typing import Final

from .. import subjects
from ..ports import Extent, StoredLog, StoredMessage
from ..subjects import Stream
from .archive import Archive, Segment

PORTION: Final = 1_000
"""Maximum of messages in a portion, unless one segment yields more at once."""


class CombinedLog:
    """Implements `ports.StoredLog` over the streams and their archive."""

    def __init__(self, streams: StoredLog, archive: Archive) -> None:
        """`streams`: the log without the archive."""
        self._streams = streams
        self._archive = archive

    async def archived(self, stream: Stream) -> int:
        """Return the sequence up to which messages may be in the archive alone (0: none)."""
        state, _ = await self._archive.state()
        return state.upto.get(stream, 0)

    async def may_be_archived(self, scope: str) -> bool:
        """Return whether a manifest allows for facts of an execution or dead letter."""
        kind, _, entity, *_ = scope.split(".")
        return any(segment.may_hold(kind, entity) for segment in await self._archive.segments())

    async def archived_lines(self, execution_id: str) -> list[StoredMessage]:
        """Return the archived lines of an execution, oldest first."""
        segments = await self._archive.segments()
        return [line for segment in segments for line in await self._archive.lines(segment, execution_id)]

    async def extent(self, stream: Stream) -> Extent:
        """Return the extent of a stream, archived messages included."""
        segments = await self._archive.segments()
        extent = await self._streams.extent(stream)
        spans = [segment.streams[stream] for segment in segments if stream in segment.streams]
        first = min([span.first for span in spans] + ([extent.first] if extent.messages else []), default=extent.first)
        return Extent(first, extent.last, extent.messages + sum(span.messages for span in spans))

    async def first(self, stream: Stream) -> int:
        """Return the sequence of the first message that is not in the archive alone."""
        return await self._streams.first(stream)

    async def messages(
        self, stream: Stream, *filters: str, after: int | datetime = 0, upto: int
    ) -> AsyncGenerator[Sequence[StoredMessage], None]:
        """Yield every message that matches, up to a sequence.

        The archiver may run meanwhile. It archives messages before it purges them, so messages that a portion of the stream
        lacks are in the segments that exist after the portion was read.
        """
        archived = _Archived(self._archive, stream, filters, after, upto)
        await archived.look()
        async with aclosing(self._streams.messages(stream, *filters, after=after, upto=upto)) as portions:
            async for portion in portions:
                await archived.look()
                messages: list[StoredMessage] = []
                for message in portion:
                    async for some in archived.before(message.sequence):
                        if len(messages) + len(some) > PORTION:
                            yield [*messages, *some]
                            messages = []
                        else:
                            messages += some
                    messages.append(message)
                    archived.position = message.sequence
                yield messages
        await archived.look()
        async for some in archived.before(upto + 1):
            yield some


class _Archived:
    """The archived part of a selection, in stream order; segments are read lazily."""

    def __init__(
        self, archive: Archive, stream: Stream, filters: Sequence[str], after: int | datetime, upto: int
    ) -> None:
        self._archive = archive
        self._stream = stream
        self._filters = filters
        self._since = after if isinstance(after, datetime) else None
        self._upto = upto
        is_narrow = bool(filters) and all(map(_names_one, filters))
        self._meant = {(pattern.split(".")[0], pattern.split(".")[2]) for pattern in filters} if is_narrow else set()
        self._head: str | None = None
        self._waiting: list[tuple[int, str, Segment]] = []
        self._ready: list[int] = []
        self._messages: dict[int, StoredMessage] = {}
        self.position = after if isinstance(after, int) else 0
        """Sequence up to which all messages were yielded."""

    async def look(self) -> None:
        """Look for new segments."""
        state, _ = await self._archive.state()
        if state.head == self._head:
            return
        for segment in await self._archive.segments(behind=self._head):
            span = segment.streams.get(self._stream)
            if span is not None and span.first <= self._upto and span.last > self.position and self._may_match(segment):
                heappush(self._waiting, (span.first, segment.name, segment))
        self._head = state.head

    async def before(self, sequence: int) -> AsyncIterator[list[StoredMessage]]:
        """Yield messages before a sequence that were not yielded yet."""
        while self._waiting and self._waiting[0][0] < sequence:
            first, _, segment = heappop(self._waiting)
            if some := self._released(first):
                yield some
            for message in await self._archive.messages(segment):
                if self._is_wanted(message) and message.sequence not in self._messages:
                    self._messages[message.sequence] = message
                    heappush(self._ready, message.sequence)
        if some := self._released(sequence):
            yield some

    def _released(self, before: int) -> list[StoredMessage]:
        messages: list[StoredMessage] = []
        while self._ready and self._ready[0] < before:
            message = self._messages.pop(heappop(self._ready))
            if message.sequence > self.position:  # otherwise the stream still held it and yielded it
                messages.append(message)
                self.position = message.sequence
        return messages

    def _may_match(self, segment: Segment) -> bool:
        if self._since is not None and segment.until < self._since:
            return False
        return not self._meant or any(segment.may_hold(kind, entity) for kind, entity in self._meant)

    def _is_wanted(self, message: StoredMessage) -> bool:
        if message.stream is not self._stream or not self.position < message.sequence <= self._upto:
            return False
        if self._since is not None and message.time < self._since:
            return False
        return not self._filters or any(subjects.matches(matches, message.subject) for matches in self._filters)


def _names_one(subject_filter: str) -> bool:
    kind, *rest = subject_filter.split(".")
    return kind in {"execution", "dead-letter"} and len(rest) > 1 and rest[1] not in {"*", ">"}
