"""Reading of server-sent events, in pieces of any size."""

from collections.abc import AsyncIterator, Mapping
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.adapters.http import event_stream
from tocsin.adapters.http.event_stream import COMMENT, EndlessLine, events

ANSWER = 'retry: 2000\n\n: nothing new\n\nid: 1.2\nevent: défined\ndata: {"a": ": b"}\nother: x\n\nid: 1.3\ndata: cut'.encode()


async def read(*pieces: bytes) -> list[Mapping[str, str]]:
    async def given_pieces() -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece

    return [event async for event in events(given_pieces())]


@given(st.lists(st.integers(0, len(ANSWER)), max_size=8).map(sorted))
async def test_events_are_whole_for_any_pieces(cuts: list[int]) -> None:
    edges = [0, *cuts, len(ANSWER)]
    assert await read(*(ANSWER[begin:end] for begin, end in pairwise(edges))) == [
        {"retry": "2000"},
        {COMMENT: "nothing new"},
        {"id": "1.2", "event": "défined", "data": '{"a": ": b"}'},
    ]


async def test_line_without_an_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "MAX_LINE_BYTES", 10)
    with pytest.raises(EndlessLine):
        await read(b"data: 12345", b"6789")
