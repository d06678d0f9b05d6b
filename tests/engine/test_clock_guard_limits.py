"""Limits within which a clock is believed, and the moments of a check."""

from datetime import datetime, timedelta

import pytest

from tests.stages.world import World
from tocsin.engine.clock_guard import ClockGuard

INSTANT = timedelta(milliseconds=1)


class Reads:
    """A count of the reads of the log's clock."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self._now = world.log.now
        monkeypatch.setattr(world.log, "now", self._read)

    async def _read(self) -> datetime:
        self.count += 1
        return await self._now()


@pytest.fixture
def reads(world: World, monkeypatch: pytest.MonkeyPatch) -> Reads:
    return Reads(world, monkeypatch)


@pytest.mark.parametrize(
    ("ahead", "believed"),
    [
        (timedelta(seconds=10), True),
        (timedelta(seconds=10) + INSTANT, False),
        (timedelta(minutes=1), False),
        (timedelta(hours=2), False),
        (timedelta(days=-1), True),
    ],
)
async def test_a_clock_may_be_ten_seconds_ahead(world: World, ahead: timedelta, *, believed: bool) -> None:
    time = ClockGuard(world.log, world.clock)
    assert await time.is_credible(world.clock.now() + ahead) is believed


@pytest.mark.parametrize("ahead", [timedelta(seconds=11), timedelta(days=1)])
async def test_a_believed_clock_is_doubted_after_a_jump(world: World, ahead: timedelta) -> None:
    time = ClockGuard(world.log, world.clock)
    assert await time.is_credible(world.clock.now())
    assert not await time.is_credible(world.clock.now() + ahead)
    assert not await time.is_credible(world.clock.now() + ahead)


@pytest.mark.parametrize(("seconds", "count"), [(29.999, 1), (30, 2)])
async def test_the_log_is_read_again_after_thirty_seconds(
    world: World, reads: Reads, seconds: float, count: int
) -> None:
    time = ClockGuard(world.log, world.clock)
    assert await time.is_credible(world.clock.now())
    world.clock.advance(seconds)
    assert await time.is_credible(world.clock.now())
    assert reads.count == count


@pytest.mark.parametrize(
    ("gained", "count"),
    [
        (timedelta(seconds=1), 1),
        (timedelta(seconds=1) + INSTANT, 2),
        (timedelta(seconds=-1), 1),
        (timedelta(seconds=-1) - INSTANT, 2),
    ],
)
async def test_a_gain_above_a_second_reads_the_log(world: World, reads: Reads, gained: timedelta, count: int) -> None:
    time = ClockGuard(world.log, world.clock)
    assert await time.is_credible(world.clock.now())
    world.clock.advance(5)
    assert await time.is_credible(world.clock.now() + gained)
    assert reads.count == count
