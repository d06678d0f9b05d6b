"""New time-zone data is taken over without a restart, and what moves is reported."""

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from tests.domain.schedule.databases import decreed
from tests.stages.test_ticker import fired, leading, tick
from tests.stages.world import World
from tocsin.domain.definition import STORED, JobDefinition
from tocsin.domain.ledger import Timetable
from tocsin.domain.schedule import TimezoneDatabase, install, timezone_database, timezones
from tocsin.engine.timezone_refresh import TimezoneReport, TimezoneWatch, report_of
from tocsin.stages.ticker import STANDBY_INTERVAL_S
from tocsin.subjects import TIMEZONE_REPORT, TIMEZONE_REQUEST, Bucket
from tocsin.testing import settle

NINE = {"name": "nine", "schedule": "0 9 * * *", "timezone": "Europe/Berlin", "function": "f"}


@pytest.fixture
def newer(tmp_path: Path) -> Iterator[TimezoneDatabase]:
    """Data in which Berlin has the clocks of Athens, an hour ahead."""
    before = timezone_database()
    yield decreed(tmp_path, Berlin="Europe/Athens")
    install(before)


async def report(world: World) -> TimezoneReport:
    entry = await world.projections.get(Bucket.TIMEZONES, TIMEZONE_REPORT)
    assert entry is not None
    return TimezoneReport.model_validate_json(entry[0])


async def test_earlier_instant_fires_in_time(world: World, newer: TimezoneDatabase) -> None:
    await world.define(NINE)
    midnight = world.clock.now()
    async with leading(world) as ticker:
        await tick(world, ticker, 6 * 3_600)
        install(newer)
        await ticker.take_over_timezones()
        await tick(world, ticker, 3_600)
        assert await fired(world) == [midnight + timedelta(hours=7)]
        await tick(world, ticker, 3_600)
    assert len(await fired(world)) == 1  # 09:00 by the former clocks


async def test_moved_instants_are_reported(world: World, newer: TimezoneDatabase) -> None:
    await world.define(NINE)
    await world.define({**NINE, "name": "paris", "timezone": "Europe/Paris"})
    revision = await world.projections.put(Bucket.TIMEZONES, TIMEZONE_REQUEST, b"{}")
    midnight = world.clock.now()
    async with leading(world) as ticker:
        ticker._projections = world.projections
        install(newer)
        await ticker.take_over_timezones()
    found = await report(world)
    assert (found.request, found.after, found.jobs) == (revision, "2042z", 1)
    [one] = found.moved
    assert (one.job, len(one.removed), len(one.added)) == ("nine", 3, 3)
    assert (one.removed[0], one.added[0]) == (midnight + timedelta(hours=8), midnight + timedelta(hours=7))


async def test_new_data_is_noticed_without_a_request(world: World, newer: TimezoneDatabase) -> None:
    await world.define(NINE)
    async with leading(world) as ticker:
        ticker._projections = world.projections
        install(newer)
        noticing = asyncio.create_task(ticker.keep_timezones())
        await settle()
        world.clock.advance(STANDBY_INTERVAL_S)
        await settle()
        noticing.cancel()
    assert (await report(world)).jobs == 1


async def test_unreadable_schedule_is_reported_with_the_reason(world: World) -> None:
    fields = {**NINE, "timezone": "Mars/Olympus"}
    timetable = Timetable.of(JobDefinition.model_validate(fields, context=STORED))
    data = timezone_database()
    [moved] = (await report_of([("nine", timetable)], data, data, world.clock.now())).moved
    assert (moved.job, moved.removed, moved.added) == ("nine", (), ())
    assert moved.error is not None
    assert "Mars/Olympus" in moved.error


async def test_instant_that_fired_is_not_fired_again(world: World, newer: TimezoneDatabase) -> None:
    await world.define(NINE)
    install(newer)
    async with leading(world) as ticker:
        await tick(world, ticker, 7 * 3_600)
        install(timezones.packaged())
        await ticker.take_over_timezones()
        await tick(world, ticker, 300)
    assert len(await fired(world)) == 1


async def test_each_request_is_followed_once(world: World) -> None:
    await world.projections.put(Bucket.TIMEZONES, TIMEZONE_REQUEST, b"{}")
    watch = TimezoneWatch(world.projections, world.clock)
    await watch.run_once()
    before = timezone_database()
    await watch.run_once()
    assert timezone_database() is before  # a request from before this process began
    await world.projections.put(Bucket.TIMEZONES, TIMEZONE_REQUEST, b"{}")
    await watch.run_once()
    after = timezone_database()
    assert after is not before
    await watch.run_once()
    assert timezone_database() is after
