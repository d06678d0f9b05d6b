"""Parties take turns at shared places, and none waits for the line of another."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tocsin.services.calculations import MAX_WAITING, ServerBusy, Turns


class Work:
    """Work that ends when the test says so."""

    def __init__(self, places: int) -> None:
        self.turns = Turns(places)
        self.begun: list[str] = []
        self.ends: dict[str, asyncio.Event] = {}

    async def _do(self, party: str, name: str) -> None:
        async with self.turns.turn(party):
            self.begun.append(name)
            await self.ends[name].wait()

    async def begin(self, name: str) -> "asyncio.Task[None]":
        """Begin work; its name begins with its party."""
        self.ends[name] = asyncio.Event()
        task = asyncio.create_task(self._do(name[0], name))
        await settled()
        return task

    async def end(self, *names: str) -> None:
        """End work, one after the other."""
        for name in names:
            self.ends[name].set()
            await settled()


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@asynccontextmanager
async def work(places: int, *names: str) -> AsyncIterator[Work]:
    """Yield work that has begun or waits, and end all of it."""
    all_work = Work(places)
    tasks = [await all_work.begin(name) for name in names]
    try:
        yield all_work
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert not all_work.turns.has("a")


async def test_party_leaves_a_place_to_others() -> None:
    async with work(2, "a1", "a2", "a3", "b1") as here:
        assert here.begun == ["a1", "b1"]


async def test_free_place_goes_to_the_next_party() -> None:
    async with work(1, "a1", "a2", "a3", "b1", "b2", "c1") as here:
        await here.end("a1", "b1", "c1", "a2", "b2", "a3")
        assert here.begun == ["a1", "b1", "c1", "a2", "b2", "a3"]


async def test_party_that_is_alone_continues() -> None:
    async with work(2, "a1", "a2") as here:
        await here.end("a1")
        assert here.begun == ["a1", "a2"]


async def test_line_of_a_party_is_bounded() -> None:
    async with work(1, *(f"a{number}" for number in range(MAX_WAITING + 1)), "b1") as here:
        with pytest.raises(ServerBusy):
            async with here.turns.turn("a"):
                pass
        await here.end("a0")
        assert here.begun == ["a0", "b1"]


async def test_cancelled_work_frees_its_place() -> None:
    here = Work(1)
    first, second, third = [await here.begin(name) for name in ("a1", "b1", "c1")]
    second.cancel()
    await settled()
    first.cancel()
    await settled()
    assert here.begun == ["a1", "c1"]
    third.cancel()
    await asyncio.gather(first, second, third, return_exceptions=True)
    assert not any(here.turns.has(party) for party in "abc")


async def test_place_of_a_cancelled_request_is_passed_on() -> None:
    here = Work(1)
    tasks = [await here.begin(name) for name in ("a1", "b1", "c1")]
    here.ends["a1"].set()
    await asyncio.sleep(0)  # the place is assigned to b1, which has not run yet
    tasks[1].cancel()
    await settled()
    assert here.begun == ["a1", "c1"]
    await here.end("c1")
    await asyncio.gather(*tasks, return_exceptions=True)
    assert not any(here.turns.has(party) for party in "abc")
