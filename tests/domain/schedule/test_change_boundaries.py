"""The very seconds at which clocks change, and schedules far from the change that matters."""

from datetime import UTC, datetime, timedelta

import pytest

from tocsin.domain.schedule import DstPolicy, clock_changes, parse

STRICT = DstPolicy()
SHIFT = DstPolicy(gap="shift")
BOTH = DstPolicy(fold="both")
NEW_YORK = "America/New_York"
SECOND = timedelta(seconds=1)
GAP = datetime(2026, 3, 8, 7, tzinfo=UTC)
"""02:00 becomes 03:00 in New York."""
FOLD = datetime(2026, 11, 1, 6, tzinfo=UTC)
"""02:00 becomes 01:00 in New York."""


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize("dst", [STRICT, SHIFT, BOTH])
@pytest.mark.parametrize(
    ("expression", "timezone", "after", "expected"),
    [
        ("0 12 7 3 *", NEW_YORK, "2025-10-01T00:00", "2026-03-07T17:00"),
        ("0 12 8 3 *", NEW_YORK, "2025-10-01T00:00", "2026-03-08T16:00"),
        ("0 12 31 10 *", NEW_YORK, "2025-12-01T00:00", "2026-10-31T16:00"),
        ("30 2 29 9 *", "Pacific/Apia", "2013-01-01T00:00", "2013-09-28T13:30"),
        ("30 4 29 9 *", "Pacific/Apia", "2013-01-01T00:00", "2013-09-28T14:30"),
        ("0 2 * * *", NEW_YORK, "2026-10-31T12:00", "2026-11-01T07:00"),
        ("0 3 * * *", NEW_YORK, "2026-03-07T12:00", "2026-03-08T07:00"),
        ("59 59 1 * * *", NEW_YORK, "2026-03-07T12:00", "2026-03-08T06:59:59"),
        ("59 59 1 * * *", NEW_YORK, "2026-10-31T12:00", "2026-11-01T05:59:59"),
    ],
)
def test_what_lies_near_a_change_is_found(
    expression: str, timezone: str, after: str, expected: str, dst: DstPolicy
) -> None:
    schedule = parse(expression, timezone, dst=dst)
    assert schedule.next_after(utc(after), anchor=utc(after)) == utc(expected)


@pytest.mark.parametrize("dst", [STRICT, SHIFT])
@pytest.mark.parametrize(
    ("expression", "until", "expected"),
    [
        ("59 59 1 * * *", GAP + timedelta(minutes=10), GAP - SECOND),
        ("59 59 1 * * *", GAP - SECOND, GAP - SECOND),
        ("59 59 1 * * *", FOLD + timedelta(minutes=10), FOLD - SECOND),
        ("0 0 3 * * *", GAP, GAP),
        ("0 0 3 * * *", GAP - SECOND, utc("2026-03-07T08:00")),
        ("0 0 2 * * *", FOLD + timedelta(hours=1), FOLD + timedelta(hours=1)),
        ("0 0 2 * * *", FOLD + timedelta(hours=1) - SECOND, utc("2026-10-31T06:00")),
        ("0 12 1 1 *", utc("2026-12-31T00:00"), utc("2026-01-01T17:00")),
        ("0 12 1 7 *", utc("2026-12-31T00:00"), utc("2026-07-01T16:00")),
    ],
)
def test_the_latest_instant_around_changes_is_found(
    expression: str, until: datetime, expected: datetime, dst: DstPolicy
) -> None:
    schedule, after = parse(expression, NEW_YORK, dst=dst), utc("2025-01-01T00:00")
    assert schedule.latest_until(until, after=after, anchor=after) == expected


@pytest.mark.parametrize(
    ("until", "expected"),
    [
        (GAP + timedelta(minutes=30), GAP + timedelta(minutes=30)),
        (GAP + timedelta(minutes=30) - SECOND, utc("2026-03-07T07:30")),
        (GAP + timedelta(hours=5), GAP + timedelta(minutes=30)),
    ],
)
def test_a_shifted_time_is_the_latest(until: datetime, expected: datetime) -> None:
    schedule, after = parse("30 2 * * *", NEW_YORK, dst=SHIFT), utc("2026-01-01T00:00")
    assert schedule.latest_until(until, after=after, anchor=after) == expected


def test_a_repeated_time_is_the_latest_twice() -> None:
    schedule, after = parse("*/30 * * * *", NEW_YORK, dst=BOTH), utc("2026-01-01T00:00")
    for half_hours in range(-4, 5):
        until = FOLD + half_hours * timedelta(minutes=30)
        assert schedule.latest_until(until, after=after, anchor=after) == until
        assert schedule.latest_until(until + SECOND, after=after, anchor=after) == until


def test_every_skipped_second_is_reported() -> None:
    schedule = parse("0-5 30 2 * * *", NEW_YORK)
    instants = list(schedule.occurrences(GAP - SECOND, GAP + timedelta(hours=2), anchor=GAP))
    assert [f"{one.skipped_local:%H:%M:%S}" for one in instants if one.skipped_local] == [
        f"02:30:0{second}" for second in range(6)
    ]


@pytest.mark.parametrize(("minutes", "count"), [(0, 0), (29, 0), (30, 1), (31, 1)])
def test_a_skipped_time_comes_at_its_old_instant(minutes: int, count: int) -> None:
    schedule = parse("30 2 * * *", NEW_YORK)
    assert len(list(schedule.occurrences(GAP - SECOND, GAP + timedelta(minutes=minutes), anchor=GAP))) == count
    late = schedule.occurrences(GAP + timedelta(minutes=minutes), GAP + timedelta(hours=3), anchor=GAP)
    assert len(list(late)) == (1 if minutes < 30 else 0)


@pytest.mark.parametrize("change", [GAP, FOLD])
@pytest.mark.parametrize(("after", "until", "count"), [(-1, 0, 1), (0, 1, 0), (-2, -1, 0), (-100, 100, 1), (-1, 1, 1)])
def test_a_change_is_reported_within_its_window(change: datetime, after: int, until: int, count: int) -> None:
    schedule = parse("30 1,2 * * *", NEW_YORK)
    instants = list(clock_changes(schedule, change + after * SECOND, change + until * SECOND))
    assert [one.at for one in instants] == [change] * count


@pytest.mark.parametrize("timezone", ["UTC", NEW_YORK])
@pytest.mark.parametrize("dst", [STRICT, SHIFT, BOTH])
def test_nothing_follows_the_last_year(timezone: str, dst: DstPolicy) -> None:
    schedule, morning = parse("30 5-6 * * *", timezone, dst=dst), utc("9999-12-31T00:00")
    instants = [one.at for one in schedule.occurrences(morning, utc("9999-12-31T23:59:59"), anchor=morning)]
    assert len(instants) == 2
    assert schedule.next_after(instants[0], anchor=morning) == instants[1]
    assert schedule.next_after(instants[1], anchor=morning) is None
    assert schedule.count(morning, instants[1], anchor=morning) == 2


@pytest.mark.parametrize("dst", [STRICT, SHIFT, BOTH])
def test_the_last_second_of_all_fires(dst: DstPolicy) -> None:
    schedule, last = parse("* * * * * *", dst=dst), utc("9999-12-31T23:59:59")
    assert schedule.next_after(last - SECOND, anchor=last) == last
    assert schedule.next_after(last, anchor=last) is None


@pytest.mark.parametrize("timezone", ["UTC", NEW_YORK])
@pytest.mark.parametrize("dst", [STRICT, SHIFT, BOTH])
def test_nothing_comes_before_the_first_year(timezone: str, dst: DstPolicy) -> None:
    schedule, first = parse("0 12 * * *", timezone, dst=dst), utc("0001-01-01T00:00")
    assert schedule.latest_until(first + timedelta(hours=2), after=first, anchor=first) is None
    assert schedule.next_after(first, anchor=first) == schedule.latest_until(
        first + timedelta(hours=30), after=first, anchor=first
    )
