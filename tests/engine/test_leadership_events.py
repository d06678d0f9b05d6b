"""Leadership is recorded rarely, in order, and with the last sign of the previous leader."""

import asyncio
from datetime import timedelta
from unittest.mock import AsyncMock

import pytest
from structlog.testing import capture_logs

from tests.stages.world import World
from tocsin import subjects
from tocsin.domain.events import (
    Due,
    LeadershipFact,
    LeadershipGained,
    LeadershipLost,
    LeadershipReleased,
    Message,
    Recorded,
)
from tocsin.engine.clock_guard import ClockGuard
from tocsin.engine.leader_election import ACQUIRE_INTERVAL_S, RENEW_INTERVAL_S, LeaderElection
from tocsin.engine.leadership_events import TICKER_SIGNS, LeadershipEvents
from tocsin.ports import LogUnavailable
from tocsin.subjects import Bucket

TTL_S = 15


def candidate(world: World, holder: str) -> LeaderElection:
    facts = LeadershipEvents(world.log, world.clock, lease="ticker", holder=holder, signs=TICKER_SIGNS)
    return LeaderElection(
        world.projections, ClockGuard(world.log, world.clock), key="ticker", holder=holder, ttl=TTL_S, events=facts
    )


async def recorded(world: World) -> list[Recorded[Message]]:
    return await world.log.read(subjects.leadership("ticker"))


async def leadership_events(world: World) -> list[tuple[str, str]]:
    facts = [one.message for one in await recorded(world)]
    return [
        (subjects.subject_of(fact).rpartition(".")[2], fact.holder)
        for fact in facts
        if isinstance(fact, LeadershipFact)
    ]


async def test_each_term_is_recorded_and_no_renewal(world: World) -> None:
    one, other = candidate(world, "one"), candidate(world, "other")
    for _ in range(5):
        await one.run_once()
        await other.run_once()
        world.clock.advance(5)
    await one.release()
    await other.run_once()
    assert await leadership_events(world) == [("gained", "one"), ("released", "one"), ("gained", "other")]


async def test_leader_that_overslept_its_lease_records_the_gap(world: World) -> None:
    """The candidate gets the lease again immediately, because no other candidate exists."""
    leader = candidate(world, "one")
    await leader.run_once()
    world.clock.advance(5)
    renewed = world.clock.now()
    await leader.run_once()
    world.clock.advance(60)
    await leader.run_once()
    gained, lost, again = (one.message for one in await recorded(world))
    assert isinstance(gained, LeadershipGained)
    assert isinstance(lost, LeadershipLost)
    assert (lost.last_sign, lost.at) == (renewed, renewed + timedelta(seconds=60))
    assert isinstance(again, LeadershipGained)
    assert again.at == lost.at


async def test_new_leader_records_when_leadership_was_last_seen(world: World) -> None:
    await world.define({"name": "tick", "schedule": "* * * * *", "function": "f"})
    leader = candidate(world, "one")
    await leader.run_once()
    world.clock.advance(60)
    await world.given(Due(job="tick", scheduled_time=world.clock.now(), definition=1))
    sign = world.clock.now()
    world.clock.advance(3_600)
    await candidate(world, "other").run_once()
    first, last = (one.message for one in await recorded(world))
    assert isinstance(first, LeadershipGained)
    assert isinstance(last, LeadershipGained)
    assert (first.last_sign, last.last_sign) == (None, sign)


async def test_unstored_event_is_stored_with_the_next(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def away(*_: object, **__: object) -> int:
        raise LogUnavailable("away")

    leader = candidate(world, "one")
    with monkeypatch.context() as patch:
        patch.setattr(world.log, "publish", away)
        await leader.run_once()
        assert leader.is_leading
    assert await leadership_events(world) == []
    await leader.release()
    assert await leadership_events(world) == [("gained", "one"), ("released", "one")]
    assert isinstance((await recorded(world))[-1].message, LeadershipReleased)


@pytest.mark.parametrize(("pending", "stored"), [(0, 3), (99, 101)])
async def test_simultaneous_changes_are_each_recorded_once(
    world: World, monkeypatch: pytest.MonkeyPatch, pending: int, stored: int
) -> None:
    """The election's loop records a loss while the stage that read the time records a release."""
    events = LeadershipEvents(world.log, world.clock, lease="ticker", holder="one")
    publish = world.log.publish

    async def away(*_: object, **__: object) -> int:
        raise LogUnavailable("away")

    async def slow(subject: str, message: Message, *, message_id: str) -> int:
        await asyncio.sleep(0)
        return await publish(subject, message, message_id=message_id)

    with monkeypatch.context() as patch:
        patch.setattr(world.log, "publish", away)
        for _ in range(pending):
            await events.gained()
    monkeypatch.setattr(world.log, "publish", slow)
    await asyncio.gather(events.lost(world.clock.now()), events.released(), events.gained())
    recorded_events = await leadership_events(world)
    assert len(recorded_events) == stored  # one of 102 is dropped: at most 100 are pending, beside that being stored
    assert recorded_events[-3:] == [("lost", "one"), ("released", "one"), ("gained", "one")]


async def test_candidate_looks_more_often_than_a_leader(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    leader, other = candidate(world, "one"), candidate(world, "other")
    pauses = list[float]()

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        raise InterruptedError

    monkeypatch.setattr(world.clock, "sleep", sleep)
    monkeypatch.setattr(LeaderElection, "release", AsyncMock())
    for election in (leader, other):
        with pytest.raises(InterruptedError):
            await election.run()
    assert pauses == [RENEW_INTERVAL_S, ACQUIRE_INTERVAL_S]


async def test_lease_taken_away_was_lost(world: World) -> None:
    leader = candidate(world, "one")
    await leader.run_once()
    await world.projections.put(Bucket.LEADER, "ticker", b'{"holder": "usurper"}')
    await leader.run_once()
    assert await leadership_events(world) == [("gained", "one"), ("lost", "one")]


async def test_lease_without_an_end_is_taken(world: World) -> None:
    """The server did not remove it; its holder is gone."""
    lease = b'{"holder": "gone", "renewed_at": "2026-03-01T00:00:00Z"}'
    await world.projections.put(Bucket.LEADER, "ticker", lease)
    one, other = candidate(world, "one"), candidate(world, "other")
    with capture_logs() as lines:
        for _ in range(4):
            assert (one.is_leading, other.is_leading) == (False, False)
            await one.run_once()
            await other.run_once()
            world.clock.advance(TTL_S)
    assert [line["previous"] for line in lines if line["action"] == "lease-overdue"] == ["gone"]
    assert await leadership_events(world) == [("gained", "one")]


async def test_renewed_lease_is_never_overdue(world: World) -> None:
    one, other = candidate(world, "one"), candidate(world, "other")
    for _ in range(20):
        await one.run_once()
        await other.run_once()
        world.clock.advance(RENEW_INTERVAL_S)
    assert await leadership_events(world) == [("gained", "one")]


async def test_candidate_says_why_it_cannot_stand(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world.log, "now", AsyncMock(side_effect=LogUnavailable("away")))
    one = candidate(world, "one")
    with capture_logs() as lines:
        for _ in range(6):
            await one.run_once()
            world.clock.advance(TTL_S / 2)
    assert [(line["action"], line["lease"], line["reason"]) for line in lines] == [
        ("election-unavailable", "ticker", "away")
    ] * 2
