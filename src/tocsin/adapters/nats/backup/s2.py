"""The S2 format, in which nats-server compresses snapshots of streams.

A file is a sequence of chunks: one byte of type, three of length, and a body. Chunks of data begin with a checksum. S2 extends
Snappy with blocks of up to 4 MiB and with copies that repeat the last offset. Reading does not compare the checksums, because a
backup has a digest of each file.

Format: https://github.com/google/snappy/blob/main/framing_format.txt and https://github.com/klauspost/compress/tree/master/s2
"""

from collections.abc import Iterator
from typing import BinaryIO, Final

IDENTIFIER: Final = b"\xff\x06\x00\x00S2sTwO"
"""The first chunk of a file."""
MAX_BLOCK: Final = 4_194_304
"""Bytes of the largest block that the format allows."""
_COMPRESSED: Final = 0x00
_PLAIN: Final = 0x01
_SKIPPABLE: Final = 0x80
"""The first type of the chunks that a reader may ignore."""
_HEADER: Final = 4
_CHECKSUM: Final = 4


class DamagedS2(ValueError):
    """The bytes are not in the S2 format."""


def blocks(file: BinaryIO) -> Iterator[bytes]:
    """Yield the decompressed blocks of a file, or raise `DamagedS2`."""
    if file.read(len(IDENTIFIER)) != IDENTIFIER:
        raise DamagedS2("it does not begin as an S2 file does")
    while header := file.read(_HEADER):
        length = int.from_bytes(header[1:], "little")
        body = file.read(length)
        if len(header) < _HEADER or len(body) < length:
            raise DamagedS2("it ends within a chunk")
        kind = header[0]
        if kind == _PLAIN:
            yield body[_CHECKSUM:]
        elif kind == _COMPRESSED:
            yield _decompressed(body[_CHECKSUM:])
        elif kind < _SKIPPABLE:
            raise DamagedS2(f"it has a chunk of the unknown type {kind}")


def plain_chunk(data: bytes) -> bytes:
    """Return a chunk with uncompressed data."""
    crc = _crc32c(data)
    masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
    length = len(data) + _CHECKSUM
    return bytes([_PLAIN]) + length.to_bytes(3, "little") + masked.to_bytes(4, "little") + data


def _decompressed(source: bytes) -> bytes:
    """Return the content of a compressed block."""
    try:
        size, at = _varint(source)
        if size > MAX_BLOCK:
            raise DamagedS2(f"a block of {size:,} bytes is larger than the format allows")
        out = bytearray()
        _copy_all(source, at, out, size)
    except IndexError:
        raise DamagedS2("a block ends within a copy") from None
    if len(out) != size:
        raise DamagedS2(f"a block has {len(out):,} bytes in place of {size:,}")
    return bytes(out)


def _copy_all(source: bytes, at: int, out: bytearray, size: int) -> None:
    """Append what the elements of a block say: literals, and copies of earlier bytes."""
    offset, end = 1, len(source)
    while at < end and len(out) <= size:
        tag = source[at]
        kind = tag & 3
        if kind == 0:
            length = tag >> 2
            at += 1
            if length >= 60:  # noqa: PLR2004 - 60 to 63: the length follows in one to four bytes
                width = length - 59
                length = int.from_bytes(source[at : at + width], "little")
                at += width
            out += source[at : at + length + 1]
            at += length + 1
            continue
        if kind == 1:
            length = tag >> 2 & 7
            near = (tag & 0xE0) << 3 | source[at + 1]
            at += 2
            if near:
                offset = near
            elif length > 4:  # noqa: PLR2004 - 5 to 7: the length of a repeat follows in one to three bytes
                width = length - 4
                length = int.from_bytes(source[at : at + width], "little") + (0, 4, 256, 65_536)[width]
                at += width
            length += 4
        else:
            width = 2 if kind == 2 else 4  # noqa: PLR2004 - the kinds of copies with long offsets
            length = (tag >> 2) + 1
            offset = int.from_bytes(source[at + 1 : at + 1 + width], "little")
            at += 1 + width
        _copy(out, offset, length)


def _copy(out: bytearray, offset: int, length: int) -> None:
    begin = len(out) - offset
    if begin < 0 or offset == 0:
        raise DamagedS2("a copy begins before its block")
    if offset >= length:
        out += out[begin : begin + length]
        return
    pattern = out[begin:]  # the copy overlaps what it writes, so that it repeats the pattern
    out += (pattern * (length // offset + 1))[:length]


def _varint(source: bytes) -> tuple[int, int]:
    """Return the number at the beginning, and the position after it."""
    value = at = 0
    while source[at] & 0x80:
        value |= (source[at] & 0x7F) << 7 * at
        at += 1
    return value | source[at] << 7 * at, at + 1


def _crc_table() -> Iterator[int]:
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)  # noqa: PLW2901 - the algorithm
        yield value


_CRC_TABLE: Final = tuple(_crc_table())


def _crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _CRC_TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF
