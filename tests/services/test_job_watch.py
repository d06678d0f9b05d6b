"""Following of the jobs while no request does."""

import asyncio
import itertools
from collections.abc import Callable
from functools import partial

import pytest
from typing_extensions import override

from tocsin.domain.definition import JobDefinition
from tocsin.ports import LogUnavailable
from tocsin.services import calculations
from tocsin.services.calculations import Calculations, Effort
from tocsin.services.jobs import Registry
from tocsin.services.jobs.job_filter import SearchKeys
from tocsin.services.jobs.job_follower import JobWatch, NextInstants
from tocsin.testing import InMemoryEventLog, InMemoryProjections, ManualClock


class Slow(NextInstants):
    """Spends the effort of a calculation on each job."""

    calculations = 0

    @override
    def follow(self, jobs: object, effort: Effort) -> bool:
        self.calculations += 1
        return super().follow(jobs, effort)  # type: ignore[arg-type]


class World:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.log = InMemoryEventLog(self.clock)
        self.registry = Registry(self.log, InMemoryProjections(self.clock), self.clock)
        self.slow, self.keys = Slow(), SearchKeys()
        self.watch = JobWatch(self.registry, (self.slow, self.keys), Calculations(), self.clock)

    async def given(self, *names: str) -> None:
        await self.registry.apply([JobDefinition(name=name, schedule="@hourly", function="f") for name in names])


async def test_jobs_are_ready_before_a_request() -> None:
    world = World()
    await world.given("a", "b", "c")
    before = world.watch.has_read
    await world.watch.run_once()
    assert (before, world.watch.has_read) == (False, True)
    jobs = await world.registry.jobs()
    assert all(follower.follow(jobs, Effort(0)) for follower in (world.slow, world.keys))
    seen = world.slow.calculations
    await world.watch.run_once()
    assert world.slow.calculations == seen  # nothing changed


async def test_spent_calculation_goes_further_in_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    await world.given("a", "b", "c")
    left = iter([True, False, True, False, True, False, True, False])
    monkeypatch.setattr(calculations.Effort, "is_spent", lambda _: next(left, False))
    await world.watch.run_once()
    assert world.slow.calculations > 1
    monkeypatch.undo()
    assert world.slow.follow(await world.registry.jobs(), Effort(0))


async def test_watch_and_request_follow_the_newest_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else each begins again with its own list, and neither ends."""
    world, names = World(), [f"job-{number}" for number in range(6)]
    await world.given(*names)
    run, spent, rounds = Calculations.run, itertools.cycle([False, True]), itertools.count(1)

    async def run_beside_a_request(self: Calculations, compute: Callable[[Effort], bool]) -> bool:
        result = await run(self, compute)
        if next(rounds) == 1:
            await world.registry.apply([JobDefinition(name=name, schedule="@daily", function="f") for name in names])
        assert next(rounds) < 100
        await run(self, partial(world.slow.follow, await world.registry.jobs()))
        return result

    monkeypatch.setattr(Calculations, "run", run_beside_a_request)
    monkeypatch.setattr(calculations.Effort, "is_spent", lambda _: next(spent))
    await world.watch.run_once()
    await world.watch.run_once()  # the first may have begun with older jobs
    monkeypatch.undo()
    jobs = await world.registry.jobs()
    assert all(follower.follow(jobs, Effort(0)) for follower in (world.slow, world.keys))


@pytest.mark.parametrize("failure", [LogUnavailable("no leader"), AssertionError("unexpected")])
async def test_watch_survives_a_failure(monkeypatch: pytest.MonkeyPatch, failure: Exception) -> None:
    world, failed, followed = World(), asyncio.Event(), asyncio.Event()
    await world.given("a")
    once = world.watch.run_once

    async def run_once() -> None:
        if not failed.is_set():
            failed.set()
            raise failure
        await once()
        followed.set()

    monkeypatch.setattr(world.watch, "run_once", run_once)
    running = asyncio.create_task(world.watch.run())
    await failed.wait()
    world.clock.advance(60)
    await asyncio.wait_for(followed.wait(), 30)
    running.cancel()
    assert world.slow.follow(await world.registry.jobs(), Effort(0))
