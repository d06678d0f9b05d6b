"""Callers share a read, and its answer for a moment."""

import asyncio
from contextlib import suppress

import pytest

from tocsin.services import shared_read
from tocsin.services.shared_read import SharedRead


class Server:
    """A server that answers when it may, and counts the requests."""

    def __init__(self) -> None:
        self.requests = 0
        self.may_answer = asyncio.Event()

    async def read(self) -> int:
        self.requests += 1
        await self.may_answer.wait()
        return self.requests


async def test_callers_share_a_read_and_its_answer() -> None:
    server = Server()
    shared = SharedRead(server.read)
    callers = [asyncio.create_task(shared.answer()) for _ in range(9)]
    await asyncio.sleep(0)
    callers.pop().cancel()  # the others still get their answer
    server.may_answer.set()
    assert await asyncio.gather(*callers) == [1] * 8
    assert await shared.answer() == 1


async def test_old_answer_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_read, "VALID_S", 0.0)
    server = Server()
    server.may_answer.set()
    shared = SharedRead(server.read)
    assert [await shared.answer() for _ in range(3)] == [1, 2, 3]


async def test_failure_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_read, "VALID_S", 0.0)
    answers = iter((ValueError("gone"), 7))

    async def read() -> int:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    shared = SharedRead(read)
    with suppress(ValueError):
        await shared.answer()
    assert await shared.answer() == 7
