"""Requests to the API of the same process, and answers without an end."""

import asyncio

import pytest
from starlette.types import Receive, Scope, Send

from tests.system.running import DEADLINE
from tocsin.adapters.grpc.service import MAX_PIECES, Api, Caller, Refused

CALLER = Caller("127.0.0.1")


async def test_endless_answer_ends_when_its_reader_leaves() -> None:
    waits, is_over = asyncio.Event(), asyncio.Event()

    async def app(_: Scope, __: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            for number in range(MAX_PIECES + 2):  # the reader takes one piece, and the last has no place
                if number == MAX_PIECES + 1:
                    waits.set()
                await send({"type": "http.response.body", "body": b"x", "more_body": True})
        finally:
            is_over.set()

    pieces = Api(app).pieces(CALLER, "/v1/events", {})
    async with asyncio.timeout(DEADLINE):
        assert await anext(pieces) == b"x"
        await waits.wait()
        await pieces.aclose()
    assert is_over.is_set()


async def test_answer_that_never_begins_is_a_refusal() -> None:
    async def app(_: Scope, __: Receive, ___: Send) -> None:
        raise RuntimeError("no answer")

    async with asyncio.timeout(DEADLINE):
        with pytest.raises(Refused) as caught:
            await anext(Api(app).pieces(CALLER, "/v1/events", {}))
    assert (caught.value.status, caught.value.code) == (500, "unforeseen")
