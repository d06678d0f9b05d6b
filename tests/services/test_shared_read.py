"""Callers share a read, and its answer for a moment."""

import asyncio
import gc
from contextlib import suppress
from typing import Any

import pytest
from typing_extensions import override

from tocsin.services import calculations
from tocsin.services.calculations import SharedRead


class Server:
    """A server that answers when it may, and counts the requests."""

    def __init__(self) -> None:
        self.requests = 0
        self.may_answer = asyncio.Event()

    async def read(self) -> int:
        self.requests += 1
        await self.may_answer.wait()
        return self.requests


async def test_callers_share_a_read_and_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calculations, "VALID_S", 3_600.0)
    server = Server()
    shared = SharedRead(server.read)
    callers = [asyncio.create_task(shared.answer()) for _ in range(9)]
    await asyncio.sleep(0)
    callers.pop().cancel()  # the others still get their answer
    server.may_answer.set()
    assert await asyncio.gather(*callers) == [1] * 8
    assert await shared.answer() == 1


async def test_old_answer_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calculations, "VALID_S", 0.0)
    server = Server()
    server.may_answer.set()
    shared = SharedRead(server.read)
    assert [await shared.answer() for _ in range(3)] == [1, 2, 3]


class Unsteady(Server):
    """A server that refuses the first request."""

    @override
    async def read(self) -> int:
        if (answer := await super().read()) == 1:
            raise ValueError("gone")
        return answer


async def test_failure_is_read_again_at_once() -> None:
    server = Unsteady()
    shared = SharedRead(server.read)
    callers = [asyncio.create_task(shared.answer()) for _ in range(3)]
    await asyncio.sleep(0)
    server.may_answer.set()
    failures = await asyncio.gather(*callers, return_exceptions=True)
    assert [type(failure) for failure in failures] == [ValueError] * 3
    assert [await shared.answer() for _ in range(2)] == [2, 2]


async def test_failure_after_all_callers_left_is_silent() -> None:
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    server = Unsteady()
    shared = SharedRead(server.read)
    caller = asyncio.create_task(shared.answer())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    caller.cancel()
    with suppress(asyncio.CancelledError):
        await caller
    server.may_answer.set()
    for _ in range(3):
        await asyncio.sleep(0)
    del shared, caller  # a task reports a failure that was not retrieved when it is collected
    gc.collect()
    assert server.requests == 1
    assert reported == []
