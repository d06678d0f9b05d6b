"""Tickers on machines with wrong clocks: real processes, a real server, and only the clocks are forged."""

import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from tests.stored_events import StoredEvents
from tests.system.processes import STAGES_WITHOUT_CLOCK, Program, Site, site
from tocsin.domain.events import Due, Passed
from tocsin.subjects import TICKER_LEASE, Bucket

JOB: Final[dict[str, Any]] = {
    "name": "tick",
    "schedule": "* * * * * *",
    "function": "work",
    "catch_up": "all",
    "overlap_policy": "allow",
}
INSTANTS: Final = 5
OFFSETS: Final = [120.0, pytest.param(-120.0, marks=pytest.mark.full)]


@asynccontextmanager
async def beside_tickers(url: str, folder: Path) -> AsyncIterator[Site]:
    """An installation that lacks only tickers."""
    async with site(url, folder) as tocsin:
        tocsin.start(*STAGES_WITHOUT_CLOCK)
        tocsin.start_worker()
        yield tocsin


def ticker(tocsin: Site, offset: float, later: float = 0.0) -> Program:
    """Start a ticker whose clock is off by `offset` seconds, and by `later` after SIGUSR2."""
    return tocsin.start("ticker", module=["tests.system.wrong_clock", str(offset), str(later)])


async def fires(tocsin: Site) -> None:
    """Wait until more instants fired."""
    before = len(await tocsin.facts("ledger.tick.due", Due))

    async def have_fired() -> bool:
        return len(await tocsin.facts("ledger.tick.due", Due)) >= before + INSTANTS

    await tocsin.until(have_fired)


async def leads(tocsin: Site, program: Program) -> None:
    """Wait until a process leads."""

    async def does_lead() -> bool:
        stored = await tocsin.installation.projections.get(Bucket.LEADER, TICKER_LEASE)
        return stored is not None and f"-{program.pid}-" in json.loads(stored[0])["holder"]

    await tocsin.until(does_lead)


async def stands_aside(tocsin: Site, program: Program, offset: float) -> None:
    """Wait until `tocsin status` shows that a process stands aside, and the offset of its clock."""

    async def is_shown() -> bool:
        _, seen = await tocsin.call("status")
        aside = [one for one in seen["standing_aside"] if f"-{program.pid}-" in one["holder"]]
        for one in aside:
            assert one["lease"] == TICKER_LEASE
            assert one["clock_offset"] == pytest.approx(offset, abs=1)
        return bool(aside)

    await tocsin.until(is_shown)


async def ended(tocsin: Site) -> StoredEvents:
    """Delete the job; every instant fired, and none before its time by the log's clock."""
    await tocsin.delete("tick")
    everything = await tocsin.checked()
    assert {fact.message.reason for fact in everything.facts(Passed)} <= {"superseded"}
    assert all(due.time >= due.message.scheduled_time for due in everything.facts(Due))
    return everything


@pytest.mark.parametrize("offset", OFFSETS)
async def test_candidate_with_a_wrong_clock_leaves_the_lease(nats_url: str, tmp_path: Path, offset: float) -> None:
    async with beside_tickers(nats_url, tmp_path) as tocsin:
        wrong, right = ticker(tocsin, offset), ticker(tocsin, 0)
        await tocsin.ready()
        await tocsin.apply(JOB)
        await leads(tocsin, right)
        await fires(tocsin)
        await stands_aside(tocsin, wrong, offset)
        await ended(tocsin)
    assert "clock-not-credible" in wrong.said()
    assert "clock-not-credible" not in right.said()


@pytest.mark.parametrize("offset", OFFSETS)
async def test_leader_whose_clock_is_set_wrong_resigns(nats_url: str, tmp_path: Path, offset: float) -> None:
    async with beside_tickers(nats_url, tmp_path) as tocsin:
        leader = ticker(tocsin, 0, later=offset)
        await tocsin.ready()
        await tocsin.apply(JOB)
        await leads(tocsin, leader)
        standby = ticker(tocsin, 0)
        await tocsin.ready()
        await fires(tocsin)
        leader.send(signal.SIGUSR2)
        await leads(tocsin, standby)
        await stands_aside(tocsin, leader, offset)
        await fires(tocsin)
        await ended(tocsin)


@pytest.mark.parametrize("offset", [8.0, -8.0])
async def test_small_offset_fires_neither_early_nor_late(nats_url: str, tmp_path: Path, offset: float) -> None:
    async with beside_tickers(nats_url, tmp_path) as tocsin:
        only = ticker(tocsin, offset)
        await tocsin.ready()
        await tocsin.apply(JOB)
        await leads(tocsin, only)
        await fires(tocsin)
        everything = await ended(tocsin)
    late = [(due.time - due.message.scheduled_time).total_seconds() for due in everything.facts(Due)]
    assert min(late) < 5
    assert "clock-not-credible" not in only.said()


async def test_paused_ticker_has_no_wrong_clock(nats_url: str, tmp_path: Path) -> None:
    """Pauses shorter and longer than the lease, at any moment of a measurement."""
    async with beside_tickers(nats_url, tmp_path) as tocsin:
        only = ticker(tocsin, 0)
        await tocsin.ready()
        await tocsin.apply(JOB)
        for pause in (1.5, 4.0, 0.7, 12.0):
            await fires(tocsin)
            only.send(signal.SIGSTOP)
            await tocsin.passes(seconds=pause)
            only.send(signal.SIGCONT)
        await fires(tocsin)
        await ended(tocsin)
    assert "clock-not-credible" not in only.said()


@pytest.mark.full
async def test_only_ticker_with_a_wrong_clock_still_fires(nats_url: str, tmp_path: Path) -> None:
    """The last resort: a process with a credible clock replaces it."""
    async with beside_tickers(nats_url, tmp_path) as tocsin:
        wrong = ticker(tocsin, 120)
        await tocsin.ready()
        await tocsin.apply(JOB)
        await leads(tocsin, wrong)
        await fires(tocsin)
        assert "leading-as-last-resort" in wrong.said()
        _, seen = await tocsin.call("status")
        [lease] = [lease for lease in seen["leases"] if lease["name"] == TICKER_LEASE]
        assert lease["is_last_resort"]
        assert lease["clock_offset"] == pytest.approx(120, abs=1)
        right = ticker(tocsin, 0)
        await tocsin.ready()
        await leads(tocsin, right)
        await fires(tocsin)
        await ended(tocsin)
