"""The ticker and its lease: every instant once under any leader, and none in doubt."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any
from unittest.mock import AsyncMock

import pytest
from structlog.testing import capture_logs
from typing_extensions import override

from tests.clocks import ShiftedClock
from tests.stages.world import World
from tocsin import subjects
from tocsin.domain import ledger
from tocsin.domain.events import Actor, Deleted, Dispatched, Due, Message, Passed, Recorded, Shard, ShardsDefined
from tocsin.domain.ledger import MAX_FIRED_PER_MINUTE
from tocsin.domain.schedule.instants import CalendarRule
from tocsin.engine.clock_guard import ClockGuard
from tocsin.engine.heartbeat import Heartbeat
from tocsin.engine.leader_election import LeaderElection
from tocsin.engine.ledger_reader import LedgerReader
from tocsin.ports import Append, LogUnavailable, SequenceConflict, Write, Written
from tocsin.stages.ticker import AT_ONCE, TRIES, Ticker
from tocsin.subjects import Bucket, job_of
from tocsin.testing import settle

EVERY_MINUTE = {"name": "tick", "schedule": "* * * * *", "function": "f"}


def candidate(world: World, holder: str = "a") -> LeaderElection:
    return LeaderElection(
        world.projections, ClockGuard(world.log, world.clock), key="ticker", holder=holder, ttl=15, renew_interval=5
    )


@asynccontextmanager
async def leading(world: World, holder: str = "a") -> AsyncIterator[Ticker]:
    """A ticker that leads and has read the ledger."""
    leadership = candidate(world, holder)
    await leadership.run_once()
    leadership._until = float("inf")
    ticker = Ticker(world.log, leadership, world.clock)
    following = asyncio.create_task(ticker.follow())
    await settle()
    yield ticker
    following.cancel()


async def fired(world: World) -> list[object]:
    return [fact.scheduled_time for fact in await world.stored(Due)]


async def tick(world: World, ticker: Ticker, seconds: float) -> None:
    """Seconds later, look."""
    await settle()
    world.clock.advance(seconds)
    await settle()
    await ticker.run_once(world.clock.now())


async def test_occurrence_is_recorded_when_it_is_due(world: World) -> None:
    await world.define(EVERY_MINUTE)
    async with leading(world) as ticker:
        await tick(world, ticker, 30)
        assert await fired(world) == []
        await tick(world, ticker, 30)
        [due] = await world.stored(Due)
        assert due.scheduled_time == world.clock.now()
        await tick(world, ticker, 1)
        assert len(await fired(world)) == 1


def once(world: World, **fields: object) -> dict[str, object]:
    """A job that is scheduled once, in a minute."""
    at = world.clock.now() + timedelta(minutes=1)
    return {"name": "once", "schedule": f"at {at:%Y-%m-%dT%H:%M:%SZ}", "function": "f", **fields}


async def test_job_scheduled_once_is_preserved(world: World) -> None:
    await world.define(once(world))
    async with leading(world) as ticker:
        with capture_logs() as lines:
            await tick(world, ticker, 60)
            await tick(world, ticker, 60)
    assert len(await fired(world)) == 1
    assert (await world.stored(Deleted), [line for line in lines if line["log_level"] == "error"]) == ([], [])


async def test_job_scheduled_once_is_dropped(world: World) -> None:
    await world.define(once(world, on_completion="drop"))
    async with leading(world) as ticker:
        await tick(world, ticker, 30)
        assert await world.stored(Deleted) == []
        await tick(world, ticker, 30)
        [deleted] = await world.stored(Deleted)
        await tick(world, ticker, 60)
    assert len(await fired(world)) == len(await world.stored(Deleted)) == 1
    assert (deleted.job, deleted.by) == ("once", Actor(identity="ticker"))
    await world.run(world.planner)
    assert len(await world.recorded(Dispatched)) == 1


async def test_job_whose_schedule_ends_is_dropped(world: World) -> None:
    end = world.clock.now() + timedelta(minutes=2)
    await world.define(once(world, schedule=f"* * * * * until {end:%Y-%m-%dT%H:%M:%SZ}", on_completion="drop"))
    async with leading(world) as ticker:
        await tick(world, ticker, 60)
        assert (len(await fired(world)), await world.stored(Deleted)) == (1, [])
        for _ in range(3):
            await tick(world, ticker, 60)
    assert (len(await fired(world)), len(await world.stored(Deleted))) == (2, 1)


async def test_dropped_job_is_deleted_after_crash(world: World) -> None:
    sequence = await world.define(once(world, on_completion="drop"))
    world.clock.advance(60)
    await world.given(Due(job="once", scheduled_time=world.clock.now(), definition=sequence))
    async with leading(world) as ticker:
        await tick(world, ticker, 1)
    assert len(await fired(world)) == len(await world.stored(Deleted)) == 1


async def test_dropped_job_that_did_not_fire_stays(world: World) -> None:
    await world.define(once(world, on_completion="drop", catch_up="skip"))
    async with leading(world) as ticker:
        await tick(world, ticker, 90)
        await tick(world, ticker, 60)
    assert await fired(world) == await world.stored(Deleted) == []
    assert [fact.reason for fact in await world.stored(Passed)] == ["missed"]


async def test_i1_two_leaders_fire_each_occurrence_once(world: World) -> None:
    await world.define(EVERY_MINUTE)
    async with leading(world, "a") as one, leading(world, "b") as other:
        for _ in range(5):
            world.clock.advance(60)
            await asyncio.gather(one.run_once(world.clock.now()), other.run_once(world.clock.now()))
            await settle()
    times = await fired(world)
    assert len(times) == len(set(times)) == 5


async def test_outdated_ticker_is_refused_and_reads_again(world: World) -> None:
    await world.define(EVERY_MINUTE)
    async with leading(world) as ticker:
        state, sequence = await LedgerReader(world.log).load("tick")
        [paused] = ledger.pause(state, "tick")
        world.clock.advance(60)
        await world.log.append(paused, expect=sequence)
        await ticker.run_once(world.clock.now())
    assert await fired(world) == [world.clock.now()]  # it came before the pause was stored
    assert await world.stored(Passed) == []


async def test_who_does_not_lead_appends_nothing(world: World) -> None:
    await world.define(EVERY_MINUTE)
    async with leading(world) as ticker:
        ticker._leadership._until = float("-inf")
        await tick(world, ticker, 120)
        assert await fired(world) == []


async def test_an_edit_is_followed(world: World) -> None:
    await world.define({**EVERY_MINUTE, "schedule": "0 0 1 1 *"})
    async with leading(world) as ticker:
        await tick(world, ticker, 1)
        await world.define(EVERY_MINUTE)
        await tick(world, ticker, 1)
        await tick(world, ticker, 60)
        assert len(await fired(world)) == 1


async def test_edit_just_before_an_instant_delays_it_not(world: World) -> None:
    """Nothing of the job is decided yet."""
    await world.define({**EVERY_MINUTE, "schedule": "0 0 1 1 *"})
    async with leading(world) as ticker:
        world.clock.advance(55)
        await world.define(EVERY_MINUTE)
        await tick(world, ticker, 1)
        await tick(world, ticker, 4)
        assert len(await fired(world)) == 1


async def test_edit_costs_one_decision(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is due before the next instant of the new definition."""
    await world.define(EVERY_MINUTE)
    async with leading(world) as ticker:
        await tick(world, ticker, 60)
        await tick(world, ticker, 10)
        await world.define({**EVERY_MINUTE, "schedule": "*/5 * * * *"})
        await tick(world, ticker, 1)
        decisions = AsyncMock(side_effect=ticker._wave)
        monkeypatch.setattr(ticker, "_wave", decisions)
        for _ in range(5):
            await tick(world, ticker, 1)
        assert decisions.await_count == 0
        for _ in range(5):
            await tick(world, ticker, 60)
        assert len(await fired(world)) == 2


@pytest.mark.parametrize("timezone", ["UTC", "America/New_York"])
@pytest.mark.parametrize("schedule", ["* * * * *", "0 * * * *"])
async def test_each_firing_searches_the_calendar_once(
    world: World, monkeypatch: pytest.MonkeyPatch, schedule: str, timezone: str
) -> None:
    searches = Counter[str]()

    def counted(name: str) -> Callable[..., Any]:
        search = getattr(CalendarRule, name)

        def count(*arguments: Any) -> Any:  # noqa: ANN401 - passed on
            searches[name] += 1
            return search(*arguments)

        return count

    for name in ("next_after", "occurrences"):
        monkeypatch.setattr(CalendarRule, name, counted(name))
    await world.define({**EVERY_MINUTE, "schedule": schedule, "timezone": timezone})
    async with leading(world) as ticker:
        for _ in range(60):
            await tick(world, ticker, 3_600 if schedule.startswith("0") else 60)
    assert len(await fired(world)) == 60
    assert sum(searches.values()) <= 60 + 3


async def test_an_absence_fires_one_catch_up(world: World) -> None:
    await world.define(EVERY_MINUTE)
    world.clock.advance(600 + 30)
    async with leading(world) as ticker:
        await tick(world, ticker, 0)
    [due] = await world.stored(Due)
    assert due.catch_up
    assert [(fact.reason, fact.count) for fact in await world.stored(Passed)] == [("missed", 9)]


async def test_undecidable_job_does_not_stop_others(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await world.define({**EVERY_MINUTE, "name": "broken"})
    await world.define(EVERY_MINUTE)
    elapse = ledger.decide_instants

    def broken(state: ledger.Ledger, now: datetime, **options: Any) -> list[Due | Passed]:  # noqa: ANN401 - passed on
        if state.job == "broken":
            raise ValueError("a bug")
        return elapse(state, now, **options)

    async with leading(world) as ticker:
        monkeypatch.setattr(ledger, "decide_instants", broken)
        await tick(world, ticker, 60)
        assert [fact.job for fact in await world.stored(Due)] == ["tick"]
        monkeypatch.undo()
        await tick(world, ticker, 30)
        assert {fact.job for fact in await world.stored(Due)} == {"tick", "broken"}


def count_writes(world: World, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Return the jobs of each write from now on, sorted."""
    writes: list[list[str]] = []
    write = world.log.write

    async def counted(requested: Sequence[Write]) -> list[Written]:
        writes.append(sorted(job_of(one.scope) for one in requested if isinstance(one, Append)))
        return await write(requested)

    monkeypatch.setattr(world.log, "write", counted)
    return writes


async def test_jobs_due_together_share_a_write(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "abc":
        await world.define({**EVERY_MINUTE, "name": name})
    writes = count_writes(world, monkeypatch)
    async with leading(world) as ticker:
        await tick(world, ticker, 60)
    assert writes == [["a", "b", "c"]]
    assert len(await fired(world)) == 3


async def test_write_has_a_limited_number_of_jobs(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(AT_ONCE + 1):
        await world.define({**EVERY_MINUTE, "name": f"job-{number}"})
    writes = count_writes(world, monkeypatch)
    async with leading(world) as ticker:
        await tick(world, ticker, 60)
    assert list(map(len, writes)) == [AT_ONCE, 1]


async def test_conflict_of_one_job_affects_no_other(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "abc":
        await world.define({**EVERY_MINUTE, "name": name})
    writes = count_writes(world, monkeypatch)
    async with leading(world) as ticker:
        world.clock.advance(60)
        state, sequence = await LedgerReader(world.log).load("b")
        [paused] = ledger.pause(state, "b")
        await world.log.append(paused, expect=sequence)
        await ticker.run_once(world.clock.now())
    assert writes == [["a", "b", "c"], ["b"]]
    assert {fact.job: fact.scheduled_time for fact in await world.stored(Due)} == dict.fromkeys(
        "abc", world.clock.now()
    )


async def test_job_that_keeps_changing_waits_a_second(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await world.define(EVERY_MINUTE)
    writes = count_writes(world, monkeypatch)
    append = world.log.append

    async def outdated(*_: object, **__: object) -> int:
        raise SequenceConflict("changed")

    async with leading(world) as ticker:
        monkeypatch.setattr(world.log, "append", outdated)
        await tick(world, ticker, 60)
        assert len(writes) == TRIES
        monkeypatch.setattr(world.log, "append", append)
        await tick(world, ticker, 0.9)
        assert len(writes) == TRIES
        await tick(world, ticker, 0.1)
    assert len(writes) == TRIES + 1
    assert len(await fired(world)) == 1


async def test_catch_up_delays_no_other_job(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await world.define({**EVERY_MINUTE, "name": "behind", "catch_up": "all", "catch_up_limit": 100})
    world.clock.advance(300)
    await world.define(EVERY_MINUTE)
    writes = count_writes(world, monkeypatch)
    async with leading(world) as ticker:
        await tick(world, ticker, 60)
    assert writes == [["behind", "tick"], ["behind"]]
    assert Counter(fact.job for fact in await world.stored(Due)) == {"behind": 6, "tick": 1}


async def test_former_leader_stores_no_more(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await world.define({**EVERY_MINUTE, "catch_up": "all", "catch_up_limit": 100})
    world.clock.advance(300)
    write = world.log.write
    async with leading(world) as ticker:

        async def last(requested: Sequence[Write]) -> list[Written]:
            ticker._leadership._until = float("-inf")
            return await write(requested)

        monkeypatch.setattr(world.log, "write", last)
        await tick(world, ticker, 0)
    assert len(await fired(world)) == 1


async def test_a_clock_that_runs_away_makes_no_flood(world: World) -> None:
    await world.define({**EVERY_MINUTE, "schedule": "* * * * * *", "catch_up": "all", "catch_up_limit": 1000})
    async with leading(world) as ticker:
        for _ in range(3):
            now = world.clock.now() + timedelta(minutes=15)
            world.clock.now = lambda now=now: now  # type: ignore[method-assign, misc]
            await ticker.run_once(now)
    assert len(await fired(world)) == MAX_FIRED_PER_MINUTE
    assert {fact.reason for fact in await world.stored(Passed)} == {"throttled"}


async def test_unavailable_log_is_tried_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await world.define(EVERY_MINUTE)
    async with leading(world) as ticker:

        async def unavailable(*_: object, **__: object) -> int:
            raise LogUnavailable("no answer")

        monkeypatch.setattr(world.log, "append", unavailable)
        await tick(world, ticker, 60)
        monkeypatch.undo()
        await tick(world, ticker, 1)
    assert await fired(world) == [world.clock.now() - timedelta(seconds=1)]


async def test_new_ticker_checks_the_lease_every_second(world: World) -> None:
    leadership = candidate(world)
    ticker = Ticker(world.log, leadership, world.clock)
    looked: list[int] = []

    async def look(now: datetime) -> None:
        looked.append(now.microsecond)

    leadership._until, ticker._caught_up = float("inf"), True
    ticker.run_once = look  # type: ignore[method-assign]
    running = asyncio.create_task(ticker.run())
    await settle()
    world.clock.advance(0.5)
    await settle()
    for _ in range(3):
        world.clock.advance(1)
        await settle()
    running.cancel()
    assert looked[1:]
    assert max(looked[1:]) < 600_000
    assert len(looked) <= 5


# --- the lease -------------------------------------------------------------------------------------------------------


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


async def test_edit_during_a_decision_is_kept(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await world.define({**EVERY_MINUTE, "schedule": "0 * * * *"})
    append = world.log.append

    async def append_slowly(fact: Message, *, expect: int) -> int:
        stored = await append(fact, expect=expect)
        if isinstance(fact, Due) and fact.definition == 1:
            await world.define(EVERY_MINUTE)
            await settle()
        return stored

    async with leading(world) as ticker:
        monkeypatch.setattr(world.log, "append", append_slowly)
        start = world.clock.now()
        await tick(world, ticker, 3_600)
        await tick(world, ticker, 60)
        assert await fired(world) == [start + timedelta(hours=1), start + timedelta(hours=1, minutes=1)]


def test_facts_that_are_no_news_are_not_learned(world: World) -> None:
    ticker = Ticker(world.log, candidate(world), world.clock)
    due = Due(job="tick", scheduled_time=world.clock.now(), definition=1)
    recorded: Recorded[Message] = Recorded(due, "ledger.tick.due", 7, world.clock.now())
    ticker.learn(recorded)
    ticker.learn(Recorded(due, "ledger.tick.due", 3, world.clock.now()))
    assert ticker._ledgers["tick"][1] == 7


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
    one._until = world.clock.monotonic()
    leading = [one.is_leading]
    await one.run_once()
    world.clock.advance(14)
    await other.run_once()
    assert [*leading, one.is_leading, other.is_leading] == [False, True, False]


# --- clocks ----------------------------------------------------------------------------------------------------------


EVERY_TEN_SECONDS = {**EVERY_MINUTE, "schedule": "*/10 * * * * *", "catch_up": "all"}


@asynccontextmanager
async def process(world: World, holder: str, offset: float) -> AsyncIterator[ShiftedClock]:
    """A process of a ticker, whose machine's clock is off by `offset` seconds."""
    clock = ShiftedClock(world.clock, offset)
    leadership = LeaderElection(
        world.projections, ClockGuard(world.log, clock), key="ticker", holder=holder, ttl=15, renew_interval=5
    )
    ticker = Ticker(world.log, leadership, clock)
    loops = [asyncio.create_task(loop()) for loop in (ticker.follow, ticker.lead, ticker.run)]
    await settle()
    yield clock
    for loop in loops:
        loop.cancel()


async def lateness(world: World) -> list[float]:
    """Seconds from each instant to the time at which the log stored its decision."""
    recorded = await world.log.read("ledger.tick.due")
    return [(one.time - one.message.scheduled_time).total_seconds() for one in recorded if isinstance(one.message, Due)]


@pytest.mark.parametrize("offset", [0.0, 8.0, -8.0, 9.999, -9.999])
async def test_clock_within_the_limit_fires_on_time(world: World, offset: float) -> None:
    await world.define(EVERY_TEN_SECONDS)
    async with process(world, "a", offset):
        await world.clock.run(100.5)
    late = await lateness(world)
    assert len(late) == 10
    assert all(0 <= one < 0.1 for one in late)


@pytest.mark.parametrize("offset", [120.0, -120.0])
async def test_wrong_clock_beside_a_right_clock_misses_nothing(world: World, offset: float) -> None:
    await world.define(EVERY_TEN_SECONDS)
    async with process(world, "a", offset), process(world, "b", 0.0):
        await world.clock.run(100.5)
    late = await lateness(world)
    assert len(late) == 10
    assert all(0 <= one < 1.5 for one in late)
    assert await world.stored(Passed) == []


@pytest.mark.parametrize("offset", [120.0, -120.0, 3600.0, -86_400.0])
async def test_leaders_clock_that_is_set_wrong_misses_nothing(world: World, offset: float) -> None:
    await world.define(EVERY_TEN_SECONDS)
    async with process(world, "a", 0.0) as clock, process(world, "b", 0.0):
        await world.clock.run(35)
        clock.seconds = offset
        await world.clock.run(65.5)
    late = await lateness(world)
    assert len(late) == 10
    assert all(0 <= one < 3 for one in late)
    assert await world.stored(Passed) == []


async def test_wrong_clock_of_the_log_fires_nothing_early(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both candidates stand aside, and one of them fires as the last resort, by the clock that is behind."""
    await world.define(EVERY_TEN_SECONDS)
    now = world.log.now

    async def tomorrow() -> datetime:
        return await now() + timedelta(days=1)

    async with process(world, "a", 0.0), process(world, "b", 0.0):
        await world.clock.run(35)
        monkeypatch.setattr(world.log, "now", tomorrow)
        await world.clock.run(65.5)
        monkeypatch.undo()
        await world.clock.run(60)
    late = await lateness(world)
    assert len(late) == 16
    assert all(0 <= one < 25 for one in late)
    assert all(0 <= one < 0.1 for one in late[-6:])
    assert await world.stored(Passed) == []


async def test_heartbeat_ends_while_decisions_cannot_be_stored(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await world.define(EVERY_MINUTE)
    passes: list[bool] = []

    class Told(Heartbeat):
        @override
        def pass_ended(self, *, is_clean: bool) -> None:
            passes.append(is_clean)

    async with leading(world) as ticker:
        ticker._heartbeat = Told(AsyncMock(), world.clock, every=60)
        await tick(world, ticker, 1)
        with monkeypatch.context() as patch:
            patch.setattr(world.log, "write", AsyncMock(side_effect=LogUnavailable("no majority")))
            await tick(world, ticker, 60)
        await tick(world, ticker, 2)
    assert passes == [True, False, True]
    assert len(await fired(world)) == 1


async def test_due_of_a_divided_job_names_the_map(world: World) -> None:
    async with leading(world) as ticker:
        await world.define({"name": "plain", "schedule": "* * * * *", "function": "f"})
        await world.define({"name": "divided", "schedule": "* * * * *", "function": "f", "partition": "all_shards"})
        versions = [0]
        for shard_id in ("a", "b"):
            await tick(world, ticker, 60)
            await world.given(ShardsDefined(shards=(Shard(shard_id=shard_id),)))
            versions.append((await world.log.load(subjects.shard_map()))[-1].sequence)
        await tick(world, ticker, 60)
    dues = await world.stored(Due)
    assert [due.shards for due in dues if due.job == "divided"] == versions
    assert {due.shards for due in dues if due.job == "plain"} == {0}
