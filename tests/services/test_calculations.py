"""Calculations in threads: the event loop continues, and a cancelled caller ends its calculation."""

import asyncio
from contextlib import closing, suppress
from threading import Event

import pytest

from tests.system.running import DEADLINE
from tocsin.services import calculations
from tocsin.services.calculations import (
    MAX_OPEN,
    MAX_WAITING,
    CalculationAbandoned,
    Calculations,
    Effort,
    ServerBusy,
    in_place,
)


async def test_event_loop_continues_during_a_calculation() -> None:
    has_run = Event()

    def compute(effort: Effort) -> str:
        while not has_run.is_set():  # only the event loop sets it
            effort.is_spent()
        return "done"

    with closing(Calculations()) as pool:
        asyncio.get_running_loop().call_later(0.05, has_run.set)
        assert await asyncio.wait_for(pool.run(compute), DEADLINE) == "done"


async def test_calculation_ends_when_its_time_is_over() -> None:
    def compute(effort: Effort) -> int:
        rounds = 0
        while not effort.is_spent():
            rounds += 1
        return rounds

    with closing(Calculations()) as pool:
        assert await asyncio.wait_for(pool.run(compute), DEADLINE) > 0


async def test_calculation_ends_when_its_caller_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calculations, "SECONDS", float("inf"))
    began, ended = Event(), Event()

    def compute(effort: Effort) -> None:
        began.set()
        try:
            while not effort.is_spent():
                pass
        except CalculationAbandoned:
            ended.set()
            raise

    with closing(Calculations()) as pool:
        task = asyncio.create_task(pool.run(compute))
        assert await asyncio.to_thread(began.wait, DEADLINE)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        assert await asyncio.to_thread(ended.wait, DEADLINE)


async def test_calculations_beyond_the_limit_are_refused() -> None:
    released = Event()
    with closing(Calculations(threads=1, most=2)) as pool:
        tasks = [asyncio.create_task(pool.run(lambda _: released.wait(), party=party)) for party in "aa"]
        await asyncio.sleep(0)
        with pytest.raises(ServerBusy):
            await pool.run(lambda _: None, party="a")
        other = asyncio.create_task(pool.run(lambda _: "other", party="b"))
        await asyncio.sleep(0)
        assert not other.done()
        released.set()
        assert await asyncio.gather(*tasks, other) == [True, True, "other"]
        assert await pool.run(lambda _: "again") == "again"


async def test_calculations_of_a_party_wait_for_each_other() -> None:
    released, began = Event(), Event()

    def hold(_: Effort) -> bool:
        began.set()
        return released.wait()

    with closing(Calculations(threads=2)) as pool:
        held = [asyncio.create_task(pool.run(hold, party="a")) for _ in range(3)]
        assert await asyncio.to_thread(began.wait, DEADLINE)
        assert await asyncio.wait_for(pool.run(lambda _: "other", party="b"), DEADLINE) == "other"
        held[1].cancel()
        released.set()
        assert (await held[0], await held[2]) == (True, True)
        assert await pool.run(lambda _: "same", party="a") == "same"


async def test_party_with_many_calculations_is_refused_alone() -> None:
    released = Event()
    with closing(Calculations()) as pool:
        tasks = [asyncio.create_task(pool.run(lambda _: released.wait(), party="a")) for _ in range(MAX_OPEN)]
        await asyncio.sleep(0)
        assert await asyncio.wait_for(pool.run(lambda _: "other", party="b"), DEADLINE) == "other"
        released.set()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert results[: MAX_WAITING + 1] == [True] * (MAX_WAITING + 1)
        assert {type(result) for result in results[MAX_WAITING + 1 :]} == {ServerBusy}


async def test_cancelled_calculations_take_no_place() -> None:
    released = Event()
    with closing(Calculations()) as pool:
        first = asyncio.create_task(pool.run(lambda _: released.wait(), party="a"))
        await asyncio.sleep(0)
        for _ in range(2 * MAX_WAITING):
            cancelled = asyncio.create_task(pool.run(lambda _: None, party="a"))
            await asyncio.sleep(0)
            cancelled.cancel()
            await asyncio.gather(cancelled, return_exceptions=True)
        last = asyncio.create_task(pool.run(lambda _: "last", party="a"))
        await asyncio.sleep(0)
        released.set()
        assert (await first, await last) == (True, "last")


async def test_abandoned_calculation_keeps_its_turn() -> None:
    """Another calculation of the same party would take a second thread."""
    released, began = Event(), [Event(), Event()]

    def hold(number: int) -> bool:
        began[number].set()
        return released.wait()

    with closing(Calculations(threads=2)) as pool:
        first = asyncio.create_task(pool.run(lambda _: hold(0), party="a"))
        assert await asyncio.to_thread(began[0].wait, DEADLINE)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        second = asyncio.create_task(pool.run(lambda _: hold(1), party="a"))
        assert await asyncio.wait_for(pool.run(lambda _: "other", party="b"), DEADLINE) == "other"
        assert not began[1].is_set()
        released.set()
        assert await asyncio.wait_for(second, DEADLINE)


async def test_error_of_a_calculation_reaches_its_caller() -> None:
    def compute(_: Effort) -> None:
        raise ValueError("no")

    with closing(Calculations()) as pool, pytest.raises(ValueError, match="no"):
        await pool.run(compute)


async def test_calculation_in_place_has_no_limit() -> None:
    assert await in_place(lambda effort: effort.is_spent()) is False


async def test_callers_after_the_end_are_refused() -> None:
    pool = Calculations(threads=1)
    pool.close()
    for party in ("a", "b", "a"):  # each turn is given back
        with pytest.raises(RuntimeError):
            await asyncio.wait_for(pool.run(lambda _: None, party=party), DEADLINE)
