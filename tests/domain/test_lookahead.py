"""A lookahead returns what the calendar returns, and remembers the last search."""

from datetime import UTC, datetime, timedelta

import pytest

from tocsin.domain.ledger import Lookahead
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


def first_of(schedule: Schedule, after: datetime, anchor: datetime) -> datetime | None:
    fires = schedule.next_after(after, anchor=anchor)
    if fires is None:
        return None
    return next((occurrence.at for occurrence in schedule.occurrences(after, fires, anchor=anchor)), fires)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda schedule: f"{schedule.text} {schedule.timezone}")
@pytest.mark.parametrize("change", CHANGES, ids=str)
@pytest.mark.parametrize("step", [5, 60, 210])
def test_lookahead_yields_what_the_schedule_yields(schedule: Schedule, change: datetime, step: int) -> None:
    lookahead, anchor = Lookahead(), change - timedelta(hours=31, minutes=1)
    after = now = anchor
    while now < change + timedelta(hours=30):
        now += timedelta(minutes=step)
        expected = list(schedule.occurrences(after, now, anchor=anchor))
        assert list(lookahead.occurrences(schedule, after, now, anchor)) == expected
        if expected:
            after = expected[-1].at
        assert lookahead.next_at(schedule, after, anchor) == first_of(schedule, after, anchor)


def test_interval_is_searched_again_from_another_anchor() -> None:
    every, lookahead = parse("@every 7m"), Lookahead()
    for anchor in (CHANGES[0], CHANGES[0] + timedelta(minutes=3)):
        assert lookahead.next_at(every, CHANGES[0], anchor) == every.next_after(CHANGES[0], anchor=anchor)


def test_newer_zone_data_is_searched_again(monkeypatch: pytest.MonkeyPatch) -> None:
    schedule, lookahead, after = parse("0 9 * * *", "Europe/Berlin"), Lookahead(), CHANGES[0]
    before = lookahead.next_at(schedule, after, after)
    database = timezone_database()
    newer = type(database)(database._root)
    monkeypatch.setitem(newer._zones, "Europe/Berlin", newer.zone("Asia/Tokyo"))
    monkeypatch.setattr("tocsin.domain.schedule.timezones._InForce.database", newer)
    assert lookahead.next_at(schedule, after, after) == schedule.next_after(after, anchor=after) != before


def test_jobs_with_one_schedule_share_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    searches: list[datetime] = []
    search = CalendarRule.next_after

    def counted(rule: CalendarRule, after: datetime, anchor: datetime, /) -> datetime | None:
        searches.append(after)
        return search(rule, after, anchor)

    monkeypatch.setattr(CalendarRule, "next_after", counted)
    lookahead, daily = Lookahead(), parse("0 7 * * *", "America/New_York")
    midnight = datetime(2026, 2, 2, tzinfo=UTC)
    for second in range(1_000):
        after = midnight + timedelta(seconds=second)
        assert lookahead.next_at(daily, after, after) == midnight + timedelta(hours=12)
    assert len(searches) == 1
