"""The lease of a leader: one candidate has it, and gives it up in time."""

import asyncio
from typing import Any

import pytest

from tests.stages.world import World
from tocsin.engine.clock_guard import ClockGuard
from tocsin.engine.leader_election import LeaderElection
from tocsin.ports import LogUnavailable
from tocsin.subjects import Bucket
from tocsin.testing import settle


def candidate(world: World, holder: str = "a") -> LeaderElection:
    return LeaderElection(
        world.projections, ClockGuard(world.log, world.clock), key="ticker", holder=holder, ttl=15, renew_interval=5
    )


async def test_cron_21_one_candidate_leads(world: World) -> None:
    one, other = candidate(world, "a"), candidate(world, "b")
    await one.run_once()
    await other.run_once()
    assert (one.is_leading, other.is_leading) == (True, False)


async def test_cron_23_a_lease_is_renewed(world: World) -> None:
    one, other = candidate(world, "a"), candidate(world, "b")
    for _ in range(10):
        await one.run_once()
        await other.run_once()
        world.clock.advance(5)
        await settle()
    assert one.is_leading
    assert not other.is_leading


async def test_cron_22_leader_without_renewal_stops_in_time(world: World) -> None:
    one, other = candidate(world, "a"), candidate(world, "b")
    await one.run_once()
    for _ in range(20):
        world.clock.advance(1)
        await settle()
        await other.run_once()
        assert not (one.is_leading and other.is_leading)
    assert other.is_leading


async def test_released_lease_passes_on_immediately(world: World) -> None:
    one, other = candidate(world, "a"), candidate(world, "b")
    await one.run_once()
    await one.release()
    await other.run_once()
    assert (one.is_leading, other.is_leading) == (False, True)


async def test_a_cancelled_candidate_gives_its_lease_back(world: World) -> None:
    one = candidate(world)
    running = asyncio.create_task(one.run())
    await settle()
    assert one.is_leading
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await world.projections.get(Bucket.LEADER, "ticker") is None


async def test_leader_that_cannot_renew_leads_until_expiry(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    one = candidate(world)
    await one.run_once()

    async def unavailable(*_: object, **__: object) -> int:
        raise LogUnavailable("no answer")

    monkeypatch.setattr(world.projections, "put", unavailable)
    world.clock.advance(14)
    await one.run_once()
    assert one.is_leading
    world.clock.advance(1)
    assert not one.is_leading


async def test_stored_renewal_without_an_answer_is_recognized(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    one = candidate(world)
    await one.run_once()
    put = world.projections.put

    async def unanswered(*args: Any, **more: Any) -> int:  # noqa: ANN401 - any value
        await put(*args, **more)
        raise LogUnavailable("the answer was lost")

    monkeypatch.setattr(world.projections, "put", unanswered)
    world.clock.advance(5)
    await one.run_once()
    monkeypatch.undo()
    world.clock.advance(5)
    await one.run_once()
    assert one.is_leading
    await one.run_once()
    assert one.is_leading


async def test_expired_lease_still_in_the_log_is_renewed(world: World) -> None:
    """As after an election: the renewal was stored, and its answer came when the lease would have been over."""
    one, other = candidate(world), candidate(world, "b")
    await one.run_once()
    one.until = world.clock.monotonic()
    leading = [one.is_leading]
    await one.run_once()
    world.clock.advance(14)
    await other.run_once()
    assert [*leading, one.is_leading, other.is_leading] == [False, True, False]
