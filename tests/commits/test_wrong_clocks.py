"""Instants are decided in time under any clocks of the machines."""

from contextlib import AsyncExitStack
from datetime import datetime, timedelta

import pytest

from tests.clocks import ShiftedClock
from tests.commits.test_leading import Leader, World
from tocsin import subjects
from tocsin.domain.definition import JobDefinition
from tocsin.domain.events import Defined, Due, Passed
from tocsin.domain.log_events import is_log_event

EVERY_TEN_SECONDS = {"name": "tick", "schedule": "*/10 * * * * *", "catch_up": "all", "function": "f"}


async def given(*offsets: float, stack: AsyncExitStack) -> tuple[World, list[ShiftedClock]]:
    """A job, and processes of a ticker on machines whose clocks are off by some seconds."""
    world = World()
    await world.store(Defined(job="tick", definition=JobDefinition.model_validate(EVERY_TEN_SECONDS)))
    clocks = [ShiftedClock(world.clock, offset) for offset in offsets]
    for number, clock in enumerate(clocks):
        leader = Leader(world, f"p{number}", ["ticker"], clock=clock)
        stack.push_async_callback(leader.kill)
        await leader.start()
    return world, clocks


async def lateness(world: World) -> list[float]:
    """Seconds from each instant to the time at which the log stored its decision; none passed."""
    late = list[float]()
    after = 0
    while (stored := await world.log.next(0, after=after)) is not None:
        after = stored.sequence
        commit = (await world.commits())[stored.sequence - 1]
        for event in commit.events:
            if is_log_event(event.subject):
                continue
            message = subjects.decode(event.subject, bytes(event.body))
            assert not isinstance(message, Passed)
            if isinstance(message, Due):
                late.append((stored.time - message.scheduled_time).total_seconds())
    return late


@pytest.mark.parametrize("offset", [0.0, 8.0, -8.0, 9.999, -9.999])
async def test_clock_within_the_limit_fires_on_time(offset: float) -> None:
    async with AsyncExitStack() as stack:
        world, _ = await given(offset, stack=stack)
        await world.clock.run(100.5)
    late = await lateness(world)
    assert len(late) == 10
    assert all(0 <= one < 0.1 for one in late)


@pytest.mark.parametrize("offset", [120.0, -120.0])
async def test_wrong_clock_beside_a_right_clock_misses_nothing(offset: float) -> None:
    async with AsyncExitStack() as stack:
        world, _ = await given(offset, 0.0, stack=stack)
        await world.clock.run(100.5)
    late = await lateness(world)
    assert len(late) == 10
    assert all(0 <= one < 1.5 for one in late)


@pytest.mark.parametrize("offset", [120.0, -120.0, 3600.0, -86_400.0])
async def test_leaders_clock_that_is_set_wrong_misses_nothing(offset: float) -> None:
    async with AsyncExitStack() as stack:
        world, [clock, _] = await given(0.0, 0.0, stack=stack)
        await world.clock.run(35)
        clock.seconds = offset
        await world.clock.run(65.5)
    late = await lateness(world)
    assert len(late) == 10
    assert all(0 <= one < 3 for one in late)


async def test_wrong_clock_of_the_log_fires_nothing_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both candidates stand aside, and one of them fires as the last resort, by the clock that is behind."""
    async with AsyncExitStack() as stack:
        world, _ = await given(0.0, 0.0, stack=stack)
        now = world.base.now

        async def tomorrow() -> datetime:
            return await now() + timedelta(days=1)

        await world.clock.run(35)
        monkeypatch.setattr(world.base, "now", tomorrow)
        await world.clock.run(65.5)
        monkeypatch.undo()
        await world.clock.run(60)
    late = await lateness(world)
    assert len(late) == 16
    assert all(0 <= one < 25 for one in late)
    assert all(0 <= one < 0.1 for one in late[-6:])
