"""The archive of the log of commits and its inputs, as the streams stored them.

A segment holds messages of one source that follow each other, byte for byte: the commits of a partition, or a stream of inputs. It is two objects of
a store: its messages, compressed, and a manifest with their range, their digest and the segment before. One key in KV `cursors`, changed by
compare-and-set, names the newest segment of each source, so that a crash leaves a whole segment or none. The manifest of commits has the head of the
chain after them, so that a reader can begin there. Commits keep their proofs: a reader with the key verifies a segment without a server.

A message is a line of JSON with its sequence, time, size, subject and headers; its body of that size follows, and a line feed.
"""

import gzip
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from datetime import datetime
from hashlib import sha256
from typing import Final

import msgspec

from ..domain.commit import LogHead
from ..domain.errors import TocsinError
from ..ports import ArchiveStore, Projections
from ..subjects import LOG_ARCHIVE, Bucket, Stream

LINES: Final = "output."
"""The beginning of the subjects of lines."""


class ArchiveDamaged(TocsinError):
    """A segment is missing or differs from what was written."""

    code = "archive-damaged"


def commits_of(partition: int) -> str:
    """Return the source of a partition's commits; inputs have the name of their stream."""
    return f"commits.{partition}"


class ArchivedMessage(msgspec.Struct, frozen=True):
    """A message as its stream stored it. Commits have no subject and no headers here."""

    sequence: int
    time: datetime
    body: bytes
    subject: str = ""
    headers: dict[str, str] = {}


class Origin(msgspec.Struct, frozen=True):
    """The installation and the version that wrote a segment."""

    installation: str
    root: str
    version: str


class Segment(msgspec.Struct, frozen=True, omit_defaults=True):
    """The manifest of a segment.

    Attributes:
        source: the stream or partition of its messages.
        index: its place among the segments of its source, from 1.
        first: the sequence of its first message.
        last: the sequence of its last message.
        messages: the number of its messages.
        since: the time (UTC) of the first.
        until: the time (UTC) of the last.
        sha256: the digest of the object with its messages.
        origin: the installation and the version that wrote it.
        head: of commits, the end of the chain after the last.
        ids: of lines of handlers, the smallest and the greatest id of their executions.
        previous: the segment before; None: it is the first.
        previous_sha256: the digest of the manifest of that segment.
    """

    source: str
    index: int
    first: int
    last: int
    messages: int
    since: datetime
    until: datetime
    sha256: str
    origin: Origin
    head: LogHead | None = None
    ids: tuple[str, str] | None = None
    previous: str | None = None
    previous_sha256: str | None = None

    @property
    def name(self) -> str:
        """The name of its objects, without the ending."""
        return f"{self.source}-{self.index:08}-{self.sha256[:16]}"


class Newest(msgspec.Struct, frozen=True):
    """The newest segment of a source, its manifest's digest, and its last message's sequence."""

    segment: str
    sha256: str
    last: int


class Place(msgspec.Struct, frozen=True):
    """A follower's newest event by number, and since when (UTC) it stands still."""

    number: int
    since: datetime


class Failure(msgspec.Struct, frozen=True):
    """The reason why the archiver archives nothing, and the time (UTC) of its first failure."""

    since: datetime
    reason: str


class LogArchiveState(msgspec.Struct, frozen=True):
    """Progress of the archive.

    Attributes:
        newest: the newest segments by source.
        places: the places of followers, as the archiver saw them.
        failure: why the newest run failed; None: it did not.
    """

    newest: dict[str, Newest] = {}
    places: dict[str, Place] = {}
    failure: Failure | None = None

    def last(self, source: str) -> int:
        """Return the sequence up to which a source is archived; 0: nothing is."""
        newest = self.newest.get(source)
        return 0 if newest is None else newest.last


class LogArchive:
    """The archive of one installation. An object that is missing or changed raises `ArchiveDamaged`."""

    def __init__(self, store: ArchiveStore, projections: Projections) -> None:
        """`projections` holds the state."""
        self._store = store
        self._projections = projections
        self._segments: dict[str, tuple[Segment, bytes]] = {}  # a manifest never changes

    async def state(self) -> tuple[LogArchiveState, int]:
        entry = await self._projections.get(Bucket.CURSORS, LOG_ARCHIVE)
        return (LogArchiveState(), 0) if entry is None else (_decode_state(entry[0]), entry[1])

    async def move(self, state: LogArchiveState, *, expect: int) -> int:
        """Store the progress of the archive; return its revision.

        Raises:
            SequenceConflict: another archiver stored it first.
        """
        return await self._projections.put(Bucket.CURSORS, LOG_ARCHIVE, msgspec.json.encode(state), expect=expect)

    async def write(
        self,
        source: str,
        messages: Sequence[ArchivedMessage],
        state: LogArchiveState,
        origin: Origin,
        head: LogHead | None = None,
    ) -> LogArchiveState:
        """Store the next segment of a source, read it back, and return the new state.

        The segment counts once the state is stored. `head`: of commits, the end of the chain after the last.
        """
        before = state.newest.get(source)
        index = 1 if before is None else (await self.segment(before.segment, before.sha256)).index + 1
        body = _compressed(messages)
        ids = sorted({entity_of(message) for message in messages if message.subject.startswith(LINES)})
        segment = Segment(
            source,
            index,
            messages[0].sequence,
            messages[-1].sequence,
            len(messages),
            messages[0].time,
            messages[-1].time,
            sha256(body).hexdigest(),
            origin,
            head,
            (ids[0], ids[-1]) if ids else None,
            None if before is None else before.segment,
            None if before is None else before.sha256,
        )
        manifest = msgspec.json.encode(segment)
        await self._store.put(f"{segment.name}.gz", body)
        await self._store.put(f"{segment.name}.json", manifest)
        newest = Newest(segment.name, sha256(manifest).hexdigest(), segment.last)
        self._segments.pop(segment.name, None)
        stored = await self.segment(newest.segment, newest.sha256)
        await self.messages(stored)  # a segment that cannot be read back must not count
        return msgspec.structs.replace(state, newest={**state.newest, source: newest})

    async def segment(self, name: str, digest: str | None) -> Segment:
        """Return a manifest.

        `digest`: the digest of the manifest, as the state or the segment after it says.
        """
        file = f"{name}.json"
        if name not in self._segments:
            body = await self._store.get(file)
            if body is None:
                raise ArchiveDamaged(f"the archive has no {file}, to which its chain leads")
            try:
                self._segments[name] = _decode_segment(body), body
            except msgspec.MsgspecError as error:
                raise ArchiveDamaged(f"{file} of the archive cannot be read: {error}") from None
        segment, body = self._segments[name]
        if segment.name != name or sha256(body).hexdigest() != digest:
            del self._segments[name]
            raise ArchiveDamaged(f"{file} of the archive was changed: its digest differs from what names it")
        return segment

    async def back(self, source: str, state: LogArchiveState) -> AsyncIterator[Segment]:
        newest = state.newest.get(source)
        name, digest = (None, None) if newest is None else (newest.segment, newest.sha256)
        while name is not None:
            segment = await self.segment(name, digest)
            yield segment
            name, digest = segment.previous, segment.previous_sha256

    async def segments(self, source: str, *, after: int = 0, state: LogArchiveState | None = None) -> list[Segment]:
        """Return the segments of a source with messages after a sequence, the oldest first.

        `state`: an earlier progress of the archive; None: the current one.
        """
        if state is None:
            state, _ = await self.state()
        found: list[Segment] = []
        async for segment in self.back(source, state):
            if segment.last <= after:
                break
            found.append(segment)
        return found[::-1]

    async def messages(self, segment: Segment) -> list[ArchivedMessage]:
        """Return the messages of a segment."""
        name = f"{segment.name}.gz"
        body = await self._store.get(name)
        if body is None:
            raise ArchiveDamaged(f"the archive has no {name}, to which its chain leads")
        if sha256(body).hexdigest() != segment.sha256:
            raise ArchiveDamaged(f"{name} of the archive was changed: its digest differs from what names it")
        return list(_messages(gzip.decompress(body)))

    async def read(self, source: str, *, after: int, upto: int) -> AsyncGenerator[list[ArchivedMessage], None]:
        """Yield the messages of a source between two sequences, a segment at a time.

        The first sequence is left out.
        """
        for segment in await self.segments(source, after=after) if after < upto else ():
            if segment.first > upto:
                return
            yield [message for message in await self.messages(segment) if after < message.sequence <= upto]

    async def lines(self, execution_id: str) -> list[ArchivedMessage]:
        """Return the archived lines of the handlers of an execution, oldest first."""
        lines: list[ArchivedMessage] = []
        for segment in await self.segments(Stream.OUTPUT.value):
            if segment.ids is not None and segment.ids[0] <= execution_id <= segment.ids[1]:
                lines += [
                    message
                    for message in await self.messages(segment)
                    if message.subject.startswith(LINES) and entity_of(message) == execution_id
                ]
        return lines

    async def cut(self, ends: Mapping[str, int]) -> LogArchiveState:
        """Return the progress with the segments up to the last sequence of each source."""
        state, _ = await self.state()
        newest: dict[str, Newest] = {}
        for source in state.newest:
            async for segment in self.back(source, state):
                if segment.last <= ends.get(source, 0):
                    _, manifest = self._segments[segment.name]
                    newest[source] = Newest(segment.name, sha256(manifest).hexdigest(), segment.last)
                    break
        return LogArchiveState(newest)

    async def copy_to(self, store: ArchiveStore, state: LogArchiveState) -> list[str]:
        """Copy the objects of the archive into another store, and return their names."""
        names: list[str] = []
        for source in state.newest:
            for segment in await self.segments(source, state=state):
                messages, manifest = f"{segment.name}.gz", f"{segment.name}.json"
                if await store.get(messages) is None:
                    await self.messages(segment)
                    await store.put(messages, await self._store.get(messages) or b"")
                await store.put(manifest, self._segments[segment.name][1])
                names += (messages, manifest)
        return names


def entity_of(message: ArchivedMessage) -> str:
    """Return the id of the execution that logged a line by its handler."""
    return message.subject.split(".")[2]


_Line = tuple[int, datetime, int, str, dict[str, str]]


def _compressed(messages: Sequence[ArchivedMessage]) -> bytes:
    parts: list[bytes] = []
    for message in messages:
        head: _Line = message.sequence, message.time, len(message.body), message.subject, message.headers
        parts += (msgspec.json.encode(head), b"\n", message.body, b"\n")
    return gzip.compress(b"".join(parts), mtime=0)


def _messages(content: bytes) -> Iterator[ArchivedMessage]:
    at = 0
    while at < len(content):
        end = content.index(b"\n", at)
        sequence, time, size, subject, headers = _decode_line(content[at:end])
        at = end + 1 + size + 1
        yield ArchivedMessage(sequence, time, content[end + 1 : at - 1], subject, headers)


_decode_state: Final = msgspec.json.Decoder(LogArchiveState).decode
_decode_segment: Final = msgspec.json.Decoder(Segment).decode
_decode_line: Final = msgspec.json.Decoder(_Line).decode
