"""Headers read fast are the headers that nats-py reads."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from nats.aio.client import Client

from tocsin.adapters.nats.fast_client import PARSER_METHOD, HeaderBlock, parse, read_headers_fast
from tocsin.subjects import EXPECTED_SEQUENCE, EXPECTED_SUBJECT, MESSAGE_ID, ORIGIN, foreign_reason

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


SCOPE = "tocsin.0.execution.j.1.>"
SIZE = "Nats-Msg-Size"
GUARD = st.sampled_from(
    [
        *(f"{name}: {SCOPE}" for name in (EXPECTED_SUBJECT, ORIGIN, MESSAGE_ID)),
        *(f"{EXPECTED_SUBJECT}:{space}{SCOPE}{space}" for space in ("", " ", "\t")),
        *(f"{EXPECTED_SUBJECT}: {other}" for other in ("", "tocsin.0.execution.j.2.>", "execution.j.1.>")),
        *(f"{EXPECTED_SEQUENCE}: {number}" for number in (0, 7, "")),
        f"{SIZE}: 473",
        "",
        "no colon",
    ]
)


@given(st.lists(GUARD, max_size=5))
@example([f"{EXPECTED_SEQUENCE}: 7", f"{EXPECTED_SUBJECT}: {SCOPE}"])
@example([f"{EXPECTED_SEQUENCE}: 7", f"{EXPECTED_SUBJECT}: {SCOPE}", f"{SIZE}: 473"])
@example([f"{EXPECTED_SEQUENCE}: 7", f"{EXPECTED_SUBJECT}: {SCOPE}", f"{ORIGIN}: TOCSIN_LOG"])
def test_guard_is_judged_as_in_parsed_headers(lines: list[str]) -> None:
    raw = "\r\n".join(lines).encode()
    block = HeaderBlock(HeaderBlock.BEGIN + raw + b"\r\n\r\n")
    subject = "execution.j.1.started.main.1.1"
    for is_reply in (None, True, False):
        judged = foreign_reason(subject, block, is_reply=is_reply)
        assert judged == foreign_reason(subject, parse(raw), is_reply=is_reply)
    assert (block.sole_guard is not None) <= ({*parse(raw)} - {SIZE} == {EXPECTED_SEQUENCE, EXPECTED_SUBJECT})


@pytest.mark.parametrize("size", ["", f"{SIZE}: 473\r\n"])
def test_headers_of_a_plain_decision_are_a_guard(size: str) -> None:
    raw = f"{EXPECTED_SEQUENCE}: 7\r\n{EXPECTED_SUBJECT}: {SCOPE}\r\n{size}\r\n".encode()
    assert HeaderBlock(HeaderBlock.BEGIN + raw).sole_guard == SCOPE


def test_last_of_two_equal_header_names_counts() -> None:
    block = HeaderBlock(HeaderBlock.BEGIN + b"Name: one\r\nName: two\r\n\r\n")
    assert block["Name"] == block.get("Name") == dict(block)["Name"] == "two"


def test_a_client_reads_them_so() -> None:
    client = Client()
    read_headers_fast(client)
    assert getattr(client, PARSER_METHOD) is parse
