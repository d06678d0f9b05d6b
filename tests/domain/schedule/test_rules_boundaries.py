"""Intervals, single instants and several rules at once, at the ends of a window."""

from datetime import UTC, datetime, timedelta

import pytest

from tocsin.domain.schedule import DstPolicy, Occurrence, parse
from tocsin.domain.schedule.instants import CalendarRule
from tocsin.domain.schedule.rules import IntervalRule, OnceRule, UnionRule

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
FIVE = IntervalRule(5 * MINUTE)
ONCE = OnceRule(NOON)
LAST = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)


@pytest.mark.parametrize(
    ("after", "until", "minutes"),
    [
        (0, 5, [5]),
        (0, 4, []),
        (5, 10, [10]),
        (4, 10, [5, 10]),
        (60, 71, [65, 70]),
        (-60, 5, [5]),
        (-60, 0, []),
        (-60, -30, []),
        (10, 10, []),
        (10, 0, []),
    ],
)
def test_an_interval_names_what_its_window_holds(after: int, until: int, minutes: list[int]) -> None:
    window = NOON + after * MINUTE, NOON + until * MINUTE
    expected = [NOON + minute * MINUTE for minute in minutes]
    assert [found.at for found in FIVE.occurrences(*window, NOON)] == expected
    assert FIVE.count(*window, NOON) == len(expected)
    assert FIVE.latest_until(window[1], window[0], NOON) == (expected[-1] if expected else None)


def test_an_interval_ends_with_the_calendar() -> None:
    assert FIVE.next_after(LAST, NOON) is None
    assert list(FIVE.occurrences(LAST - MINUTE, LAST, LAST - MINUTE)) == []


@pytest.mark.parametrize(("after", "until", "count"), [(-1, 0, 1), (0, 1, 0), (-1, 1, 1), (-2, -1, 0), (1, 2, 0)])
def test_a_single_instant_is_in_its_window(after: int, until: int, count: int) -> None:
    window = NOON + after * MINUTE, NOON + until * MINUTE
    assert ONCE.count(*window, NOON) == count
    assert list(ONCE.occurrences(*window, NOON)) == [Occurrence(NOON)] * count
    assert ONCE.latest_until(window[1], window[0], NOON) == (NOON if count else None)
    assert ONCE.next_after(window[0], NOON) == (NOON if after < 0 else None)


def test_several_rules_end_together() -> None:
    rule = UnionRule((ONCE, OnceRule(NOON + MINUTE)))
    assert rule.next_after(NOON - MINUTE, NOON) == NOON
    assert rule.next_after(NOON, NOON) == NOON + MINUTE
    assert rule.next_after(NOON + MINUTE, NOON) is None
    assert rule.latest_until(NOON + 5 * MINUTE, NOON - MINUTE, NOON) == NOON + MINUTE
    assert rule.latest_until(NOON - MINUTE, NOON - 5 * MINUTE, NOON) is None


def calendar_rule(expression: str) -> CalendarRule:
    (rule,) = parse(expression, "America/New_York", dst=DstPolicy()).calendar_rules
    return rule


@pytest.mark.parametrize("expressions", [("0 3 * * *", "0 2 * * *"), ("0 2 * * *", "0 3 * * *")])
def test_what_fires_comes_before_what_is_skipped(expressions: tuple[str, ...]) -> None:
    """02:00 does not exist in New York on that day; 03:00 is the same instant."""
    rule = UnionRule(tuple(calendar_rule(expression) for expression in expressions))
    change = datetime(2026, 3, 8, 7, tzinfo=UTC)
    found = list(rule.occurrences(change - MINUTE, change, change))
    assert [one.skipped_local for one in found] == [None, datetime(2026, 3, 8, 2)]  # noqa: DTZ001 - a wall time
    assert rule.count(change - MINUTE, change, change) == 1


def test_shared_occurrences_are_reported_once() -> None:
    rule = UnionRule((calendar_rule("0 2,3 * * *"), calendar_rule("0,30 2,3 * * *")))
    change = datetime(2026, 3, 8, 7, tzinfo=UTC)
    found = list(rule.occurrences(change - MINUTE, change + timedelta(hours=1), change))
    assert len(found) == len(set(found)) == 4
