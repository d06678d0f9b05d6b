"""A log in a file: JSON Lines, complete, with a manifest and a trailer.

The same log and the same selection give the same lines. A file without its trailer is truncated, and is refused.

    {"tocsin": "export", "format": 1, …}                            manifest: installation, selection
    {"checkpoint": …, "signature": …}                               checkpoint of the notary, if the export is whole
    {"stream": …, "sequence": …, "time": …, "subject": …, …}        message: its body as text
    {"end": true, "messages": …, "streams": …, "sha256": …}         trailer: counts, digest
"""

import gzip
import json
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from io import BufferedReader
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol, cast

from ..domain.errors import TocsinError
from ..domain.text import utc_text
from ..ports import Extent, StoredMessage
from ..subjects import Stream
from .checkpoints import CheckpointDamaged, SignedCheckpoint
from .stream_reader import Extents, Selection

FORMAT: Final = 1
_MAGIC: Final = b"\x1f\x8b"
_CHECKPOINT: Final = b'{"checkpoint":'


class ExportError(TocsinError, ValueError):
    """A file is not an export.

    `line` is the number of the line that cannot be read, if there is one.
    """

    code = "invalid-export"

    def __init__(self, message: str, *, line: int | None = None) -> None:
        super().__init__(message)
        self.line = line


class UnknownFormatError(ExportError):
    """An export has a format that this version does not read."""

    code = "unknown-export-format"


class AlteredExportError(ExportError):
    """An export was changed after it was written."""

    code = "altered-export"


class CutOffError(ExportError):
    """An export ends before its trailer."""

    code = "truncated-export"


class Sink(Protocol):
    """A destination of bytes."""

    def write(self, data: bytes, /) -> object:
        """Write bytes."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """The content of an export.

    It names the installation and its root, the selection, and the ends of the streams at the time.
    """

    installation: str
    root: str
    version: str
    selection: Selection
    extents: Extents

    def encode(self) -> bytes:
        selection = self.selection
        return _line(
            {
                "tocsin": "export",
                "format": FORMAT,
                "version": self.version,
                "installation": self.installation,
                "root": self.root,
                "job": selection.job,
                "since": selection.since and utc_text(selection.since),
                "until": selection.until and utc_text(selection.until),
                "streams": {
                    stream.value: {"first": extent.first, "last": extent.last, "messages": extent.messages}
                    for stream, extent in self.extents.items()
                },
            }
        )

    @classmethod
    def decode(cls, line: bytes) -> "Manifest":
        """Read the first line.

        Raises:
            ExportError: it is not a manifest, or has a newer format.
        """
        fields = _parsed(line, 1)
        if fields.get("tocsin") != "export":
            raise ExportError(
                "the first line is not the manifest of an export. Use a file of `tocsin events export`.", line=1
            )
        if fields.get("format") != FORMAT:
            raise UnknownFormatError(
                f"the format is {fields.get('format')}, but this version of Tocsin reads format {FORMAT}. Use a matching version.",
                line=1,
            )
        try:
            streams = {Stream(name): Extent(**extent) for name, extent in fields["streams"].items()}
            since, until = (datetime.fromisoformat(fields[key]) if fields[key] else None for key in ("since", "until"))
            selection = Selection(tuple(streams), fields["job"], since, until)
            return cls(fields["installation"], fields["root"], fields["version"], selection, streams)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ExportError(f"the first line is damaged: {type(error).__name__}: {error}", line=1) from None


async def write(
    out: Sink,
    manifest: Manifest,
    messages: AsyncIterator[StoredMessage],
    checkpoints: Iterable[SignedCheckpoint] = (),
) -> Counter[Stream]:
    """Write an export; return the number of messages of each stream."""
    digest, counts = sha256(), Counter[Stream]()

    def put(line: bytes) -> None:
        digest.update(line)
        out.write(line)

    put(manifest.encode())
    for checkpoint in checkpoints:
        put(_line(checkpoint.encode()))
    async for message in messages:
        counts[message.stream] += 1
        put(encode(message))
    streams = {stream.value: counts[stream] for stream in manifest.selection.streams}
    put(_line({"end": True, "messages": counts.total(), "streams": streams, "sha256": digest.hexdigest()}))
    return counts


def encode(message: StoredMessage) -> bytes:
    """Return the line of a message. A binary body is written in base64."""
    line: dict[str, Any] = {
        "stream": message.stream.value,
        "sequence": message.sequence,
        "time": utc_text(message.time),
        "subject": message.subject,
    }
    if message.headers:
        line["headers"] = dict(message.headers)
    try:
        line["body"] = message.body.decode()
    except UnicodeDecodeError:
        line["body_base64"] = b64encode(message.body).decode()
    return _line(line)


@dataclass(frozen=True, slots=True)
class Export:
    """An export that is being read.

    `messages` can be read once, and must be read to its end: only there is it known that nothing is missing.
    """

    manifest: Manifest
    messages: Iterator[StoredMessage]
    checkpoints: Sequence[SignedCheckpoint] = ()


@contextmanager
def open_export(path: Path, standard_input: BinaryIO | None = None) -> Iterator[Export]:
    """Open an export, gzipped or not; `-` is `standard_input`.

    Raises:
        ExportError: the file is not an export; or, while its messages are read, it is truncated or changed.
        OSError: the file cannot be read.
    """
    with standard_input if standard_input is not None and str(path) == "-" else path.open("rb") as raw:
        is_zipped = cast("BufferedReader", raw).peek(2)[:2] == _MAGIC
        with gzip.GzipFile(fileobj=raw) if is_zipped else raw as file:
            lines = _lines(cast("BinaryIO", file))
            first = next(lines, b"")
            if not first:
                raise CutOffError("the file is empty")
            manifest = Manifest.decode(first)
            head, checkpoints = [first], list[SignedCheckpoint]()
            while (following := next(lines, b"")).startswith(_CHECKPOINT):
                head.append(following)
                checkpoints.append(_checkpoint(following, number=len(head)))
            rest = chain([following], lines) if following else lines
            yield Export(manifest, _messages(rest, head), checkpoints)


def _lines(file: BinaryIO) -> Iterator[bytes]:
    try:
        yield from file
    except EOFError:
        raise CutOffError("the file is truncated: its compressed data ends too early. Export again.") from None
    except gzip.BadGzipFile as error:
        raise AlteredExportError(f"the file was changed: {error}") from None


def _checkpoint(line: bytes, *, number: int) -> SignedCheckpoint:
    try:
        return SignedCheckpoint.decode(_parsed(line, number))
    except CheckpointDamaged as error:
        raise ExportError(f"line {number:,}: {error}", line=number) from None


def _messages(lines: Iterator[bytes], head: Sequence[bytes]) -> Iterator[StoredMessage]:
    digest, count = sha256(b"".join(head)), 0
    for at, line in enumerate(lines, start=len(head) + 1):
        fields = _parsed(line, at)
        if fields.get("end"):
            _check_end(fields, count, digest.hexdigest(), lines)
            return
        digest.update(line)
        count += 1
        yield _message(fields, at)
    raise CutOffError(f"the file is truncated: it ends after {count:,} messages, without a trailer. Export again.")


def _check_end(trailer: dict[str, Any], count: int, digest: str, lines: Iterator[bytes]) -> None:
    if trailer.get("messages") != count:
        raise AlteredExportError(
            f"the file was changed: it holds {count:,} messages, but its trailer counts {trailer.get('messages'):,}"
        )
    if trailer.get("sha256") != digest:
        raise AlteredExportError("the file was changed: its digest differs from its trailer")
    if next(lines, None) is not None:
        raise AlteredExportError("the file was changed: there is text after its trailer")


def _message(found: dict[str, Any], number: int) -> StoredMessage:
    try:
        body = b64decode(found["body_base64"]) if "body_base64" in found else found["body"].encode()
        return StoredMessage(
            Stream(found["stream"]),
            found["sequence"],
            datetime.fromisoformat(found["time"]),
            found["subject"],
            found.get("headers", {}),
            body,
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ExportError(f"line {number:,} is not a message: {type(error).__name__}: {error}", line=number) from None


def _parsed(line: bytes, number: int) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except ValueError:
        if not line.endswith(b"\n"):
            raise CutOffError(f"the file is truncated in line {number:,}. Export again.", line=number) from None
        raise ExportError(f"line {number:,} is not JSON", line=number) from None
    if not isinstance(value, dict):
        raise ExportError(f"line {number:,} is not a JSON object", line=number)
    return value


def _line(data: dict[str, Any]) -> bytes:
    return json.dumps(data, separators=(",", ":")).encode() + b"\n"
