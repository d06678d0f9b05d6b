"""Handlers that would hold a simulation up, or would not end with it."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest

from tests.testing.test_simulation import job, worker_of
from tocsin import Context
from tocsin.testing import Simulation, SimulationError, worker_process

Act = Callable[[Simulation], Awaitable[object]]


def endless(pause: float, caught: type[BaseException]) -> Callable[..., object]:
    """A handler that never ends, and catches `caught` when it is cancelled."""

    async def handle(_: Context) -> None:
        while True:
            with suppress(caught):
                await asyncio.sleep(pause)

    return handle


async def error_of(handler: Callable[..., object], act: Act, **fields: Any) -> str:  # noqa: ANN401 - fields of a job
    """The error of a simulation with a job for a handler."""
    try:
        async with Simulation(worker_of(tick=handler), definitions=[job(**fields)]) as simulation:
            await act(simulation)
    except SimulationError as error:
        assert not [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        return str(error)
    return ""


@pytest.mark.parametrize("limit", ["1h", "10s"])
async def test_handler_that_swallows_its_cancellation_is_named(limit: str) -> None:
    async def act(simulation: Simulation) -> None:
        await simulation.advance("3m")
        await simulation.kill_worker()

    text = await error_of(endless(600, asyncio.CancelledError), act, schedule="* * * * *", timeout=limit)
    assert text.startswith("the async handler tick did not end when the simulation cancelled it")


async def test_error_before_the_end_comes_first() -> None:
    text = await error_of(endless(0, asyncio.CancelledError), lambda simulation: simulation.trigger("tick"))
    assert "never rests" in text


async def test_handler_cleans_up_at_the_end() -> None:
    cleaned = False

    async def tick(_: Context) -> None:
        nonlocal cleaned
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            await asyncio.sleep(1)
            await asyncio.to_thread(int)
            cleaned = True
            raise

    assert await error_of(tick, lambda simulation: simulation.trigger("tick")) == ""
    assert cleaned


@pytest.mark.parametrize("limit", ["1h", "5s"])
async def test_handler_that_polls_too_often_is_named(monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    monkeypatch.setattr(worker_process, "MAX_WAKES", 2_000)
    handler = endless(0.001, ValueError)
    act: Act = lambda simulation: simulation.advance("3 days")  # noqa: E731 - a short one
    assert "handler tick wakes up so often" in await error_of(handler, act, schedule="* * * * *", timeout=limit)


async def test_handlers_may_poll_each_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_process, "MAX_WAKES", 50)
    ended = 0

    async def tick(_: Context) -> None:
        nonlocal ended
        for _count in range(500):
            await asyncio.sleep(0.5)
        ended += 1

    act: Act = lambda simulation: simulation.advance("7m")  # noqa: E731 - likewise
    assert await error_of(tick, act, schedule="* * * * *", overlap_policy="allow") == ""
    assert ended == 2
