"""The archive: what the streams need not hold any more, in immutable segments that are chained from the newest to the first.

A segment is two objects of a store: an export of messages, gzipped, as `tocsin events export` writes one; and a manifest that
says what is in it, its digest, and which segment came before. Which segment is the newest is said by one key in KV `cursors`,
moved by compare-and-set: with it a segment belongs to the archive, and an object that no manifest leads to does not. So of
two archivers that write at once one adds a segment, and a crash leaves either all of it or nothing.

`upto` says for each stream up to which sequence all is decided: what of that is left in the stream belongs to what is open.
"""

import gzip
import io
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict

from ..domain.errors import TocsinError
from ..ports import ArchiveStore, Extent, Projections, StoredMessage
from ..subjects import ARCHIVE_STATE, Bucket, Stream, cursor
from .export import ExportError, Manifest, encode_all, open_export
from .stream_reader import STREAMS, Selection

KEPT: Final = 4
"""Segments that a reader keeps in memory."""


class ArchiveDamaged(TocsinError):
    """A segment is not there, or not what was written; the text says which."""

    code = "archive-damaged"


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True)


class Span(_Model):
    """What a segment holds of one stream."""

    first: int
    last: int
    messages: int


class Segment(_Model):
    """The manifest of a segment."""

    number: int
    previous: str | None
    sha256: str
    """Of its object, as it is stored."""
    upto: Mapping[Stream, int]
    streams: Mapping[Stream, Span]
    since: datetime
    until: datetime
    """When its oldest and its newest message were stored (UTC)."""
    executions: int
    ids: tuple[str, str] | None
    """The least and the greatest id of an execution in it."""
    letters: tuple[str, str] | None = ("", "~")
    """Those of a dead letter in it. A manifest that does not say so may have any."""

    @property
    def name(self) -> str:
        """What its objects are called, but for the ending."""
        return f"{self.number:08}-{self.sha256[:16]}"

    def may_hold(self, kind: str, entity: str) -> bool:
        """Whether an `execution` or a `dead-letter` of some id may be in it."""
        ids = self.letters if kind == "dead-letter" else self.ids
        return ids is not None and ids[0] <= entity <= ids[1]


class State(_Model):
    """How far the archive goes. `purged`: the newest segment whose messages have left the streams."""

    head: str | None = None
    purged: str | None = None
    number: int = 0
    upto: Mapping[Stream, int] = {}


class Archive:
    """The archive of one installation."""

    def __init__(self, store: ArchiveStore, projections: Projections) -> None:
        """`projections` keep its state."""
        self._store = store
        self._projections = projections
        self._segments: dict[str, Segment] = {}  # a manifest never changes
        self._read: OrderedDict[str, list[StoredMessage]] = OrderedDict()

    async def state(self) -> tuple[State, int]:
        """How far it goes, and the revision of that."""
        found = await self._projections.get(Bucket.CURSORS, ARCHIVE_STATE)
        return (State(), 0) if found is None else (State.model_validate_json(found[0]), found[1])

    async def move(self, state: State, *, expect: int) -> int:
        """Say how far it goes from now on; the revision.

        Raises:
            SequenceConflict: somebody else said so meanwhile.
        """
        return await self._projections.put(
            Bucket.CURSORS, ARCHIVE_STATE, state.model_dump_json().encode(), expect=expect
        )

    async def tell(self, state: State) -> None:
        """Say in the cursors of the streams up to where all is decided: behind that durables begin.

        Nothing is written where they say it: somebody may have died before it told, or not.

        Raises:
            SequenceConflict: somebody else said so meanwhile.
        """
        for stream, sequence in state.upto.items():
            told, revision = await self._projections.get(Bucket.CURSORS, cursor(stream)) or (b"0", 0)
            if int(told) < sequence:
                await self._projections.put(Bucket.CURSORS, cursor(stream), str(sequence).encode(), expect=revision)

    async def segments(self, *, behind: str | None = None) -> list[Segment]:
        """Every segment, the oldest first; or those behind one of them.

        Raises:
            ArchiveDamaged: a manifest is not there.
        """
        state, _ = await self.state()
        found: list[Segment] = []
        name = state.head
        while name is not None and name != behind:
            found.append(await self.segment(name))
            name = found[-1].previous
        return found[::-1]

    async def segment(self, name: str) -> Segment:
        """The manifest of a segment.

        Raises:
            ArchiveDamaged: it is not there, or cannot be read.
        """
        if name not in self._segments:
            body = await self._store.get(f"{name}.json")
            if body is None:
                raise ArchiveDamaged(f"the archive has no {name}.json, to which its chain leads")
            try:
                self._segments[name] = Segment.model_validate_json(body)
            except ValueError as error:
                raise ArchiveDamaged(f"{name}.json of the archive cannot be read: {error}") from None
        return self._segments[name]

    async def messages(self, segment: Segment) -> Sequence[StoredMessage]:
        """All that a segment holds: each stream in its order.

        Raises:
            ArchiveDamaged: it is not there, or not what was written.
        """
        if segment.name in self._read:
            self._read.move_to_end(segment.name)
            return self._read[segment.name]
        name = f"{segment.name}.jsonl.gz"
        body = await self._store.get(name)
        if body is None:
            raise ArchiveDamaged(f"the archive has no {name}, to which its chain leads")
        if sha256(body).hexdigest() != segment.sha256:
            raise ArchiveDamaged(f"{name} of the archive was changed: its digest is not the one in its manifest")
        try:
            with open_export(Path("-"), io.BufferedReader(io.BytesIO(body))) as export:
                found = list(export.messages)
        except ExportError as error:
            raise ArchiveDamaged(f"{name} of the archive: {error}") from None
        self._read[segment.name] = found
        if len(self._read) > KEPT:
            self._read.popitem(last=False)
        return found

    async def write(
        self, messages: Sequence[StoredMessage], state: State, upto: Mapping[Stream, int], origin: "Origin"
    ) -> Segment:
        """Store the objects of the segment that follows `state`. It belongs to the archive once `move` says so."""
        extents = dict(_extents(messages))
        manifest = Manifest(origin.installation, origin.root, origin.version, Selection(STREAMS), extents)
        body = gzip.compress(b"".join(encode_all(manifest, messages)), mtime=0)
        ids = _ids(messages, "execution")
        letters = _ids(messages, "dead-letter")
        segment = Segment(
            number=state.number + 1,
            previous=state.head,
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
        )
        await self._store.put(f"{segment.name}.jsonl.gz", body)
        await self._store.put(f"{segment.name}.json", segment.model_dump_json(indent=2).encode())
        return segment


class Origin(_Model):
    """Whose messages a segment holds."""

    installation: str
    root: str
    version: str


def _extents(messages: Sequence[StoredMessage]) -> Iterator[tuple[Stream, Extent]]:
    for stream in STREAMS:
        sequences = [message.sequence for message in messages if message.stream is stream]
        yield stream, Extent(sequences[0], sequences[-1], len(sequences)) if sequences else Extent(0, 0, 0)


def _ids(messages: Sequence[StoredMessage], kind: str) -> list[str]:
    return sorted({message.subject.split(".")[2] for message in messages if message.subject.startswith(f"{kind}.")})
