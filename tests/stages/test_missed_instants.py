"""Instants that pass without firing against the operator's intent raise one alert per span."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import asdict
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from structlog.testing import capture_logs

from tests.domain.given import NOON
from tests.stages.test_ticker import leading, tick
from tests.stages.world import World
from tocsin import subjects
from tocsin.domain import ledger
from tocsin.domain.events import CronMissed, Message, Passed
from tocsin.domain.ledger import Ledger
from tocsin.engine.ledger_reader import LedgerReader
from tocsin.engine.ticker_watch import report_missed

MINUTELY: dict[str, Any] = {"name": "a.job", "schedule": "* * * * *", "timezone": "Europe/Berlin", "function": "f"}


async def absent(world: World, minutes: int) -> list[Passed]:
    """The ticker is away for a while, then returns; return the passed spans."""
    world.clock.advance(60 * minutes)
    state, _ = await LedgerReader(world.log).load("a.job")
    facts = ledger.decide_instants(state, world.clock.now())
    await world.given(*facts)
    return [fact for fact in facts if isinstance(fact, Passed)]


async def test_missed_span_is_announced(world: World) -> None:
    await world.define(MINUTELY)
    begin = world.clock.now()
    [passed] = await absent(world, 10)
    await world.run(world.planner)
    [event] = await world.recorded(CronMissed)
    assert event.subject == "cron.missed.a_job"
    assert asdict(event.message.data) == {
        "cron_name": "a.job",
        "cron_expression": "* * * * *",
        "timezone": "Europe/Berlin",
        "reason": "missed",
        "count": 9,
        "start": begin,
        "until": begin + timedelta(minutes=9),
    }
    assert passed.count == 9
    assert event.message.timestamp == world.clock.now()


async def test_each_span_is_announced_once(world: World) -> None:
    await world.define(MINUTELY)
    for minutes in (3, 1, 5, 7):
        await absent(world, minutes)
    await world.run(world.planner)
    await world.redeliver(world.planner)
    assert [event.data.count for event in await world.stored(CronMissed)] == [2, 4, 6]


async def test_earlier_span_handled_later_is_announced(world: World) -> None:
    await world.define(MINUTELY)
    for minutes in (3, 5):
        await absent(world, minutes)
    passed = await world.recorded(Passed)
    [subscription] = (s for s in world.planner.subscriptions if s.durable == "planner")
    for recorded in reversed(passed):
        await world.deliver(subscription, recorded)
    assert sorted(event.data.count for event in await world.stored(CronMissed)) == [2, 4]


async def test_superseded_span_is_announced(world: World) -> None:
    await world.define(MINUTELY)
    world.clock.advance(60 * 5)
    await world.define({**MINUTELY, "schedule": "0 3 * * *"})
    [passed] = await absent(world, 1)
    await world.run(world.planner)
    [event] = await world.stored(CronMissed)
    assert (passed.reason, event.data.reason, event.data.count) == ("superseded", "superseded", 5)


@pytest.mark.parametrize("change", [ledger.pause, ledger.delete])
async def test_requested_pause_raises_no_alert(
    world: World, change: Callable[[Ledger, str], Sequence[Message]]
) -> None:
    await world.define(MINUTELY)
    state, _ = await LedgerReader(world.log).load("a.job")
    await world.given(*change(state, "a.job"))
    await absent(world, 10)
    await world.run(world.planner)
    assert await world.stored(CronMissed) == []


async def test_the_ticker_logs_and_counts_what_was_missed(world: World, metrics: InMemoryMetricReader) -> None:
    await world.define({**MINUTELY, "catch_up": "skip"})
    async with leading(world) as ticker:
        with capture_logs() as lines:
            await tick(world, ticker, 10 * 60 + 30)
    [line] = [line for line in lines if line.get("action") == "missed"]
    assert (line["log_level"], line["job"], line["count"]) == ("warning", "a.job", 10)
    assert counted(metrics) == {("a.job", "missed"): 10}


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


def test_its_subject_is_the_job_s() -> None:
    assert subjects.public_event("missed", "a.job") == "cron.missed.a_job"
