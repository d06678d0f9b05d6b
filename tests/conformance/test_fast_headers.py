"""Headers read fast are the headers that nats-py reads."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from nats.aio.client import Client

from tocsin.adapters.nats.fast_client import PARSER_METHOD, HeaderBlock, parse, read_headers_fast

LINES = st.lists(
    st.one_of(
        st.binary(max_size=20),
        st.tuples(st.text(max_size=8), st.sampled_from([":", ": ", ":\t", ""]), st.text(max_size=12)).map(
            lambda parts: "".join(parts).encode()
        ),
    ),
    max_size=6,
).map(b"\r\n".join)


@given(LINES)
def test_both_read_the_same(raw: bytes) -> None:
    assert parse(raw) == Client._parse_header_lines(raw)


@pytest.mark.parametrize(
    ("raw", "headers"),
    [
        (b"Nats-Sequence: 7\r\nNats-Subject: a.b:c\r\n\r\n", {"Nats-Sequence": "7", "Nats-Subject": "a.b:c"}),
        (b"No-Space:x\r\n", {"No-Space": "x"}),
        (b"no colon\r\nin side: x\r\nK\xc3\xb6nig: x\r\n", {}),
        (b"Name: caf\xc3\xa9 \xff\r\n", {"Name": "café \ufffd"}),
        (b"", {}),
    ],
)
def test_what_is_read(raw: bytes, headers: dict[str, str]) -> None:
    assert parse(raw) == headers == Client._parse_header_lines(raw)


@given(LINES)
@example(b":\r\n\t:\x00")
@example(b"Name: one\r\n Name : two")
def test_lazily_read_header_block_holds_the_same(raw: bytes) -> None:
    block = HeaderBlock(HeaderBlock.BEGIN + raw + b"\r\n\r\n")
    assert block == parse(raw) == dict(block)
    for known, value in parse(raw).items():
        if raw.isascii() and f"\r\n{known}:" in f"\r\n{raw.decode()}":
            assert block[known] == block.get(known) == value
    assert block.get("Missing") is None
    assert "Missing" not in block
    with pytest.raises(KeyError):
        block["Missing"]


def test_last_of_two_equal_header_names_counts() -> None:
    block = HeaderBlock(HeaderBlock.BEGIN + b"Name: one\r\nName: two\r\n\r\n")
    assert block["Name"] == block.get("Name") == dict(block)["Name"] == "two"


def test_a_client_reads_them_so() -> None:
    client = Client()
    read_headers_fast(client)
    assert getattr(client, PARSER_METHOD) is parse
