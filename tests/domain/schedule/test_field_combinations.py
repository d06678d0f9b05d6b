"""A star beside other values, and durations and names at their limits."""

import re
from datetime import UTC, datetime, timedelta

import pytest

from tocsin.domain.schedule import ScheduleError, parse
from tocsin.domain.schedule.english import ordinal
from tocsin.domain.schedule.rules import format_duration, parse_duration

START = datetime(2026, 11, 1, tzinfo=UTC)
MONTH = timedelta(days=30)


@pytest.mark.parametrize(
    ("expression", "days"),
    [
        ("0 0 * * 5", [6, 13, 20, 27]),
        ("0 0 *,13 * 5", [6, 13, 20, 27]),
        ("0 0 13,* * 5", [6, 13, 20, 27]),
        ("0 0 13 * 5", [6, 13, 20, 27]),
        ("0 0 14 * 5", [6, 13, 14, 20, 27]),
        ("0 0 14 * *,5", [14]),
        ("0 0 14 * 5,*", [14]),
        ("0 0 14,16 * *", [14, 16]),
    ],
)
def test_a_star_among_values_restricts_nothing(expression: str, days: list[int]) -> None:
    found = parse(expression).occurrences(START, START + MONTH, anchor=START)
    assert [one.at.day for one in found] == days


@pytest.mark.parametrize(
    ("expression", "days"),
    [("0 0 29 2 *", [29]), ("0 0 29 3 *", []), ("0 0 31,30 * *", [30, 31])],
)
def test_missing_days_are_warned_of_in_order(expression: str, days: list[int]) -> None:
    warnings = parse(expression).warnings
    assert [int(re.findall(r"\d+", warning)[0]) for warning in warnings] == days


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [("1ms", 1), ("999ms", 999), ("1s", 1000), ("1.5s", 1500), ("0.001s", 1), ("1h1ms", 3_600_001)],
)
def test_a_duration_is_in_whole_milliseconds(text: str, milliseconds: int) -> None:
    assert parse_duration(text) == timedelta(milliseconds=milliseconds)
    assert parse_duration(format_duration(parse_duration(text))) == parse_duration(text)


@pytest.mark.parametrize(
    ("text", "start", "length"),
    [("", 0, 1), ("0s", 0, 2), ("0.5ms", 0, 5), ("1.0005s", 0, 7), ("876601h", 0, 7), ("5m3x9", 2, 3), ("5", 0, 1)],
)
def test_a_duration_out_of_range_is_refused(text: str, start: int, length: int) -> None:
    with pytest.raises(ScheduleError) as refused:
        parse_duration(text)
    assert (refused.value.start, refused.value.length) == (start, length)


def test_a_refused_duration_quotes_its_rest() -> None:
    with pytest.raises(ScheduleError, match="'3x9'"):
        parse_duration("5m3x9")


@pytest.mark.parametrize(
    ("duration", "text"),
    [(999, "999ms"), (1000, "1s"), (1001, "1.001s"), (1500, "1.5s"), (60_000, "1m0s"), (3_600_000, "1h0m0s")],
)
def test_a_duration_is_written_as_go_does(duration: int, text: str) -> None:
    assert format_duration(timedelta(milliseconds=duration)) == text


@pytest.mark.parametrize(
    ("n", "text"),
    [(1, "1st"), (2, "2nd"), (3, "3rd"), (4, "4th"), (11, "11th"), (13, "13th"), (21, "21st"), (31, "31st")],
)
def test_a_day_has_its_ordinal(n: int, text: str) -> None:
    assert ordinal(n) == text
