"""Handlers that would hold a simulation up, or would not end with it."""

import asyncio
import gc
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any

import pytest

from tests.testing.test_simulation import job, worker_of
from tocsin import Context
from tocsin.testing import Simulation, SimulationError, rest, worker_process

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


def parent(child: Callable[[], Coroutine[Any, Any, None]], kept: list[asyncio.Task[None]]) -> Callable[..., object]:
    """A handler that starts a task, and ends before it."""

    async def handle(_: Context) -> None:
        kept.append(asyncio.create_task(child()))
        await asyncio.sleep(0)

    return handle


def stubborn(pause: float, caught: type[BaseException]) -> Callable[[], Coroutine[Any, Any, None]]:
    """A task that never ends, and catches `caught`."""

    async def poll() -> None:
        while True:
            with suppress(caught):
                await asyncio.sleep(pause)

    return poll


@pytest.mark.parametrize("pause", [600, 0.25])
@pytest.mark.parametrize("caught", [asyncio.CancelledError, BaseException])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # it ignores GeneratorExit too
async def test_stubborn_task_of_handler_is_named(pause: float, caught: type[BaseException]) -> None:
    kept: list[asyncio.Task[None]] = []
    handler = parent(stubborn(pause, caught), kept)
    text = await error_of(handler, lambda simulation: simulation.advance("150s"), schedule="* * * * *")
    assert text.startswith("the task poll of the handler tick did not end when the simulation cancelled it")
    assert [task.done() for task in kept] == [True, True]
    kept.clear()
    gc.collect()  # so that its last warning comes in this test


async def test_task_that_starts_others_as_it_ends() -> None:
    async def poll() -> None:
        try:
            await asyncio.sleep(600)
        finally:
            kept.append(asyncio.create_task(poll()))

    kept: list[asyncio.Task[None]] = []
    text = await error_of(parent(poll, kept), lambda simulation: simulation.trigger("tick"))
    assert text.startswith("the task poll of the handler tick did not end")
    assert all(task.done() for task in kept)


async def test_task_of_handler_cleans_up() -> None:
    cleaned = list[str]()

    async def grandchild() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            await asyncio.sleep(5)
            cleaned.append("grandchild")

    async def child() -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(grandchild(), name="of the group")
        finally:
            cleaned.append("child")

    kept: list[asyncio.Task[None]] = []
    assert await error_of(parent(child, kept), lambda simulation: simulation.trigger("tick")) == ""
    assert cleaned == ["grandchild", "child"]
    assert (kept[0].cancelled(), kept[0].get_coro().__qualname__.rpartition(".")[2]) == (True, "child")  # type: ignore[union-attr]


async def test_killed_worker_ends_tasks_of_handlers() -> None:
    kept: list[asyncio.Task[None]] = []

    async def act(simulation: Simulation) -> None:
        await simulation.trigger("tick")
        await simulation.kill_worker()
        assert kept[0].cancelled()

    assert await error_of(parent(lambda: asyncio.sleep(3600), kept), act) == ""


async def test_task_that_computes_without_a_turn_is_named() -> None:
    async def spin() -> None:
        while True:
            pass

    kept: list[asyncio.Task[None]] = []
    worker = worker_of(tick=parent(spin, kept))
    async with Simulation(worker, definitions=[job()], thread_limit=0.5) as simulation:
        with pytest.raises(SimulationError, match=r"the task spin of the handler tick has run for 0\.5 s"):
            await simulation.trigger("tick")
    assert isinstance(kept[0].exception(), RuntimeError)


@pytest.mark.parametrize("is_task", [True, False])
async def test_cleanup_without_a_turn_is_named(is_task: bool) -> None:  # noqa: FBT001 - a parameter of the test
    async def spin(*_: Context) -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            while True:
                pass

    worker = worker_of(tick=parent(spin, []) if is_task else spin)
    name = "task spin of the handler tick" if is_task else "async handler tick"
    with pytest.raises(SimulationError, match=f"^the {name} did not end when the simulation cancelled it"):
        async with Simulation(worker, definitions=[job()], thread_limit=0.5) as simulation:
            await simulation.trigger("tick")


@pytest.mark.parametrize("is_task", [True, False])
async def test_end_without_a_turn_is_named(is_task: bool) -> None:  # noqa: FBT001 - a parameter of the test
    """Several ignore that they are cancelled, and compute when they are ended against their will."""

    async def spin(*_: Context) -> None:
        try:
            while True:
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(600)
        finally:
            while True:
                pass

    worker = worker_of(tick=parent(spin, []) if is_task else spin)
    name = "task spin of the handler tick" if is_task else "async handler tick"
    with pytest.raises(SimulationError, match=f"^the {name} did not end when the simulation cancelled it"):
        async with Simulation(worker, definitions=[job(overlap_policy="allow")], thread_limit=0.5) as simulation:
            await asyncio.gather(simulation.trigger("tick"), simulation.trigger("tick"))


async def test_cleanup_that_polls_too_often_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rest, "CLEANUP_WAKES", 1_000)
    wakes = 0

    async def tick(_: Context) -> None:
        nonlocal wakes
        try:
            await asyncio.sleep(3600)
        finally:
            while True:
                await asyncio.sleep(1e-9)
                wakes += 1

    text = await error_of(tick, lambda simulation: simulation.trigger("tick"))
    assert text.startswith("the async handler tick did not end when the simulation cancelled it")
    assert 500 < wakes <= 1_000


async def test_tasks_of_the_test_are_not_touched() -> None:
    kept: list[asyncio.Task[None]] = []
    task = asyncio.create_task(asyncio.sleep(0.05, "own"))
    async with Simulation(worker_of(tick=parent(lambda: asyncio.sleep(3600), kept)), definitions=[job()]) as simulation:
        await simulation.trigger("tick")
    assert (kept[0].cancelled(), await task) == (True, "own")
