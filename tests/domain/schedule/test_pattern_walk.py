"""The engine on the wall clock against plain lists of days and times."""

from datetime import date
from itertools import product

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.properties import examples
from tocsin.domain.schedule import ScheduleError, parse
from tocsin.domain.schedule.pattern import DAY, Pattern

EPOCH = date(1970, 1, 1).toordinal()
FIRST = (1 - EPOCH) * DAY
LAST = (date.max.toordinal() + 1 - EPOCH) * DAY - 1
WINDOW = 70
"""Days of one walk."""


def pattern(expression: str) -> Pattern:
    (rule,) = parse(expression).calendar_rules
    assert isinstance(rule.pattern, Pattern)
    return rule.pattern


def values(low: int, high: int, *likely: int) -> st.SearchStrategy[frozenset[int]]:
    """A few values of a field, the likely values more often."""
    value = st.one_of(st.integers(low, high), st.sampled_from([low, high, *likely]))
    return st.frozensets(value, min_size=1, max_size=3)


TIMES = st.tuples(values(0, 59), values(0, 59), values(0, 23))
DAYS = st.one_of(
    st.tuples(st.none(), st.none()),
    st.tuples(values(1, 31, 28, 29, 30), st.none()),
    st.tuples(st.none(), values(0, 6)),
    st.tuples(values(1, 31, 28, 29, 30), values(0, 6)),
)
MONTHS = st.one_of(st.none(), values(1, 12, 2, 4))
DATES = st.dates(date(1990, 1, 1), date(2110, 1, 1))


def field(chosen: frozenset[int] | None) -> str:
    return "*" if chosen is None else ",".join(str(value) for value in sorted(chosen))


class Plain:
    """The same, by looking at each day."""

    def __init__(
        self,
        times: tuple[frozenset[int], frozenset[int], frozenset[int]],
        days: tuple[frozenset[int] | None, frozenset[int] | None],
        months: frozenset[int] | None,
    ) -> None:
        seconds, minutes, hours = times
        of_month, of_week = days
        fields = (seconds, minutes, hours, of_month, months, of_week)
        self.expression = " ".join(field(chosen) for chosen in fields)
        self.times = sorted(h * 3600 + m * 60 + s for h, m, s in product(hours, minutes, seconds))
        self.of_month, self.of_week, self.months = of_month, of_week, months

    def matches(self, on: date) -> bool:
        if self.months is not None and on.month not in self.months:
            return False
        in_month = self.of_month is not None and on.day in self.of_month
        in_week = self.of_week is not None and on.isoweekday() % 7 in self.of_week
        return in_month or in_week or (self.of_month is None and self.of_week is None)

    def within(self, start: int, end: int) -> list[int]:
        days = range(start // DAY, end // DAY + 1)
        found = [day * DAY + at for day in days if self.matches(date.fromordinal(day + EPOCH)) for at in self.times]
        return [wall for wall in found if start <= wall < end]


def walked(engine: Pattern, start: int, end: int) -> list[int]:
    found, at = list[int](), engine.next(start)
    while at is not None and at < end:
        found.append(at)
        at = engine.next(at + 1)
    return found


def walked_back(engine: Pattern, start: int, end: int) -> list[int]:
    found, at = list[int](), engine.previous(end - 1)
    while at is not None and at >= start:
        found.append(at)
        at = engine.previous(at - 1)
    return found[::-1]


@given(st.builds(Plain, TIMES, DAYS, MONTHS), DATES, st.integers(0, DAY - 1), st.integers(0, WINDOW * DAY))
@example(
    Plain((frozenset({0}), frozenset({0}), frozenset({0})), (frozenset({29}), None), None),
    date(2027, 1, 30),
    0,
    40 * DAY,
)
@example(
    Plain((frozenset({9}), frozenset({8}), frozenset({7})), (frozenset({31}), None), None),
    date(2026, 6, 30),
    0,
    70 * DAY,
)
@settings(max_examples=examples(150), deadline=None)
def test_three_ways_name_the_same_times(plain: Plain, on: date, second: int, length: int) -> None:
    try:
        engine = pattern(plain.expression)
    except ScheduleError:
        return  # no year has such a day
    start = (on.toordinal() - EPOCH) * DAY + second
    expected = plain.within(start, start + length)
    assert walked(engine, start, start + length) == expected
    assert walked_back(engine, start, start + length) == expected
    assert engine.count(start, start + length) == len(expected)


@given(TIMES, st.integers(0, DAY), st.integers(0, DAY))
def test_times_of_one_day_are_counted(times: tuple[frozenset[int], ...], one: int, other: int) -> None:
    seconds, minutes, hours = times
    plain = Plain((seconds, minutes, hours), (None, None), None)
    engine = pattern(plain.expression)
    for start, end in ((one, other), (other, one)):
        assert engine.count(start, end) == len([at for at in plain.times if start <= at < end])


@pytest.mark.parametrize(
    ("expression", "month", "count"),
    [
        ("0 0 28 * *", 2, 1),
        ("0 0 29 * *", 2, 0),
        ("0 0 30 * *", 2, 0),
        ("0 0 31 * *", 4, 0),
        ("0 0 30 * *", 4, 1),
        ("0 0 31 * *", 5, 1),
    ],
)
def test_no_month_has_more_days_than_it_has(expression: str, month: int, count: int) -> None:
    start = (date(2027, month, 1).toordinal() - EPOCH) * DAY
    end = (date(2027, month + 1, 1).toordinal() - EPOCH) * DAY
    assert pattern(expression).count(start, end) == count
    assert len(walked(pattern(expression), start, end)) == count


@pytest.mark.parametrize("day", [28, 29, 30, 31])
@pytest.mark.parametrize("weekday", [None, *range(7)])
def test_month_ends_of_two_years_are_exact(day: int, weekday: int | None) -> None:
    midnight = frozenset({0})
    plain = Plain(
        (midnight, midnight, midnight), (frozenset({day}), None if weekday is None else frozenset({weekday})), None
    )
    engine, start = pattern(plain.expression), (date(2027, 1, 1).toordinal() - EPOCH) * DAY
    end = start + 731 * DAY
    expected = plain.within(start, end)
    assert walked(engine, start, end) == walked_back(engine, start, end) == expected
    assert engine.count(start, end) == len(expected)


@pytest.mark.parametrize("expression", ["* * * * * *", "0 * * * * *", "1,20,59 * * * * *", "30 1 * * * *"])
def test_seconds_are_counted_up_to_the_end(expression: str) -> None:
    engine = pattern(expression)
    found = walked(engine, 0, 180)
    for end in range(181):
        assert engine.count(0, end) == len([wall for wall in found if wall < end])
        assert engine.count(end, 180) == len([wall for wall in found if wall >= end])


NOONS = "0 12 * * *"
NOON = DAY // 2


@pytest.mark.parametrize("before", [FIRST - 1, FIRST - DAY, FIRST - 1000 * DAY])
def test_before_the_first_year_the_first_time_follows(before: int) -> None:
    engine = pattern(NOONS)
    assert engine.next(before) == FIRST + NOON
    assert engine.previous(before) is None


@pytest.mark.parametrize("after", [LAST + 1, LAST + DAY, LAST + 1000 * DAY])
def test_behind_the_last_year_the_last_time_precedes(after: int) -> None:
    engine = pattern(NOONS)
    assert engine.previous(after) == LAST + 1 - NOON
    assert engine.next(after) is None


def test_the_first_and_the_last_day_have_times() -> None:
    engine = pattern(NOONS)
    assert engine.next(FIRST) == engine.previous(FIRST + NOON) == FIRST + NOON
    assert engine.previous(FIRST + NOON - 1) is None
    assert engine.previous(LAST) == engine.next(LAST + 1 - NOON) == LAST + 1 - NOON
    assert engine.next(LAST + 2 - NOON) is None


def test_the_years_at_both_ends_are_searched() -> None:
    engine = pattern("0 0 1 1 *")
    assert engine.next((date(9998, 6, 1).toordinal() - EPOCH) * DAY) == (date(9999, 1, 1).toordinal() - EPOCH) * DAY
    assert engine.next((date(9999, 1, 2).toordinal() - EPOCH) * DAY) is None
    assert engine.previous((date(1, 6, 1).toordinal() - EPOCH) * DAY) == FIRST
    assert pattern("0 0 1 7 *").previous((date(1, 6, 1).toordinal() - EPOCH) * DAY) is None


@pytest.mark.parametrize(
    ("start", "end", "count"),
    [
        (FIRST - DAY, FIRST + DAY, 1),
        (LAST + 1 - DAY, LAST + 5 * DAY, 1),
        (LAST + 1, LAST + DAY, 0),
        (5 * DAY, 5 * DAY, 0),
        (5 * DAY, 4 * DAY, 0),
        (NOON, NOON, 0),
        (NOON, NOON + 1, 1),
        (NOON + 1, NOON + DAY, 0),
        (NOON, NOON + DAY + 1, 2),
    ],
)
def test_counting_ends_with_the_calendar(start: int, end: int, count: int) -> None:
    assert pattern(NOONS).count(start, end) == count
