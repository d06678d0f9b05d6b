"""The load during chaos: every overlap policy, graphs, retries and final failures, at a steady rate."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count, cycle
from typing import Any, Final

from tests.system.gaps import TICK
from tests.system.processes import Site
from tocsin import subjects
from tocsin.domain.events import Trigger
from tocsin.ports import LogUnavailable

RETRY: Final = {"max_attempts": 4, "initial_delay": 0.2, "multiplier": 1.5}
FAN: Final[list[dict[str, Any]]] = [
    {"name": "split", "function": "work"},
    *({"name": f"part-{n}", "function": "work", "depends_on": ["split"]} for n in range(4)),
    {"name": "late", "function": "slow", "input": {"seconds": 0.5}, "depends_on": ["split"]},
    {
        "name": "join",
        "function": "flaky",
        "input": {"failures": 1},
        "depends_on": [*(f"part-{n}" for n in range(4)), "late"],
    },
]
BROKEN: Final[list[dict[str, Any]]] = [
    {"name": "first", "function": "work"},
    {"name": "second", "function": "broken", "depends_on": ["first"]},
    {"name": "never", "function": "work", "depends_on": ["second"]},
]
SCHEDULED: Final[list[dict[str, Any]]] = [
    TICK,
    {"name": "skips", "schedule": "* * * * * *", "function": "slow", "input": {"seconds": 1.2}},
    {
        "name": "replaces",
        "schedule": "*/2 * * * * *",
        "function": "slow",
        "input": {"seconds": 2.5},
        "overlap_policy": "cancel_previous",
    },
]
TRIGGERED: Final[list[dict[str, Any]]] = [
    {"name": "queues", "function": "slow", "input": {"seconds": 0.1}, "overlap_policy": "enqueue"},
    {"name": "fan", "dag": FAN, "retry": RETRY, "overlap_policy": "allow"},
    {"name": "flaky", "function": "flaky", "input": {"failures": 2}, "retry": RETRY, "overlap_policy": "allow"},
    {"name": "guarded", "function": "work"},
    {"name": "doomed", "dag": BROKEN, "retry": RETRY, "dead_letter": True, "overlap_policy": "allow"},
    {"name": "hopeless", "function": "hopeless", "retry": RETRY, "dead_letter": True, "overlap_policy": "allow"},
]
FAILING: Final = frozenset({"doomed", "hopeless"})
"""The jobs that never complete."""


class Load:
    """Trigger one job after another, more slowly while the log is away."""

    def __init__(self, tocsin: Site, rate: float) -> None:
        self._tocsin = tocsin
        self._pause = 1 / rate
        self._is_over = False
        self.triggers = 0

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Define the jobs, trigger all the time; in the end delete what fires by itself."""
        await self._tocsin.apply(*SCHEDULED, *TRIGGERED)
        triggering = asyncio.create_task(self._trigger_all_the_time())
        try:
            yield
            assert not triggering.done(), triggering
            self._is_over = True
            await triggering  # to its end, because a trigger in flight may be stored, and would not be counted
        finally:
            triggering.cancel()
            await asyncio.wait([triggering])
        for job in SCHEDULED:
            await self._insistent_delete(job["name"])

    async def _trigger_all_the_time(self) -> None:
        for number, job in zip(count(), cycle(TRIGGERED), strict=False):
            await self._trigger(job["name"], f"chaos-{number}")
            if self._is_over:
                return
            await asyncio.sleep(self._pause)

    async def _trigger(self, job: str, message_id: str) -> None:
        """Repeat until the trigger is stored: the log keeps one message of each id."""
        while True:
            try:
                await self._tocsin.log.publish(subjects.trigger(job), Trigger(), message_id=message_id)
            except LogUnavailable:
                continue
            self.triggers += 1
            return

    async def _insistent_delete(self, job: str) -> None:
        while True:
            try:
                await self._tocsin.delete(job)
            except LogUnavailable:
                continue
            return
