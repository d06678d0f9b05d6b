"""Candidates for a leader lease on machines that disagree about the time."""

import json
from collections.abc import Sequence
from datetime import datetime, timedelta

import pytest
from structlog.testing import capture_logs

from tests.clocks import ShiftedClock
from tests.stages.world import World
from tocsin.engine.clock_guard import ClockGuard
from tocsin.engine.leader_election import LeaderElection
from tocsin.ports import LogUnavailable
from tocsin.subjects import Bucket, aside_key, heir_key

LEASE = "ticker"
TTL_S = 15
WRONG = [120.0, -120.0, 10.5, -10.5, 86_400.0, -86_400.0]


class Candidate:
    """A process that would like to lead."""

    def __init__(self, world: World, holder: str, offset: float = 0.0) -> None:
        self.holder = holder
        self.clock = ShiftedClock(world.clock, offset)
        guard = ClockGuard(world.log, self.clock)
        self.election = LeaderElection(world.projections, guard, key=LEASE, holder=holder, ttl=TTL_S, renew_interval=5)

    @property
    def leads(self) -> bool:
        return self.election.is_leading


async def passes(world: World, seconds: int, *candidates: Candidate) -> list[str]:
    """Let time pass; return the leader of each second, where two at once are an error."""
    leaders = []
    for _ in range(seconds):
        world.clock.advance(1)
        for candidate in candidates:
            await candidate.election.run_once()
        leaders.append(",".join(candidate.holder for candidate in candidates if candidate.leads))
    assert not any("," in leader for leader in leaders)
    return leaders


async def entry(world: World, key: str) -> dict[str, object] | None:
    stored = await world.projections.get(Bucket.LEADER, key)
    return None if stored is None else json.loads(stored[0])


def is_aside(shown: dict[str, object] | None, offset: float) -> bool:
    return shown is not None and shown["clock_offset"] == offset


@pytest.mark.parametrize("offset", WRONG)
async def test_candidate_with_a_wrong_clock_stands_aside(world: World, offset: float) -> None:
    wrong, right = Candidate(world, "wrong", offset), Candidate(world, "right")
    assert set(await passes(world, 60, wrong, right)) == {"right"}
    assert is_aside(await entry(world, aside_key(LEASE, "wrong")), offset)
    assert await entry(world, aside_key(LEASE, "right")) is None


async def test_report_of_a_killed_candidate_ends(world: World) -> None:
    wrong = Candidate(world, "wrong", 120.0)
    await passes(world, 1, wrong)
    assert await entry(world, aside_key(LEASE, "wrong")) is not None
    world.clock.advance(TTL_S)
    assert await entry(world, aside_key(LEASE, "wrong")) is None


@pytest.mark.parametrize("offset", [0.0, 8.0, -8.0, 10.0, -10.0])
async def test_leader_decides_by_the_logs_clock(world: World, offset: float) -> None:
    only = Candidate(world, "only", offset)
    await only.election.run_once()
    for _ in range(20):
        world.clock.advance(0.7)
        await only.election.run_once()
        assert await only.election.time() == await world.log.now()
    shown = await entry(world, LEASE)
    assert shown is not None
    assert (shown["clock_offset"], shown["clock_error"], shown["is_last_resort"]) == (offset, 0, False)


@pytest.mark.parametrize("offset", WRONG)
async def test_leader_whose_clock_is_set_wrong_gives_way(world: World, offset: float) -> None:
    leader, standby = Candidate(world, "leader"), Candidate(world, "standby")
    assert set(await passes(world, 20, leader, standby)) == {"leader"}
    leader.clock.seconds = offset
    leaders = await passes(world, 40, leader, standby)
    assert set(leaders[1:]) == {"standby"}


@pytest.mark.parametrize("offset", WRONG)
async def test_set_clock_is_noticed_before_the_next_renewal(world: World, offset: float) -> None:
    leader, standby = Candidate(world, "leader"), Candidate(world, "standby")
    await passes(world, 2, leader, standby)
    leader.clock.seconds = offset
    assert await leader.election.time() is None
    assert not leader.leads
    assert await passes(world, 1, standby) == ["standby"]


async def test_small_step_moves_no_decision(world: World) -> None:
    leader = Candidate(world, "leader")
    await leader.election.run_once()
    for step in (0.9, -0.9, 5.0, -5.0, 9.9, -9.9):
        leader.clock.seconds = step
        assert await leader.election.time() == await world.log.now()
        assert leader.leads


async def test_slowly_drifting_clock_is_deposed_at_the_limit(world: World) -> None:
    leader, standby = Candidate(world, "leader"), Candidate(world, "standby")
    offsets = dict[str, float]()
    for _ in range(300):
        leader.clock.seconds += 0.05
        [name] = await passes(world, 1, leader, standby)
        offsets[name] = leader.clock.seconds
    assert 9.9 < offsets["leader"] < 10.5
    assert offsets["standby"] == pytest.approx(15)


async def test_recovered_clock_may_lead_again(world: World) -> None:
    one, other = Candidate(world, "one", 120.0), Candidate(world, "other")
    await passes(world, 10, one, other)
    one.clock.seconds = 0.0
    assert set(await passes(world, 10, one, other)) == {"other"}
    assert await entry(world, aside_key(LEASE, "one")) is None
    await other.election.release()
    assert await passes(world, 1, one, other) == ["one"]


async def test_pause_is_not_a_wrong_clock(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process stops for a minute between a request and the reply."""
    leader = Candidate(world, "leader")
    await passes(world, 2, leader)
    now = world.log.now

    async def late() -> datetime:
        at = await now()
        world.clock.advance(60)
        return at

    with monkeypatch.context() as patch:
        patch.setattr(world.log, "now", late)
        world.clock.advance(5)
        await leader.election.run_once()
    assert await passes(world, 1, leader) == ["leader"]
    assert await entry(world, aside_key(LEASE, "leader")) is None
    decides = await leader.election.time()
    assert decides is not None
    assert timedelta() <= await now() - decides < timedelta(seconds=0.2)


async def test_without_the_log_nothing_is_concluded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def away() -> datetime:
        raise LogUnavailable("away")

    leader, new = Candidate(world, "leader"), Candidate(world, "new", 120.0)
    await passes(world, 2, leader)
    monkeypatch.setattr(world.log, "now", away)
    assert set(await passes(world, 60, leader, new)) == {"leader"}
    leader.clock.seconds = 3.0  # unknown until the log answers
    assert await leader.election.time() is None
    monkeypatch.undo()
    assert await leader.election.time() == await world.log.now()


async def test_unknown_offset_is_not_reported(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock is set again between the judgement and the report."""
    leader = Candidate(world, "leader")
    await passes(world, 2, leader)
    remove = world.projections.remove

    async def removes(bucket: Bucket, key: str, *, expect: int | None = None) -> None:
        await remove(bucket, key, expect=expect)
        leader.clock.seconds = 60.0

    monkeypatch.setattr(world.projections, "remove", removes)
    leader.clock.seconds = 120.0
    assert await passes(world, 1, leader) == [""]
    assert await entry(world, aside_key(LEASE, "leader")) is None
    monkeypatch.undo()
    await passes(world, 1, leader)
    assert is_aside(await entry(world, aside_key(LEASE, "leader")), 60.0)


def same(offset: float, world: World) -> Sequence[Candidate]:
    return Candidate(world, "one", offset), Candidate(world, "other", offset)


@pytest.mark.parametrize("offset", WRONG)
async def test_without_a_credible_candidate_another_leads_late(world: World, offset: float) -> None:
    """As if the server's clock were wrong by as much in the other direction."""
    one, other = same(offset, world)
    with capture_logs() as lines:
        leaders = await passes(world, 120, one, other)
    assert leaders[: TTL_S - 1] == [""] * (TTL_S - 1)
    assert set(leaders[TTL_S:]) == {"one"}
    assert [line["log_level"] for line in lines if line["action"] == "leading-as-last-resort"] == ["error"]
    shown = await entry(world, LEASE)
    assert shown is not None
    assert (shown["is_last_resort"], shown["clock_offset"]) == (True, offset)
    assert is_aside(await entry(world, aside_key(LEASE, "other")), offset)


@pytest.mark.parametrize("offset", WRONG)
async def test_last_resort_decides_by_the_earlier_clock(world: World, offset: float) -> None:
    only = Candidate(world, "only", offset)
    await passes(world, 20, only)
    earlier = min(await world.log.now(), only.clock.now())
    assert await only.election.time() == earlier


@pytest.mark.parametrize("offset", WRONG)
async def test_last_resort_gives_way_to_a_credible_candidate(world: World, offset: float) -> None:
    wrong = Candidate(world, "wrong", offset)
    assert (await passes(world, 20, wrong))[-1] == "wrong"
    right = Candidate(world, "right")
    leaders = await passes(world, 40, wrong, right)
    assert set(leaders[2:]) == {"right"}
    await right.election.release()
    assert await passes(world, 1, wrong, right) == ["right"]


async def test_last_resort_with_a_corrected_clock_leads_on(world: World) -> None:
    only = Candidate(world, "only", 120.0)
    await passes(world, 20, only)
    only.clock.seconds = 0.0
    assert set(await passes(world, 20, only)) == {"only"}
    shown = await entry(world, LEASE)
    assert shown is not None
    assert shown["is_last_resort"] is False
    assert await only.election.time() == await world.log.now()
    assert await entry(world, heir_key(LEASE)) is None


async def test_killed_last_resort_is_followed_by_another(world: World) -> None:
    one, other = same(-60.0, world)
    assert (await passes(world, 20, one, other))[-1] == "one"
    assert (await passes(world, 2 * TTL_S + 2, other))[-1] == "other"


async def test_lost_lease_of_last_resort_is_not_kept(world: World) -> None:
    only = Candidate(world, "only", 120.0)
    await passes(world, 20, only)
    await world.projections.put(Bucket.LEADER, LEASE, b'{"holder": "usurper"}')
    assert await passes(world, 1, only) == [""]


async def test_lease_that_cannot_be_read_is_not_free(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def away(*_: object, **__: object) -> None:
        raise LogUnavailable("away")

    only = Candidate(world, "only", 120.0)
    await passes(world, TTL_S - 1, only)
    with monkeypatch.context() as patch:
        patch.setattr(world.projections, "get", away)
        await passes(world, 60, only)
    assert set(await passes(world, TTL_S, only)) == {""}
    assert await passes(world, 1, only) == ["only"]


async def test_stopped_candidate_withdraws_its_report(world: World) -> None:
    wrong, right = Candidate(world, "wrong.example é", 120.0), Candidate(world, "right")
    await passes(world, 3, right, wrong)
    key = aside_key(LEASE, wrong.holder)
    assert key == "ticker.aside.wrong_example__"
    assert is_aside(await entry(world, key), 120.0)
    await wrong.election._withdraw_report()
    assert await entry(world, key) is None
