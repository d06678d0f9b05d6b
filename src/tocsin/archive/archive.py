"""The archive: old messages in a chain of immutable segments.

A segment is two objects of a store: a gzipped export of messages, as `tocsin events export` writes, and a manifest with its
content, its digest and the segment before. One key in KV `cursors`, changed by compare-and-set, names the newest segment; a
segment belongs to the archive if the chain from that key reaches it. The key holds the digest of the newest manifest, and each manifest that of the
manifest before, so a manifest that was replaced in the store is found. So of two archivers that write at once, a single archiver adds its
segment, and a crash leaves a whole segment or none.

Beside a segment there may be objects with the lines that handlers of its executions logged (`archive.output`). They are exports of the
stream of lines, and the manifest names them with their digests.

`upto` is the sequence of each stream up to which everything is decided; messages before it that are still in the stream
belong to open executions.
"""

import asyncio
import gzip
import io
import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict

from ..domain.errors import TocsinError
from ..ports import ArchiveStore, Extent, Projections, StoredMessage
from ..subjects import ARCHIVE_STATE, STREAMS, Bucket, Stream, cursor
from .export import ExportError, Manifest, encode_all, open_export
from .stream_reader import Extents, Selection

CACHED_OBJECTS: Final = 4
"""Objects with messages that a reader keeps in memory."""
OLDER: Final = 31
"""Older segments that a manifest names, whose manifests a reader requests together with that of `previous`."""
_NAME: Final = re.compile(r"\d{8}-[0-9a-f]{16}")


class ArchiveDamaged(TocsinError):
    """A segment is missing or differs from what was written."""

    code = "archive-damaged"


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True)


class Span(_Model):
    """The messages of one stream in a segment."""

    first: int
    last: int
    messages: int


class LinesObject(_Model):
    """An object with lines of handlers."""

    sha256: str
    """Digest of the stored object."""
    ids: tuple[str, str]
    """Smallest and greatest id of an execution."""

    def name(self, number: int) -> str:
        """Return the name of the object; `number`: that of its segment."""
        return f"{number:08}-{self.sha256[:16]}.output.jsonl.gz"

    def may_hold(self, execution_id: str) -> bool:
        """Return whether it may hold lines of an execution."""
        return self.ids[0] <= execution_id <= self.ids[1]


class Segment(_Model):
    """The manifest of a segment."""

    number: int
    previous: str | None
    previous_sha256: str | None = None
    """Digest of the manifest of the segment before; None: this is the first."""
    sha256: str
    """Digest of the stored object."""
    upto: Mapping[Stream, int]
    streams: Mapping[Stream, Span]
    since: datetime
    until: datetime
    """Times of the oldest and the newest message (UTC)."""
    executions: int
    ids: tuple[str, str] | None
    """Smallest and greatest id of an execution."""
    letters: tuple[str, str] | None
    """Smallest and greatest id of a dead letter."""
    output: tuple[LinesObject, ...] = ()
    """The lines of its executions, if the archive keeps them."""
    older: tuple[str, ...] = ()
    """Names of segments before `previous`, the newest first, so that a reader requests their manifests together. Only the chain decides
    which segments belong to the archive."""

    @property
    def name(self) -> str:
        """Name of its objects, without the ending."""
        return f"{self.number:08}-{self.sha256[:16]}"

    def may_hold(self, kind: str, entity: str) -> bool:
        """Return whether it may hold an `execution` or a `dead-letter` with this id."""
        ids = self.letters if kind == "dead-letter" else self.ids
        return ids is not None and ids[0] <= entity <= ids[1]


class ArchivingFailure(_Model):
    """The reason why the archiver archives nothing, and the time (UTC) of its first failure."""

    since: datetime
    reason: str


class State(_Model):
    """Progress of the archive. `purged`: the newest segment deleted from the streams."""

    head: str | None = None
    head_sha256: str | None = None
    """Digest of the manifest of `head`; None: nothing is archived."""
    purged: str | None = None
    number: int = 0
    upto: Mapping[Stream, int] = {}
    failure: ArchivingFailure | None = None
    """None: the archiver's newest run succeeded."""


class Archive:
    """The archive of one installation."""

    def __init__(self, store: ArchiveStore, projections: Projections) -> None:
        """`projections` holds the state."""
        self._store = store
        self._projections = projections
        self._segments: dict[str, tuple[Segment, bytes]] = {}  # a manifest never changes
        self._read: OrderedDict[str, list[StoredMessage]] = OrderedDict()

    async def state(self) -> tuple[State, int]:
        """Return the progress of the archive and its revision."""
        entry = await self._projections.get(Bucket.CURSORS, ARCHIVE_STATE)
        return (State(), 0) if entry is None else (State.model_validate_json(entry[0]), entry[1])

    async def move(self, state: State, *, expect: int) -> int:
        """Store the progress of the archive; return its revision.

        Raises:
            SequenceConflict: another archiver stored it first.
        """
        return await self._projections.put(
            Bucket.CURSORS, ARCHIVE_STATE, state.model_dump_json().encode(), expect=expect
        )

    async def tell(self, state: State) -> None:
        """Advance the cursors of the streams, after which new durables start.

        Repeatable: a cursor that is already there is not written.

        Raises:
            SequenceConflict: another archiver advanced a cursor first.
        """
        for stream, sequence in state.upto.items():
            value, revision = await self._projections.get(Bucket.CURSORS, cursor(stream)) or (b"0", 0)
            if int(value) < sequence:
                await self._projections.put(Bucket.CURSORS, cursor(stream), str(sequence).encode(), expect=revision)

    async def segments(self, *, behind: str | None = None, state: State | None = None) -> list[Segment]:
        """Return every segment, the oldest first; or those after `behind`.

        `state`: an earlier progress of the archive; None: the current one.

        Raises:
            ArchiveDamaged: a manifest is missing or changed.
        """
        if state is None:
            state, _ = await self.state()
        segments: list[Segment] = []
        name, digest = state.head, state.head_sha256
        ahead: dict[str, bytes | None] = {}
        while name is not None and name != behind:
            if segments and name not in self._segments and name not in ahead:
                ahead = await self._manifests(name, *segments[-1].older, behind=behind)
            segments.append(await self.segment(name, digest, ahead=ahead))
            name, digest = segments[-1].previous, segments[-1].previous_sha256
        return segments[::-1]

    async def _manifests(self, *names: str, behind: str | None) -> dict[str, bytes | None]:
        """Return manifests as they are stored; None: the store lacks it."""
        end = names.index(behind) if behind in names else len(names)
        wanted = [name for name in names[:end] if _NAME.fullmatch(name) and name not in self._segments][: OLDER + 1]
        return dict(zip(wanted, await asyncio.gather(*map(self._manifest, wanted)), strict=True))

    async def _manifest(self, name: str) -> bytes | None:
        return await self._store.get(f"{name}.json")

    async def segment(
        self, name: str, digest: str | None = None, *, ahead: Mapping[str, bytes | None] | None = None
    ) -> Segment:
        """Return the manifest of a segment.

        `digest`: that of the manifest, as the archive's state or the manifest after it says; None: it is unknown. `ahead`: manifests that
        were read already.

        Raises:
            ArchiveDamaged: it is missing, unreadable or changed.
        """
        if name not in self._segments:
            body = ahead[name] if ahead and name in ahead else await self._manifest(name)
            if body is None:
                raise ArchiveDamaged(f"the archive has no {name}.json, to which its chain leads")
            try:
                segment = Segment.model_validate_json(body)
            except ValueError as error:
                raise ArchiveDamaged(f"{name}.json of the archive cannot be read: {error}") from None
            if segment.name != name:
                raise ArchiveDamaged(f"{name}.json of the archive was changed: it describes the segment {segment.name}")
            if not _follows(segment):
                raise ArchiveDamaged(f"{name}.json of the archive was changed: it follows {segment.previous}")
            if digest is None or sha256(body).hexdigest() == digest:
                self._segments[name] = segment, body
        else:
            segment, body = self._segments[name]
        self._check(f"{name}.json", body, digest)
        return segment

    async def digest(self, segment: Segment) -> str:
        """Return the digest of a manifest as it is stored.

        Another archiver may have stored it before a crash, for the same messages.

        Raises:
            ArchiveDamaged: it is missing, or describes other messages.
        """
        stored = await self.segment(segment.name)
        own = {"upto": segment.upto, "output": segment.output, "older": segment.older}
        if stored.model_copy(update=own) != segment:
            raise ArchiveDamaged(f"{segment.name}.json of the archive was changed: it differs from what was written")
        return sha256(self._segments[segment.name][1]).hexdigest()

    async def messages(self, segment: Segment) -> Sequence[StoredMessage]:
        """Return the messages of a segment, each stream in its order.

        Raises:
            ArchiveDamaged: it is missing or changed.
        """
        return await self._content(f"{segment.name}.jsonl.gz", segment.sha256)

    async def lines(self, segment: Segment, execution_id: str) -> list[StoredMessage]:
        """Return the lines of an execution that are beside a segment, in their order.

        Raises:
            ArchiveDamaged: they are missing or changed.
        """
        lines: list[StoredMessage] = []
        for part in segment.output:
            if part.may_hold(execution_id):
                content = await self._content(part.name(segment.number), part.sha256)
                lines += [line for line in content if _entity_of(line) == execution_id]
        return lines

    async def copy_to(self, store: ArchiveStore, state: State) -> list[str]:
        """Copy every object of the archive into another store; return their names.

        `state`: the progress of the archive up to which objects are copied.

        Raises:
            ArchiveDamaged: an object is missing or changed.
        """
        names: list[str] = []
        for segment in await self.segments(state=state):
            lines = ((part.name(segment.number), part.sha256) for part in segment.output)
            for name, digest in ((f"{segment.name}.jsonl.gz", segment.sha256), *lines):
                if await store.get(name) is None:
                    await store.put(name, await self._object(name, digest))
                names.append(name)
            name = f"{segment.name}.json"
            await store.put(name, self._segments[segment.name][1])
            names.append(name)
        return names

    async def _content(self, name: str, digest: str) -> list[StoredMessage]:
        if name in self._read:
            self._read.move_to_end(name)
            return self._read[name]
        body = await self._object(name, digest)
        try:
            with open_export(Path("-"), io.BufferedReader(io.BytesIO(body))) as export:
                messages = list(export.messages)
        except ExportError as error:
            raise ArchiveDamaged(f"{name} of the archive: {error}") from None
        self._read[name] = messages
        if len(self._read) > CACHED_OBJECTS:
            self._read.popitem(last=False)
        return messages

    async def _object(self, name: str, digest: str) -> bytes:
        body = await self._store.get(name)
        if body is None:
            raise ArchiveDamaged(f"the archive has no {name}, to which its chain leads")
        self._check(name, body, digest)
        return body

    @staticmethod
    def _check(name: str, body: bytes, digest: str | None) -> None:
        if digest is not None and sha256(body).hexdigest() != digest:
            raise ArchiveDamaged(f"{name} of the archive was changed: its digest differs from what names it")

    async def write_lines(self, lines: Sequence[StoredMessage], state: State, origin: "Origin") -> LinesObject:
        """Store lines for the segment that follows `state`.

        `write` then names them in the segment.
        """
        ids = sorted({_entity_of(line) for line in lines})
        body = _encoded(lines, _extents(lines, (Stream.OUTPUT,)), origin)
        stored = LinesObject(sha256=sha256(body).hexdigest(), ids=(ids[0], ids[-1]))
        await self._store.put(stored.name(state.number + 1), body)
        return stored

    async def write(
        self,
        messages: Sequence[StoredMessage],
        state: State,
        upto: Mapping[Stream, int],
        origin: "Origin",
        output: Sequence[LinesObject] = (),
    ) -> Segment:
        """Store the segment that follows `state`; `move` then adds it to the archive.

        `output`: what `write_lines` returned for its executions.
        """
        extents = _extents(messages, STREAMS)
        body = _encoded(messages, extents, origin)
        ids = _ids(messages, "execution")
        letters = _ids(messages, "dead-letter")
        segment = Segment(
            number=state.number + 1,
            previous=state.head,
            previous_sha256=state.head_sha256,
            sha256=sha256(body).hexdigest(),
            upto=upto,
            streams={
                stream: Span(first=extent.first, last=extent.last, messages=extent.messages)
                for stream, extent in extents.items()
                if extent.messages
            },
            since=min(message.time for message in messages),
            until=max(message.time for message in messages),
            executions=len(ids),
            ids=(ids[0], ids[-1]) if ids else None,
            letters=(letters[0], letters[-1]) if letters else None,
            output=tuple(output),
            older=await self._older(state),
        )
        await self._store.put(f"{segment.name}.jsonl.gz", body)
        await self._store.put(f"{segment.name}.json", segment.model_dump_json(indent=2).encode())
        return segment

    async def _older(self, state: State) -> tuple[str, ...]:
        if state.head is None:
            return ()
        try:
            newest = await self.segment(state.head, state.head_sha256)
        except ArchiveDamaged:  # readers find it; the streams must still be emptied
            return ()
        return () if newest.previous is None else (newest.previous, *newest.older)[:OLDER]


def _follows(segment: Segment) -> bool:
    if segment.previous is None:
        return segment.number == 1
    return segment.previous.startswith(f"{segment.number - 1:08}-")


class Origin(_Model):
    """Installation and version that wrote a segment."""

    installation: str
    root: str
    version: str


def _encoded(messages: Sequence[StoredMessage], extents: Extents, origin: Origin) -> bytes:
    manifest = Manifest(origin.installation, origin.root, origin.version, Selection(tuple(extents)), extents)
    return gzip.compress(b"".join(encode_all(manifest, messages)), mtime=0)


def _extents(messages: Sequence[StoredMessage], streams: tuple[Stream, ...]) -> Extents:
    sequences = {stream: [message.sequence for message in messages if message.stream is stream] for stream in streams}
    return {stream: Extent(of[0], of[-1], len(of)) if of else Extent(0, 0, 0) for stream, of in sequences.items()}


def _ids(messages: Sequence[StoredMessage], kind: str) -> list[str]:
    return sorted({_entity_of(message) for message in messages if message.subject.startswith(f"{kind}.")})


def _entity_of(message: StoredMessage) -> str:
    """Return the id of the execution or dead letter of a message."""
    return message.subject.split(".")[2]
