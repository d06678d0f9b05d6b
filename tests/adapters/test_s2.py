"""The S2 format, as nats-server writes it, and what a damaged file is called."""

import io
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.adapters.nats.backup.s2 import IDENTIFIER, DamagedS2, blocks, plain_chunk


def chunk(kind: int, body: bytes) -> bytes:
    return bytes([kind]) + len(body).to_bytes(3, "little") + body


def compressed(*elements: bytes, size: int) -> bytes:
    return chunk(0, b"\0\0\0\0" + bytes([size]) + b"".join(elements))


def read(*chunks: bytes) -> bytes:
    return b"".join(blocks(io.BytesIO(IDENTIFIER + b"".join(chunks))))


@pytest.mark.parametrize(
    ("elements", "expected"),
    [
        ([b"\x08abc"], b"abc"),
        ([b"\xf0\x02abc"], b"abc"),
        ([b"\xf4\x02\0abc"], b"abc"),
        ([b"\x0cabcd", b"\x01\x04"], b"abcdabcd"),
        ([b"\x00a", b"\x15\x01"], b"a" * 10),
        ([b"\x04ab", b"\x09\x02"], b"abababab"),
        ([b"\x0cabcd", b"\x0e\x04\x00"], b"abcdabcd"),
        ([b"\x0cabcd", b"\x0f\x04\x00\x00\x00"], b"abcdabcd"),
        ([b"\x0cabcd", b"\x01\x04", b"\x01\x00"], b"abcdabcdabcd"),
        ([b"\x0cabcd", b"\x01\x04", b"\x15\x00\x01"], b"abcd" * 2 + b"abcdabcda"),
    ],
    ids=[
        *("literal", "long literal", "longer literal", "near copy", "overlapping copy", "repeated pattern"),
        *("far copy", "farther copy", "repeated offset", "long repeat"),
    ],
)
def test_block_is_decompressed(elements: list[bytes], expected: bytes) -> None:
    assert read(compressed(*elements, size=len(expected))) == expected


def test_chunks_that_may_be_ignored_are_ignored() -> None:
    assert read(chunk(0xFE, b"\0\0"), plain_chunk(b"abc"), chunk(0x99, b"index")) == b"abc"


def test_checksum_is_the_masked_castagnoli_sum() -> None:
    assert plain_chunk(b"123456789")[4:8] == ((0xE3069283 >> 15 | 0xE3069283 << 17) + 0xA282EAD8 & 0xFFFFFFFF).to_bytes(
        4, "little"
    )


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"NATSARC1",
        IDENTIFIER + b"\x01",
        IDENTIFIER + b"\x01\x09\0\0",
        IDENTIFIER + chunk(0x02, b""),
        IDENTIFIER + compressed(b"\x08abc", size=4),
        IDENTIFIER + compressed(b"\x08ab", size=3),
        IDENTIFIER + compressed(b"\x01\x04", size=4),
        IDENTIFIER + compressed(b"\x00a", b"\x0e\x00\x00", size=5),
        IDENTIFIER + chunk(0, b"\0\0\0\0\xff\xff\xff\xff\x0f"),
    ],
    ids=[
        *("empty", "other format", "cut header", "cut body", "unknown chunk", "short block", "cut literal"),
        *("copy of nothing", "copy from offset 0", "huge block"),
    ],
)
def test_damage_is_refused(data: bytes) -> None:
    with pytest.raises(DamagedS2):
        b"".join(blocks(io.BytesIO(data)))


@given(st.lists(st.binary(min_size=1, max_size=300), max_size=5))
def test_plain_chunks_return_their_data(parts: list[bytes]) -> None:
    assert read(*map(plain_chunk, parts)) == b"".join(parts)


@given(st.binary(max_size=200))
def test_any_block_is_decompressed_or_refused(block: bytes) -> None:
    with suppress(DamagedS2):
        read(chunk(0, b"\0\0\0\0" + block))
