"""Work that waits during a rush waits at most two seconds, on a clock that only jumps."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar, cast

import pytest

from tests.domain.given import NOON
from tests.simulation.loop import VirtualLoop
from tocsin.adapters.nats.consumers.priority import (
    MAX_POSTPONED,
    RUSH_LIMIT_S,
    RUSH_SIZE,
    PostponedWork,
    PriorityGate,
    Turns,
)
from tocsin.domain.events import Recorded, Trigger
from tocsin.engine.delivery_policy import Postponed
from tocsin.engine.items import Item
from tocsin.engine.stage import BoundSubscription
from tocsin.engine.step import DONE
from tocsin.subjects import Stream, trigger

LIMIT_S: Final = 2.0
ENDLESS_S: Final = 10.0
T = TypeVar("T")
SUBSCRIPTION: Final = BoundSubscription("test", Stream.REQUESTS, ("trigger.>",), lambda *_: DONE)


def played(main: Callable[[VirtualLoop], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine on a loop whose time only jumps."""
    tasks: list[asyncio.Task[Any]] = []
    loop = VirtualLoop(tasks.append)  # type: ignore[abstract] # it lacks methods that no test calls
    result = loop.run(main(loop))
    assert loop.end(tasks) == []
    assert loop.errors == []
    return result


async def rush(gate: PriorityGate, *, pause: float, lasts: float = ENDLESS_S) -> None:
    """Handle full batches one after the other, with a pause between them."""
    turns, loop = Turns(gate, low_priority=False), asyncio.get_running_loop()
    end = loop.time() + lasts
    while loop.time() < end:
        with turns.handling(RUSH_SIZE):
            await asyncio.sleep(0.05)
        await asyncio.sleep(pause)


@pytest.mark.parametrize("pause", [0.0, 0.015])
@pytest.mark.parametrize("after", [0.0, 1.0, 1.79])
def test_endless_rush_holds_a_turn_two_seconds(pause: float, after: float) -> None:
    async def main(loop: VirtualLoop) -> tuple[float, list[float]]:
        gate = PriorityGate()
        loop.create_task(rush(gate, pause=pause))
        await asyncio.sleep(after)
        turns, waits = Turns(gate, low_priority=True), list[float]()
        began = loop.time()
        await turns.come()
        first = loop.time() - began
        while loop.time() < ENDLESS_S - 1:
            asked = loop.time()
            await turns.come()
            waits.append(loop.time() - asked)
            await asyncio.sleep(0.1)
        return first, waits

    first, waits = played(main)
    assert 0 < first <= LIMIT_S - after
    assert set(waits) == {0.0}  # a rush without an end is a steady load


@pytest.mark.parametrize("lasts", [0.0, 0.5, 1.0, ENDLESS_S])
def test_rushes_here_and_elsewhere_wait_together(lasts: float) -> None:
    """A batch waits for its turn during a rush of this process, and then for one in another process."""

    async def main(loop: VirtualLoop) -> tuple[float, int]:
        gate, measured = PriorityGate(), 0

        async def growing() -> int:
            nonlocal measured
            measured += 1
            return measured * RUSH_SIZE

        if lasts:
            loop.create_task(rush(gate, pause=0.0, lasts=lasts))
            await asyncio.sleep(0.01)
        turns, began = Turns(gate, low_priority=True), loop.time()
        await turns.come()
        await turns.await_starts(RUSH_SIZE, growing)
        waited = loop.time() - began
        await asyncio.sleep(lasts)
        return waited, measured

    waited, measured = played(main)
    assert RUSH_LIMIT_S - 0.01 <= waited <= LIMIT_S
    assert (measured > 2) == (lasts < RUSH_LIMIT_S)  # otherwise nothing is left of its patience


def postponed(number: int) -> Postponed:
    recorded = Recorded(Trigger(), trigger(f"job-{number}"), number + 1, NOON)
    return Postponed(SUBSCRIPTION, ((cast("Any", None), Item(recorded, f"job-{number}")),))


def test_postponed_work_waits_at_most_two_seconds() -> None:
    async def main(loop: VirtualLoop) -> tuple[dict[object, float], dict[object, float]]:
        gate, added, finished = PriorityGate(), dict[object, float](), dict[object, float]()

        async def finish(part: Postponed) -> None:
            for key in part.keys:
                finished[key] = loop.time()

        work = PostponedWork(gate, finish)
        loop.create_task(rush(gate, pause=0.0))
        number = 0
        while loop.time() < ENDLESS_S - 3:
            await asyncio.sleep(0.1)
            if gate.is_rush:  # as the stage router does: no decision is postponed outside of a rush
                part = postponed(number)
                added.update(dict.fromkeys(part.keys, loop.time()))
                await work.add(part)
                number += 1
        await asyncio.sleep(3)
        return added, finished

    added, finished = played(main)
    assert len(added) > 1
    assert finished.keys() == added.keys()
    assert all(finished[key] - at <= LIMIT_S for key, at in added.items())
    assert max(finished.values()) <= LIMIT_S  # it began with the loop


def test_postponed_work_is_bounded_in_number() -> None:
    async def main(_: VirtualLoop) -> int:
        gate, waiting, most = PriorityGate(patience=1e9), 0, 0

        async def finish(part: Postponed) -> None:
            nonlocal waiting
            waiting -= len(part.items)

        work = PostponedWork(gate, finish)
        with gate.rush():
            for number in range(2 * MAX_POSTPONED):
                waiting += 1
                await work.add(postponed(number))
                most = max(most, waiting)
            await work.finish()
        assert waiting == 0
        return most

    assert played(main) == MAX_POSTPONED
