"""The snapshots of streams that nats-server makes: a compressed archive of messages.

The archive begins with `NATSARC1`. Entries follow: the length of a name, a time in nanoseconds, a sequence, the sizes of headers and
body, the name, headers and body. The first entry is the state of the stream, the name of each other is a subject, and an empty entry
ends the archive. nats-server has this format since 2.15.
"""

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

from ....ports import Extent
from . import s2

MAGIC: Final = b"NATSARC1"
STATE: Final = "state.json"
_MAX_NAME: Final = 1_048_576
_MAX_SIZE: Final = 67_108_864
"""Bytes of the largest message that a nats-server can be configured to take."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class SnapshotDamaged(ValueError):
    """A file is not a whole snapshot of a stream; the text says why."""


class Entry(NamedTuple):
    """A message as a stream stores it, or the stream's state."""

    name: str
    nanoseconds: int
    sequence: int
    headers: bytes
    body: bytes

    @property
    def time(self) -> datetime:
        """The time at which the stream stored it (UTC), truncated as on every other path."""
        return _EPOCH + timedelta(microseconds=self.nanoseconds // 1_000)

    def header_fields(self) -> dict[str, str]:
        """Return the headers by name."""
        lines = self.headers.decode("utf-8", "replace").split("\r\n")
        fields = (line.partition(":") for line in lines[1:] if line)
        return {name: value.strip() for name, _, value in fields}


def entries(path: Path) -> Iterator[Entry]:
    """Yield the messages of a snapshot, in their order.

    Raises:
        SnapshotDamaged: the file is damaged or truncated.
    """
    with path.open("rb") as file:
        archive = _Archive(s2.blocks(file).__next__)
        archive.read_state()
        newest = 0
        while (entry := archive.next()) is not None:
            if entry.sequence <= newest:
                raise SnapshotDamaged(f"sequence {entry.sequence:,} follows {newest:,}: the order is wrong")
            newest = entry.sequence
            yield entry


def content(path: Path) -> Extent:
    """Read a whole snapshot, and return its messages and range; it raises as `entries` does."""
    with path.open("rb") as file:
        state = _Archive(s2.blocks(file).__next__).read_state()
    messages = newest = 0
    for entry in entries(path):
        messages += 1
        newest = entry.sequence
    return Extent(state["first_seq"], max(newest, state["last_seq"]), messages)


def continued(file: BinaryIO, size: int, *, last: int | None) -> Iterator[bytes]:
    """Yield a snapshot in pieces, with another last sequence of its stream.

    Pieces have about `size` bytes. The restored stream then continues after `last`. None: it continues after its last message.
    """
    if last is not None:
        reading = s2.blocks(file)
        archive = _Archive(reading.__next__)
        state = archive.read_state()
        state |= {"first_seq": max(1, state["first_seq"]), "last_seq": last}  # the server leaves a stream at 0 as it is
        body = json.dumps(state).encode()
        begin = MAGIC + _entry_head(STATE.encode(), len(body)) + body
        yield s2.IDENTIFIER
        yield s2.plain_chunk(begin)
        rest = archive.rest()
        for at in range(0, len(rest), size):
            yield s2.plain_chunk(rest[at : at + size])
    while piece := file.read(size):
        yield piece


def _entry_head(name: bytes, size: int) -> bytes:
    """Return the beginning of an entry without time, sequence and headers."""
    return _uvarint(len(name)) + b"\0\0\0" + _uvarint(size) + name


def _uvarint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:  # noqa: PLR2004 - seven bits to a byte
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


class _Archive:
    """A reader of entries from decompressed blocks."""

    def __init__(self, next_block: Callable[[], bytes]) -> None:
        self._next_block = next_block
        self._data = b""
        self._at = 0

    def read_state(self) -> dict[str, Any]:
        """Read the beginning, and return the state of the stream."""
        if self._take(len(MAGIC)) != MAGIC:
            raise SnapshotDamaged("it is not a snapshot of nats-server 2.15 or later")
        entry = self.next()
        if entry is None or entry.name != STATE:
            raise SnapshotDamaged("it does not begin with the state of its stream")
        try:
            state: dict[str, Any] = json.loads(entry.body)
            int(state["first_seq"]), int(state["last_seq"])
        except (KeyError, TypeError, ValueError):
            raise SnapshotDamaged("the state of its stream cannot be read") from None
        return state

    def next(self) -> Entry | None:
        """Return the next entry; None: the end."""
        length = self._uvarint()
        time = self._uvarint()
        sequence, headers, body = self._uvarint(), self._uvarint(), self._uvarint()
        if not (length or time or sequence or headers or body):
            return None
        if length > _MAX_NAME or headers > _MAX_SIZE or body > _MAX_SIZE:
            raise SnapshotDamaged(f"the entry of sequence {sequence:,} is too large")
        nanoseconds = time >> 1 ^ -(time & 1)
        name = self._take(length).decode("utf-8", "replace")
        return Entry(name, nanoseconds, sequence, self._take(headers), self._take(body))

    def rest(self) -> bytes:
        """Return the rest of the block that is being read."""
        return self._data[self._at :]

    def _take(self, size: int) -> bytes:
        while len(self._data) - self._at < size:
            self._load()
        begin, self._at = self._at, self._at + size
        return self._data[begin : self._at]

    def _uvarint(self) -> int:
        value = shift = 0
        while True:
            if self._at == len(self._data):
                self._load()
            byte = self._data[self._at]
            self._at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:  # noqa: PLR2004 - the last byte has no high bit
                return value
            shift += 7
            if shift > 63:  # noqa: PLR2004 - 64 bits
                raise SnapshotDamaged("a number is longer than 64 bits")

    def _load(self) -> None:
        try:
            self._data = self._data[self._at :] + self._next_block()
        except StopIteration:
            raise SnapshotDamaged("it is truncated: its end is missing") from None
        except s2.DamagedS2 as error:
            raise SnapshotDamaged(f"its compression is damaged: {error}") from None
        self._at = 0
