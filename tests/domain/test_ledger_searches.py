"""Searches of a ledger return what the calendar returns, and are remembered."""

from datetime import UTC, datetime, timedelta

import pytest

from tocsin.domain.ledger import instants
from tocsin.domain.schedule import DstPolicy, Schedule, parse, timezone_database
from tocsin.domain.schedule.instants import CalendarRule

SHIFT = DstPolicy(gap="shift", fold="both")
SCHEDULES = [
    parse("*/15 * * * *", "America/New_York"),
    parse("30 1,2,3 * * *", "America/New_York"),
    parse("30 1,2,3 * * *", "America/New_York", dst=SHIFT),
    parse("*/20 * * * *", "Australia/Lord_Howe"),
    parse("0 */6 * * *", "Pacific/Apia"),
    parse("0 * * * *", "UTC"),
    parse("@every 7m", "Europe/Berlin"),
    parse("@at 2027-03-14T07:00:00Z"),
]
CHANGES = [
    datetime(2027, 3, 14, 7, tzinfo=UTC),
    datetime(2027, 11, 7, 6, tzinfo=UTC),
    datetime(2027, 4, 3, 15, tzinfo=UTC),
    datetime(2027, 10, 2, 15, 30, tzinfo=UTC),
    datetime(2011, 12, 30, 10, tzinfo=UTC),
]


@pytest.fixture(autouse=True)
def _nothing_remembered() -> None:
    instants._remembered.cache_clear()


def next_at(schedule: Schedule, after: datetime, anchor: datetime) -> datetime | None:
    return instants._first(schedule, after, anchor)[0]


def first_of(schedule: Schedule, after: datetime, anchor: datetime) -> datetime | None:
    fires = schedule.next_after(after, anchor=anchor)
    if fires is None:
        return None
    return next((occurrence.at for occurrence in schedule.occurrences(after, fires, anchor=anchor)), fires)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda schedule: f"{schedule.text} {schedule.timezone}")
@pytest.mark.parametrize("change", CHANGES, ids=str)
@pytest.mark.parametrize("step", [5, 60, 210])
def test_ledger_yields_what_the_schedule_yields(schedule: Schedule, change: datetime, step: int) -> None:
    anchor = change - timedelta(hours=31, minutes=1)
    after = now = anchor
    while now < change + timedelta(hours=30):
        now += timedelta(minutes=step)
        expected = list(schedule.occurrences(after, now, anchor=anchor))
        assert list(instants._occurrences(schedule, after, now, anchor)) == expected
        if expected:
            after = expected[-1].at
        assert next_at(schedule, after, anchor) == first_of(schedule, after, anchor)


def test_interval_is_searched_again_from_another_anchor() -> None:
    every = parse("@every 7m")
    for anchor in (CHANGES[0], CHANGES[0] + timedelta(minutes=3)):
        assert next_at(every, CHANGES[0], anchor) == every.next_after(CHANGES[0], anchor=anchor)


def test_newer_zone_data_is_searched_again(monkeypatch: pytest.MonkeyPatch) -> None:
    schedule, after = parse("0 9 * * *", "Europe/Berlin"), CHANGES[0]
    before = next_at(schedule, after, after)
    database = timezone_database()
    newer = type(database)(database._root)
    monkeypatch.setitem(newer._zones, "Europe/Berlin", newer.zone("Asia/Tokyo"))
    monkeypatch.setattr("tocsin.domain.schedule.timezones._InForce.database", newer)
    assert next_at(schedule, after, after) == schedule.next_after(after, anchor=after) != before


def test_jobs_with_one_schedule_share_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    searches: list[datetime] = []
    search = CalendarRule.next_after

    def counted(rule: CalendarRule, after: datetime, anchor: datetime, /) -> datetime | None:
        searches.append(after)
        return search(rule, after, anchor)

    monkeypatch.setattr(CalendarRule, "next_after", counted)
    daily, midnight = parse("0 7 * * *", "America/New_York"), datetime(2026, 2, 2, tzinfo=UTC)
    for second in range(1_000):
        assert next_at(daily, midnight, midnight + timedelta(seconds=second)) == midnight + timedelta(hours=12)
    assert len(searches) == 1
