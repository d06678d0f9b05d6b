"""A log in a file: JSON Lines, complete and byte for byte, with a beginning and an end that say so.

    {"tocsin": "export", "format": 1, …}                            the manifest: whose log, and which part of it
    {"stream": …, "sequence": …, "time": …, "subject": …, …}        one line a message; its body as text, byte for byte
    {"end": true, "messages": …, "streams": …, "sha256": …}         the trailer: how many, and the digest of all lines above

The same log and the same selection give the same lines. A file without its trailer was cut off, and is refused.
"""

import gzip
import json
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol, cast

from ..domain.errors import TocsinError
from ..ports import Extent, StoredMessage
from ..subjects import Stream
from .stream_reader import Extents, Selection

FORMAT: Final = 1
_MAGIC: Final = b"\x1f\x8b"


class ExportError(TocsinError, ValueError):
    """A file is no export, or one that was changed."""

    code = "invalid-export"


class CutOffError(ExportError):
    """An export ends before its trailer."""

    code = "truncated-export"


class Sink(Protocol):
    """Where bytes go."""

    def write(self, data: bytes, /) -> object:
        """Take some."""
        ...


@dataclass(frozen=True, slots=True)
class Manifest:
    """What an export holds: of which installation and root, which selection, and how far the streams went then."""

    installation: str
    root: str
    version: str
    selection: Selection
    extents: Extents

    def encode(self) -> bytes:
        """Its line."""
        chosen = self.selection
        return _line(
            {
                "tocsin": "export",
                "format": FORMAT,
                "version": self.version,
                "installation": self.installation,
                "root": self.root,
                "job": chosen.job,
                "since": chosen.since and _iso(chosen.since),
                "until": chosen.until and _iso(chosen.until),
                "streams": {
                    stream.value: {"first": extent.first, "last": extent.last, "messages": extent.messages}
                    for stream, extent in self.extents.items()
                },
            }
        )

    @classmethod
    def decode(cls, line: bytes) -> "Manifest":
        """Read its line.

        Raises:
            ExportError: it is none, or of a newer format.
        """
        found = _parsed(line, 1)
        if found.get("tocsin") != "export":
            raise ExportError("its first line is not that of an export of `tocsin events export`")
        if found.get("format") != FORMAT:
            raise ExportError(f"it has format {found.get('format')}, and this version of Tocsin reads format {FORMAT}")
        try:
            streams = {Stream(name): Extent(**extent) for name, extent in found["streams"].items()}
            since, until = (datetime.fromisoformat(found[key]) if found[key] else None for key in ("since", "until"))
            selection = Selection(tuple(streams), found["job"], since, until)
            return cls(found["installation"], found["root"], found["version"], selection, streams)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ExportError(f"its first line is damaged: {type(error).__name__}: {error}") from None


async def write(out: Sink, manifest: Manifest, messages: AsyncIterator[StoredMessage]) -> Counter[Stream]:
    """Write an export; how many messages of each stream it holds."""
    ending = _Ending(manifest)
    out.write(ending.begin())
    async for message in messages:
        out.write(ending.take(message))
    out.write(ending.end())
    return ending.counts


def encode_all(manifest: Manifest, messages: Iterable[StoredMessage]) -> Iterator[bytes]:
    """The lines of an export of messages that are at hand."""
    ending = _Ending(manifest)
    yield ending.begin()
    for message in messages:
        yield ending.take(message)
    yield ending.end()


class _Ending:
    """Counts and digests lines, for the last of them."""

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest
        self._digest = sha256()
        self.counts: Counter[Stream] = Counter()

    def begin(self) -> bytes:
        return self._put(self._manifest.encode())

    def take(self, message: StoredMessage) -> bytes:
        self.counts[message.stream] += 1
        return self._put(encode(message))

    def end(self) -> bytes:
        streams = {stream.value: self.counts[stream] for stream in self._manifest.selection.streams}
        digest = self._digest.hexdigest()
        return _line({"end": True, "messages": self.counts.total(), "streams": streams, "sha256": digest})

    def _put(self, line: bytes) -> bytes:
        self._digest.update(line)
        return line


def encode(message: StoredMessage) -> bytes:
    """The line of a message. A body that is no text is written in base64."""
    line: dict[str, Any] = {
        "stream": message.stream.value,
        "sequence": message.sequence,
        "time": _iso(message.time),
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

    `messages` can be gone through once, and has to be to its end: only there is it known that nothing is missing.
    """

    manifest: Manifest
    messages: Iterator[StoredMessage]


@contextmanager
def open_export(path: Path, standard_input: BinaryIO | None = None) -> Iterator[Export]:
    """Open an export, gzipped or not; `-` is `standard_input`.

    Raises:
        ExportError: it is none; and where its messages are read: it was cut off, or changed.
        OSError: it cannot be read.
    """
    with standard_input if standard_input is not None and str(path) == "-" else path.open("rb") as raw:
        peeking = cast("Peeking", raw)
        with gzip.GzipFile(fileobj=raw) if peeking.peek(2)[:2] == _MAGIC else raw as file:
            lines = _lines(cast("BinaryIO", file))
            first = next(lines, b"")
            if not first:
                raise CutOffError("it is empty")
            manifest = Manifest.decode(first)
            yield Export(manifest, _messages(lines, first))


class Peeking(Protocol):
    """A buffered file."""

    def peek(self, size: int, /) -> bytes:
        """What comes next."""
        ...


def _lines(file: BinaryIO) -> Iterator[bytes]:
    try:
        yield from file
    except EOFError:
        raise CutOffError("it is cut off: the compressed file ends too early") from None
    except gzip.BadGzipFile as error:
        raise ExportError(f"it was changed: {error}") from None


def _messages(lines: Iterator[bytes], first: bytes) -> Iterator[StoredMessage]:
    digest, count = sha256(first), 0
    for number, line in enumerate(lines, start=2):
        found = _parsed(line, number)
        if found.get("end"):
            _check_end(found, count, digest.hexdigest(), lines)
            return
        digest.update(line)
        count += 1
        yield _message(found, number)
    raise CutOffError(f"it is cut off: it ends after {count:,} messages, without its last line")


def _check_end(found: dict[str, Any], count: int, digest: str, lines: Iterator[bytes]) -> None:
    if found.get("messages") != count:
        raise ExportError(f"it was changed: it holds {count:,} messages, and held {found.get('messages'):,}")
    if found.get("sha256") != digest:
        raise ExportError("it was changed: its digest is not the one in its last line")
    if next(lines, None) is not None:
        raise ExportError("it was changed: something follows its last line")


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
        raise ExportError(f"line {number:,} is no message: {type(error).__name__}: {error}") from None


def _parsed(line: bytes, number: int) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError:
        if not line.endswith(b"\n"):
            raise CutOffError(f"it is cut off in line {number:,}") from None
        raise ExportError(f"line {number:,} is no JSON") from None
    if not isinstance(found, dict):
        raise ExportError(f"line {number:,} is no JSON object")
    return found


def _line(data: dict[str, Any]) -> bytes:
    return json.dumps(data, separators=(",", ":")).encode() + b"\n"


def _iso(at: datetime) -> str:
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z")
