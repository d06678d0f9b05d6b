"""The stored log of commits and its inputs, with their archive."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from datetime import datetime

from .. import subjects
from ..archive.commit_reader import CommitReader
from ..archive.log_archive import ArchivedMessage, LogArchive
from ..ports import Extent, KeptPart, StoredLog, StoredMessage
from ..subjects import DECISION_STREAMS, INPUT_STREAMS, STREAM_SUBJECTS, Stream
from .scope_reads import ScopeReads, SharedEvent

PORTION = 1_000


class CommitStoredLog:
    """Implement `ports.StoredLog`: events of commits, and the other streams of another log.

    Readers of events always get the archived events too, so that no event counts as archived.
    """

    def __init__(
        self,
        streams: StoredLog,
        commits: CommitReader,
        archive: LogArchive,
        end: Callable[[], Awaitable[int]],
        reads: Callable[[], Awaitable[ScopeReads]] | None = None,
    ) -> None:
        """`streams`: the log without the archive. `end` returns the number of the newest event.

        `reads`: for events that the history finds by an index, without the server's times; None: all are read from the log.
        """
        self._reads = reads
        self._streams = streams
        self.commits = commits
        self._archive = archive
        self._end = end

    async def archived_lines(self, execution_id: str) -> Sequence[StoredMessage]:
        return [_stored(Stream.OUTPUT, line) for line in await self._archive.lines(execution_id)]

    async def extent(self, stream: Stream) -> Extent:
        """Return the extent of a stream, archived messages included; events share their numbers."""
        if stream in DECISION_STREAMS:
            end = await self._end()
            return Extent(1, end, end)
        extent = await self._streams.extent(stream)
        segments = await self._archive.segments(stream.value) if stream in INPUT_STREAMS else ()
        if not segments:
            return extent
        last = segments[-1].last
        in_stream = extent.messages if extent.first > last else max(extent.last - last, 0)
        messages = sum(segment.messages for segment in segments) + in_stream
        return Extent(segments[0].first, extent.last, messages, extent.size)

    async def messages(
        self, stream: Stream, *filters: str, after: int | datetime = 0, upto: int
    ) -> AsyncGenerator[Sequence[StoredMessage], None]:
        if stream in INPUT_STREAMS:
            pages = self._inputs(stream, filters, after, upto)
        elif stream not in DECISION_STREAMS:
            pages = self._streams.messages(stream, *filters, after=after, upto=upto)
        elif self._reads is None or KeptPart.of(*filters) is None:
            pages = self._events(stream, after if isinstance(after, int) else 0, upto)
        else:
            pages = _pages(stream, (await self._reads()).past(filters, after=after, upto=upto))
        takes = subjects.any_of(filters or STREAM_SUBJECTS[stream])
        async with aclosing(pages) as all_of_them:
            async for page in all_of_them:
                wanted = [
                    message
                    for message in page
                    if (message.sequence > after if isinstance(after, int) else message.time >= after)
                    and takes(message.subject)
                ]
                if wanted:
                    yield wanted

    async def _events(self, stream: Stream, after: int, upto: int) -> AsyncGenerator[list[StoredMessage], None]:
        portion: list[StoredMessage] = []
        async with aclosing(self.commits.events(after=after, upto=upto)) as events:
            async for event in events:
                if event.stream is stream:
                    portion.append(event)
                if len(portion) >= PORTION:
                    yield portion
                    portion = []
        if portion:
            yield portion

    async def _inputs(
        self, stream: Stream, filters: Sequence[str], after: int | datetime, upto: int
    ) -> AsyncGenerator[Sequence[StoredMessage], None]:
        """Yield the messages of a stream, the archived messages first.

        The archiver may run meanwhile: a message that is missing in a portion of the stream is in the archive once the portion was read.
        """
        place, is_of_time = (0, True) if isinstance(after, datetime) else (after, False)
        for segment in await self._archive.segments(stream.value, after=place):
            place = segment.last
            if not (is_of_time and isinstance(after, datetime) and segment.until < after):
                yield [_stored(stream, each) for each in await self._archive.messages(segment) if each.sequence <= upto]
        begin = after if is_of_time else place
        async with aclosing(self._streams.messages(stream, *filters, after=begin, upto=upto)) as pages:
            async for page in pages:
                async for missing in self._archive.read(stream.value, after=place, upto=page[0].sequence - 1):
                    yield [_stored(stream, each) for each in missing]
                yield [message for message in page if message.sequence > place]
                place = max(place, page[-1].sequence)
        async for missing in self._archive.read(stream.value, after=place, upto=upto):
            yield [_stored(stream, each) for each in missing]


async def _pages(
    stream: Stream, events: AsyncGenerator[SharedEvent, None]
) -> AsyncGenerator[Sequence[StoredMessage], None]:
    portion: list[StoredMessage] = []
    async with aclosing(events):
        async for event in events:
            portion.append(StoredMessage(stream, event.sequence, event.time, event.subject, {}, bytes(event.body)))
            if len(portion) >= PORTION:
                yield portion
                portion = []
    if portion:
        yield portion


def _stored(stream: Stream, message: ArchivedMessage) -> StoredMessage:
    return StoredMessage(stream, message.sequence, message.time, message.subject, message.headers, message.body)
