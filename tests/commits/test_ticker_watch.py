"""The tasks of the ticker beside its decisions: new time-zone data, signs of life, missed instants."""

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from structlog.testing import capture_logs
from typing_extensions import override

from tests.commits.test_memory import Work
from tests.commits.test_ticker import fired, tick
from tests.domain.given import NOON
from tests.domain.schedule.databases import decreed
from tests.stages.world import World
from tocsin.adapters.memory.archive import InMemoryProjections
from tocsin.domain.events import Passed
from tocsin.domain.schedule import TimezoneDatabase, install, timezone_database, timezones
from tocsin.engine.displays import INTERVAL_S
from tocsin.engine.ticker_watch import LOOK_INTERVAL_S, Heartbeat, TickerWatch, report_missed
from tocsin.engine.timezone_refresh import TimezoneReport
from tocsin.subjects import TIMEZONE_REPORT, TIMEZONE_REQUEST, Bucket
from tocsin.testing import settle

NINE = {"schedule": "0 9 * * *", "timezone": "Europe/Berlin"}


@pytest.fixture
def newer(tmp_path: Path) -> Iterator[TimezoneDatabase]:
    """Data in which Berlin has the clocks of Athens, an hour ahead."""
    before = timezone_database()
    yield decreed(tmp_path, Berlin="Europe/Athens")
    install(before)


class Watched:
    """An installation whose process leads the ticker, and the ticker's watch."""

    def __init__(self, heartbeat: Heartbeat | None = None) -> None:
        self.work = Work()
        self.clock = self.work.installation.clock
        self.projections = InMemoryProjections(self.clock)
        view: Any = SimpleNamespace(loop=self.work.process.loop)
        log: Any = None  # only missed instants are read
        self.watch = TickerWatch(view, log, self.projections, self.clock, heartbeat)

    async def report(self) -> TimezoneReport:
        entry = await self.projections.get(Bucket.TIMEZONES, TIMEZONE_REPORT)
        assert entry is not None
        return TimezoneReport.model_validate_json(entry[0])


async def test_earlier_instant_fires_in_time(newer: TimezoneDatabase) -> None:
    it = Watched()
    midnight = it.clock.now()
    await it.work.define("nine", **NINE)
    await tick(it.work, 6 * 3_600)
    install(newer)
    await it.watch.take_over_timezones()
    await tick(it.work, 3_600)
    assert await fired(it.work) == [midnight + timedelta(hours=7)]
    await tick(it.work, 3_600)
    assert len(await fired(it.work)) == 1  # 09:00 by the former clocks


async def test_instant_that_fired_is_not_fired_again(newer: TimezoneDatabase) -> None:
    it = Watched()
    await it.work.define("nine", **NINE)
    install(newer)
    await tick(it.work, 7 * 3_600)
    install(timezones.packaged())
    await it.watch.take_over_timezones()
    await tick(it.work, 300)
    assert len(await fired(it.work)) == 1


async def test_moved_instants_are_reported(newer: TimezoneDatabase) -> None:
    it = Watched()
    midnight = it.clock.now()
    await it.work.define("nine", **NINE)
    await it.work.define("paris", **{**NINE, "timezone": "Europe/Paris"})
    await it.work.runner.run()
    revision = await it.projections.put(Bucket.TIMEZONES, TIMEZONE_REQUEST, b"{}")
    install(newer)
    await it.watch.take_over_timezones()
    found = await it.report()
    assert (found.request, found.after, found.jobs) == (revision, "2042z", 1)
    [moved] = found.moved
    assert (moved.job, len(moved.removed), len(moved.added)) == ("nine", 3, 3)
    assert (moved.removed[0], moved.added[0]) == (midnight + timedelta(hours=8), midnight + timedelta(hours=7))


async def test_new_data_is_noticed_without_a_request(newer: TimezoneDatabase) -> None:
    it = Watched()
    await it.work.define("nine", **NINE)
    await it.work.runner.run()
    install(newer)
    noticing = asyncio.create_task(it.watch.keep_timezones())
    await settle()
    it.clock.advance(LOOK_INTERVAL_S)
    await settle()
    noticing.cancel()
    assert (await it.report()).jobs == 1


class Told(Heartbeat):
    """Notes whether passes were clean."""

    passes: list[bool]

    @override
    def pass_ended(self, *, is_clean: bool) -> None:
        self.passes.append(is_clean)


async def test_heartbeat_ends_while_instants_are_not_decided() -> None:
    it = Watched()
    it.watch._heartbeat = heartbeat = Told(AsyncMock(), it.clock, every=60)
    heartbeat.passes = []
    await it.work.define("tick", schedule="* * * * *")
    await it.work.runner.run()
    sending = asyncio.create_task(it.watch.keep_heartbeat())
    await settle()
    it.clock.advance(90)  # the log stores nothing
    await settle()
    await it.work.runner.run()
    it.clock.advance(1)
    await settle()
    sending.cancel()
    assert heartbeat.passes == [True, False, True]
    assert len(await fired(it.work)) == 1


@pytest.fixture
def metrics(instruments: InMemoryMetricReader) -> InMemoryMetricReader:
    """Return the counts of instruments from now on."""
    instruments.get_metrics_data()
    return instruments


@pytest.mark.parametrize("leads", [True, False])
async def test_leader_logs_and_counts_what_was_missed(metrics: InMemoryMetricReader, *, leads: bool) -> None:
    world = World()
    view: Any = SimpleNamespace(loop=SimpleNamespace(leads=lambda _: leads))
    watch = TickerWatch(view, world.log, world.projections, world.clock, None)
    with capture_logs() as lines:
        reporting = asyncio.create_task(watch.report_missed())
        await settle()
        await world.define({"name": "a.job", "schedule": "* * * * *", "function": "f", "catch_up": "skip"})
        world.clock.advance(10 * 60 + 30)
        await world.run(world.ticker)
        world.clock.advance(INTERVAL_S)
        await settle()
        reporting.cancel()
    found = [(one["log_level"], one["job"], one["count"]) for one in lines if one.get("action") == "missed"]
    assert found == [("warning", "a.job", 10)] * leads
    assert counted(metrics) == ({("a.job", "missed"): 10} if leads else {})


def test_instants_of_a_paused_job_raise_no_alert(metrics: InMemoryMetricReader) -> None:
    passed = Passed(job="a.job", start=NOON, until=NOON, reason="paused", count=3, definition=1)
    with capture_logs() as lines:
        report_missed(passed)
    assert (lines, counted(metrics)) == ([], {})


def counted(reader: InMemoryMetricReader) -> dict[tuple[object, object], object]:
    """Return the counter's increase since the test began."""
    data = reader.get_metrics_data()
    found: dict[tuple[object, object], object] = {}
    for resource in data.resource_metrics if data else ():
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                if metric.name == "tocsin_instants_missed":
                    points: Any = metric.data.data_points
                    found |= {(p.attributes["job"], p.attributes["reason"]): p.value for p in points}
    return found
