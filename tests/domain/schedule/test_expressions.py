"""The syntax of cron expressions (`ojs-cron` 3): what is read, and what it means."""

from datetime import UTC, datetime, timedelta

import pytest

from tocsin.domain.schedule import next_fire_times, parse

from .brute_force import found

# 2026 begins on a Thursday; February has 28 days.
NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)


def days(text: str, n: int = 4, after: datetime = NEW_YEAR) -> list[str]:
    """The days of the next instants."""
    return [f"{at:%b %d}" for at in next_fire_times(text, "UTC", after - timedelta(seconds=1), n)]


def times(text: str, n: int = 4) -> list[str]:
    """The times of day of the next instants."""
    return [f"{at:%H:%M:%S}" for at in next_fire_times(text, "UTC", NEW_YEAR - timedelta(seconds=1), n)]


def test_cron_08_five_fields_imply_second_0() -> None:
    assert times("30 9 * * *", 1) == ["09:30:00"]
    assert times("15 30 9 * * *", 1) == ["09:30:15"]


def test_cron_08_any_white_space_separates_fields() -> None:
    assert parse(" \t0  9\n* *   1-5 ").expressions == ("0 9 * * 1-5",)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("* * * * *", ["00:00:00", "00:01:00", "00:02:00"]),
        ("1,15 * * * *", ["00:01:00", "00:15:00", "01:01:00"]),
        ("58-59 * * * *", ["00:58:00", "00:59:00", "01:58:00"]),
        ("*/25 * * * *", ["00:00:00", "00:25:00", "00:50:00"]),
        ("10-20/5 * * * *", ["00:10:00", "00:15:00", "00:20:00"]),
        ("50/4 * * * *", ["00:50:00", "00:54:00", "00:58:00"]),
        ("5-5 * * * *", ["00:05:00", "01:05:00", "02:05:00"]),
        ("5-5/2 * * * *", ["00:05:00", "01:05:00", "02:05:00"]),
        ("*/60 * * * *", ["00:00:00", "01:00:00", "02:00:00"]),
        ("0 */7 * * *", ["00:00:00", "07:00:00", "14:00:00"]),
        ("5,*/30 * * * *", ["00:00:00", "00:05:00", "00:30:00"]),
        ("007 08 * * *", ["08:07:00", "08:07:00", "08:07:00"]),
        ("*/20 59 23 * * *", ["23:59:00", "23:59:20", "23:59:40"]),
    ],
)
def test_cron_09_time_fields_take_all_operators(text: str, expected: list[str]) -> None:
    assert times(text, len(expected)) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0 0 */10 * *", ["Jan 01", "Jan 11", "Jan 21", "Jan 31", "Feb 01"]),
        ("0 0 10-12 2 *", ["Feb 10", "Feb 11", "Feb 12"]),
        ("0 0 1 */5 *", ["Jan 01", "Jun 01", "Nov 01"]),
        ("0 0 1 2,3 *", ["Feb 01", "Mar 01"]),
        ("0 0 * * 1-5", ["Jan 01", "Jan 02", "Jan 05", "Jan 06"]),
        ("0 0 * * */2", ["Jan 01", "Jan 03", "Jan 04", "Jan 06"]),
    ],
)
def test_cron_09_day_fields_take_all_operators(text: str, expected: list[str]) -> None:
    assert days(text, len(expected)) == expected


@pytest.mark.parametrize(
    ("text", "same_as"),
    [
        ("0 0 1 JAN *", "0 0 1 1 *"),
        ("0 0 1 jan,Feb-aPr *", "0 0 1 1,2-4 *"),
        ("0 0 * * mon-FRI", "0 0 * * 1-5"),
        ("0 0 * * Sun", "0 0 * * 0"),
        ("0 0 * * 7", "0 0 * * 0"),
        ("0 0 * * 5-7", "0 0 * * 5,6,0"),
        ("0 0 * * 7-2", "0 0 * * 0-2"),
        ("0 0 * * FRI-MON", "0 0 * * 5,6,0,1"),
        ("0 0 * * FRI-MON/2", "0 0 * * 5,0"),
        ("0 0 * * SAT-SUN", "0 0 * * 6,0"),
        ("0 0 1 NOV-FEB *", "0 0 1 11,12,1,2 *"),
        ("0 0 1 NOV-FEB/3 *", "0 0 1 11,2 *"),
        ("0 0 * * 1-7", "0 0 * * *"),
        ("0 0 * * 0-7", "0 0 * * *"),
    ],
)
def test_cron_10_names_both_sundays_and_wrapping_ranges(text: str, same_as: str) -> None:
    assert days(text, 40) == days(same_as, 40)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # the last day, leap years included
        ("0 0 L * *", ["Jan 31", "Feb 28", "Mar 31", "Apr 30"]),
        ("0 0 1,L 2 *", ["Feb 01", "Feb 28"]),
        # the nearest weekday: 1 February is a Sunday, 31 January a Saturday, 15 February a Sunday
        ("0 0 1W 2 *", ["Feb 02"]),
        ("0 0 31W 1 *", ["Jan 30"]),
        ("0 0 15W 2 *", ["Feb 16"]),
        ("0 0 14W 2 *", ["Feb 13"]),
        # … never leaving the month: 1 August is a Saturday, 31 May a Sunday
        ("0 0 1W 8 *", ["Aug 03"]),
        ("0 0 31W 5 *", ["May 29"]),
        # … and a day that the month does not have does not become another day
        ("0 0 31W * *", ["Jan 30", "Mar 31", "May 29", "Jul 31"]),
        ("0 0 LW * *", ["Jan 30", "Feb 27", "Mar 31", "Apr 30"]),
        ("0 0 1W,15w,20 1 *", ["Jan 01", "Jan 15", "Jan 20"]),
        # the nth and the last weekday
        ("0 0 * * 5#3", ["Jan 16", "Feb 20", "Mar 20", "Apr 17"]),
        ("0 0 * * fri#3", ["Jan 16", "Feb 20", "Mar 20", "Apr 17"]),
        ("0 0 * * 4#5", ["Jan 29", "Apr 30", "Jul 30", "Oct 29"]),
        ("0 0 * * 7#1", ["Jan 04", "Feb 01", "Mar 01", "Apr 05"]),
        ("0 0 * * 5L", ["Jan 30", "Feb 27", "Mar 27", "Apr 24"]),
        ("0 0 * * FRIL", ["Jan 30", "Feb 27", "Mar 27", "Apr 24"]),
        ("0 0 * * MON#1,5L", ["Jan 05", "Jan 30", "Feb 02", "Feb 27"]),
        ("0 0 * * 1,5#3", ["Jan 05", "Jan 12", "Jan 16", "Jan 19"]),
    ],
)
def test_cron_s01_l_w_and_hash(text: str, expected: list[str]) -> None:
    assert days(text, len(expected)) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0 0 13 * 5", ["Jan 02", "Jan 09", "Jan 13", "Jan 16"]),
        ("0 0 L * 5#1", ["Jan 02", "Jan 31", "Feb 06", "Feb 28"]),
        ("0 0 15W * 1#1", ["Jan 05", "Jan 15", "Feb 02", "Feb 16"]),
        ("0 0 1-31 * 1", ["Jan 01", "Jan 02", "Jan 03", "Jan 04"]),
        ("0 0 */2 * 1", ["Jan 01", "Jan 03", "Jan 05", "Jan 07"]),
        # a star restricts nothing, however it is written, so the other field decides alone
        ("0 0 * * 1", ["Jan 05", "Jan 12", "Jan 19", "Jan 26"]),
        ("0 0 */1 * 1", ["Jan 05", "Jan 12", "Jan 19", "Jan 26"]),
        ("0 0 13 * *", ["Jan 13", "Feb 13", "Mar 13", "Apr 13"]),
    ],
)
def test_restricted_day_fields_are_joined_by_or(text: str, expected: list[str]) -> None:
    assert days(text, len(expected)) == expected


@pytest.mark.parametrize(
    "text",
    [
        "0 0 L * *",
        "0 0 LW * *",
        "0 0 15W * *",
        "0 0 1W,30W * *",
        "0 0 29 2 *",
        "0 0 * * 5#5",
        "0 0 * * 0L",
        "0 0 31W * 1#2",
    ],
)
def test_cron_s01_days_of_28_years_match_brute_force(text: str) -> None:
    start = datetime(2023, 12, 31, 23, tzinfo=UTC)
    until = start.replace(year=2052)
    occurrences = parse(text).occurrences(start, until, anchor=start)
    assert [occurrence.at for occurrence in occurrences] == found(text, "UTC", start, until)


@pytest.mark.parametrize(
    ("text", "after", "expected"),
    [
        ("0 0 29 2 *", datetime(2026, 1, 1, tzinfo=UTC), datetime(2028, 2, 29, tzinfo=UTC)),
        # 2100 is no leap year, 2000 was one
        ("0 0 29 2 *", datetime(2096, 3, 1, tzinfo=UTC), datetime(2104, 2, 29, tzinfo=UTC)),
        ("0 0 29 2 *", datetime(1996, 3, 1, tzinfo=UTC), datetime(2000, 2, 29, tzinfo=UTC)),
        # a fifth Saturday in February: 2048, then 28 years; over 2100 it is 40
        ("0 0 * 2 6#5", datetime(2026, 1, 1, tzinfo=UTC), datetime(2048, 2, 29, tzinfo=UTC)),
        ("0 0 * 2 6#5", datetime(2048, 3, 1, tzinfo=UTC), datetime(2076, 2, 29, tzinfo=UTC)),
        ("0 0 * 2 6#5", datetime(2076, 3, 1, tzinfo=UTC), datetime(2116, 2, 29, tzinfo=UTC)),
        ("59 59 23 31 12 *", datetime(9999, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)),
    ],
)
def test_what_is_rare_is_found_however_far_away(text: str, after: datetime, expected: datetime) -> None:
    assert parse(text).next_after(after, anchor=after) == expected
    assert parse(text).latest_until(expected, after=after, anchor=after) == expected


def test_the_calendar_ends_with_the_year_9999() -> None:
    end = datetime.max.replace(tzinfo=UTC)
    for timezone in ("UTC", "America/New_York", "Pacific/Auckland"):
        schedule = parse("* * * * *", timezone)
        assert schedule.next_after(end, anchor=end) is None
        last = schedule.latest_until(end, after=end - timedelta(days=2), anchor=end)
        assert last is not None
        assert schedule.next_after(last, anchor=end) is None


def test_next_instant_is_later_by_a_microsecond() -> None:
    schedule, noon = parse("0 12 * * *"), datetime(2026, 1, 1, 12, tzinfo=UTC)
    assert schedule.next_after(noon - timedelta(microseconds=1), anchor=noon) == noon
    assert schedule.next_after(noon, anchor=noon) == noon + timedelta(days=1)
    assert schedule.next_after(noon + timedelta(microseconds=1), anchor=noon) == noon + timedelta(days=1)
    assert schedule.latest_until(noon - timedelta(microseconds=1), after=noon - timedelta(hours=1), anchor=noon) is None
    assert schedule.latest_until(noon + timedelta(microseconds=1), after=noon - timedelta(hours=1), anchor=noon) == noon
    assert schedule.latest_until(noon + timedelta(hours=1), after=noon, anchor=noon) is None
