"""Two stages of one process decide on one state, in many orders of the steps between their awaits."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from datetime import datetime
from functools import partial
from itertools import combinations, islice
from typing import Any, Final, cast

import pytest

from tests.engine.test_waves import Decision, RecordingLog, counter, increment, items, name_of
from tocsin.domain.events import Message, Recorded
from tocsin.engine.items import Item, Result
from tocsin.engine.states import StateStore
from tocsin.engine.step import Sources, States, Step, done
from tocsin.engine.waves import Waves
from tocsin.ports import EventLog
from tocsin.testing import InMemoryProjections

SIDES: Final = (1, 2)
MOST_READS: Final = 8
"""Reads of two decisions together, in any order: a state is read after a conflict, and again if nothing is new."""
ALTERNATING: Final = 200
"""Steps in which the sides alternate; then each goes on to its end."""

_side: ContextVar[int] = ContextVar("side", default=0)


class TwoSides(asyncio.SelectorEventLoop):
    """An event loop of two tasks and their children; the test chooses which of the two sides goes on."""

    def __init__(self) -> None:
        super().__init__()
        self._ready_of: dict[int, deque[asyncio.Handle]] = {0: deque(), 1: deque(), 2: deque()}

    def call_soon(
        self,
        callback: Callable[..., object],
        *args: object,
        context: Context | None = None,
    ) -> asyncio.Handle:
        context = copy_context() if context is None else context
        handle = asyncio.Handle(callback, args, self, context)
        self._ready_of[context.get(_side, 0)].append(handle)
        return handle

    @contextmanager
    def running(self) -> Iterator[None]:
        asyncio._set_running_loop(self)
        try:
            yield
        finally:
            asyncio._set_running_loop(None)
            self.close()

    def begin(self, side: int, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        context = copy_context()
        context.run(_side.set, side)
        return self.create_task(coroutine, context=context)

    def step(self, side: int) -> bool:
        """Let a side go on to its next await; return whether it could."""
        if not self._ready_of[side]:
            return False
        self._ready_of[side].popleft()._run()
        return True


class CountingLog:
    """Counts reads, and gives other tasks a turn before and after each request."""

    def __init__(self, log: RecordingLog) -> None:
        self._log = log
        self.reads = 0

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - as the log
        method = getattr(self._log, name)
        return partial(self._request, method, name) if name in {"load", "load_each", "tails", "write"} else method

    async def _request(self, method: Callable[..., Awaitable[Any]], name: str, *args: Any, **options: Any) -> Any:  # noqa: ANN401
        self.reads += name.startswith("load")
        await asyncio.sleep(0)
        answer = await method(*args, **options)
        await asyncio.sleep(0)
        return answer


def rest(recorded: Recorded[Message], states: States, _: datetime) -> Step:
    """Find nothing to do, by the newest state."""
    ref = counter(name_of(recorded))
    states(ref)
    return done(rests_on=(ref,))


def look(recorded: Recorded[Message], states: States, now: datetime) -> Step:
    """Add to a state that is read for the wave."""
    states.fresh(counter(name_of(recorded)))
    return increment(recorded, states, now)


DECISIONS: Final = (increment, rest, look)


def play(decisions: tuple[Decision, Decision], cached: str, changes: Iterable[int]) -> int:
    """Decide, and let the other side go on from each of some steps on; return the number of steps."""
    loop, real = TwoSides(), RecordingLog()
    log = CountingLog(real)
    with loop.running():
        store = StateStore(Sources.of(cast("EventLog", log), InMemoryProjections(real.clock), real.clock))

        async def prepare() -> None:
            if cached != "nothing":
                await real.increment("a")
                await Waves(store).run(rest, items("a"))
            if cached == "an outdated state":
                await real.increment("a")

        loop.begin(0, prepare())
        while loop.step(0):
            pass
        before, log.reads = len(real._load(counter("a").key)), 0
        batches: list[list[Item]] = [items("a") for _ in decisions]
        for side, decide, batch in zip(SIDES, decisions, batches, strict=True):
            loop.begin(side, Waves(store).run(decide, batch))
        order = f"{[decide.__name__ for decide in decisions]} {cached} {list(islice(changes := list(changes), 9))}"
        side, steps, remaining = 1, 0, set(changes)
        while True:
            side = 3 - side if steps in remaining else side
            if not loop.step(side) and not loop.step(side := 3 - side):
                break
            steps += 1
        outcomes = [item.outcome.result for batch in batches for item in batch if item.outcome]
        assert outcomes == [Result.DONE] * 2, order
        assert log.reads <= MOST_READS, order
        added = sum(decide is not rest for decide in decisions)
        assert len(real._load(counter("a").key)) == before + added, order
    return steps


def alternations() -> Iterator[list[int]]:
    """Orders in which both sides go on by turns, for one to three steps each, from some step on."""
    for begin in range(20):
        for first in range(1, 4):
            for second in range(1, 4):
                turns = range(begin, begin + ALTERNATING, first + second)
                yield [step for at in turns for step in (at, at + first)]


@pytest.mark.parametrize("cached", ["nothing", "a state", "an outdated state"])
@pytest.mark.parametrize("second", DECISIONS)
@pytest.mark.parametrize("first", DECISIONS)
def test_decisions_on_one_state_end_in_any_order(first: Decision, second: Decision, cached: str) -> None:
    steps = play((first, second), cached, ())
    for changes in (*combinations(range(steps + 5), 2), *alternations()):
        play((first, second), cached, changes)
