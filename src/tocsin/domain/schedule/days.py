"""The days of a month that a pair of day fields names (`ojs-cron` 3.1, 3.3).

A day rule needs only the shape of a month: its length and the weekday of its first day. There are 28 shapes, and a rule computes
each shape once. The Gregorian calendar repeats after 400 years, and every month takes all of its shapes in that time. A rule that
names no day in any shape of its months therefore never fires.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from .errors import placed
from .fields import DAY_OF_MONTH, DAY_OF_WEEK, NOTHING, Values, field_error, parse_item, read_value

_WEEK: Final = 7
_SATURDAY, _SUNDAY = 6, 0
_SHORTEST: Final = 28
_LENGTHS: Final = range(_SHORTEST, 32)
_WHOLE_WEEK: Final = (1 << _WEEK) - 1


@dataclass(frozen=True, slots=True)
class MonthDays:
    """The day-of-month field: plain values, `L`, `LW`, and days written with a `W`."""

    values: Values = NOTHING
    last: bool = False
    last_weekday: bool = False
    nearest: tuple[int, ...] = ()

    def mask(self, first: int, length: int) -> int:
        """Return the days of a month with `length` days that begins on weekday `first`.

        Bit n is day n; weekday 0 is Sunday.
        """
        mask = self.values.mask & (1 << length + 1) - 1
        if self.last:
            mask |= 1 << length
        if self.last_weekday:
            mask |= 1 << _nearest_weekday(length, first, length)
        for day in self.nearest:
            if day <= length:
                mask |= 1 << _nearest_weekday(day, first, length)
        return mask


@dataclass(frozen=True, slots=True)
class WeekDays:
    """The day-of-week field: plain values, last weekdays (`5L`), nth weekdays (`5#3`)."""

    values: Values = NOTHING
    last: tuple[int, ...] = ()
    nth: tuple[tuple[int, int], ...] = ()

    def mask(self, first: int, length: int) -> int:
        """Return the days, as `MonthDays.mask` does."""
        mask = 0
        for weekday in range(_WEEK):
            if self.values.mask >> weekday & 1:
                for day in range(_first_on(weekday, first), length + 1, _WEEK):
                    mask |= 1 << day
        for weekday in self.last:
            begin = _first_on(weekday, first)
            mask |= 1 << begin + (length - begin) // _WEEK * _WEEK
        for weekday, n in self.nth:
            day = _first_on(weekday, first) + (n - 1) * _WEEK
            if day <= length:
                mask |= 1 << day
        return mask


class DayRule:
    """Both day fields together.

    If both fields are restricted, a day matches if either field matches. Otherwise the restricted field decides.

    Attributes:
        month, week: the two fields.
        masks: the matching days (bit n is day n) by the length of the month, then by the weekday of its first day (0 is Sunday).
        shortest: the least number of days of a month with a matching day.
    """

    __slots__ = ("masks", "month", "shortest", "week")

    def __init__(self, month: MonthDays, week: WeekDays) -> None:
        self.month = month
        self.week = week
        shapes = (tuple(self._mask(first, length) for first in range(_WEEK)) for length in _LENGTHS)
        self.masks: tuple[tuple[int, ...], ...] = (*((),) * _SHORTEST, *shapes)
        self.shortest = next((length for length in _LENGTHS if self.possible(length)), _LENGTHS.stop)

    @property
    def either(self) -> bool:
        """Whether both fields are restricted, so that either may match."""
        return not (self.month.values.starred or self.week.values.starred)

    @property
    def names_every_day(self) -> bool:
        """Whether one of the two fields, star or not, names every day."""
        return self.month.values.mask == DAY_OF_MONTH.everything or self.week.values.mask == _WHOLE_WEEK

    def possible(self, length: int) -> bool:
        """Return whether any month of this length has a matching day."""
        return any(self.masks[length])

    def _mask(self, first: int, length: int) -> int:
        in_month, in_week = self.month.mask(first, length), self.week.mask(first, length)
        return in_month | in_week if self.either else in_month & in_week


@lru_cache(maxsize=4096)
def parse_days(month: MonthDays, week: WeekDays) -> DayRule:
    """Return the rule for two day fields; equal fields share one rule."""
    return DayRule(month, week)


@lru_cache(maxsize=4096)
def parse_month_days(text: str) -> MonthDays:
    """Parse the day-of-month field."""
    values, last, last_weekday, nearest, start = NOTHING, False, False, list[int](), 0
    for item in text.split(","):
        upper = item.upper()
        with placed("", start):
            if upper == "L":
                last = True
            elif upper == "LW":
                last_weekday = True
            elif upper.endswith("W"):
                nearest.append(_weekday_near(item))
            elif upper.startswith("L"):
                problem = f"day of month: {item!r} is not a value; allowed are 1-31, L, LW and a day with W as in 15W"
                raise field_error(problem, item)
            else:
                values |= parse_item(DAY_OF_MONTH, item)
        start += len(item) + 1
    return MonthDays(values, last, last_weekday, tuple(nearest))


@lru_cache(maxsize=4096)
def parse_week_days(text: str) -> WeekDays:
    """Parse the day-of-week field."""
    values, last, nth, start = NOTHING, list[int](), list[tuple[int, int]](), 0
    for item in text.split(","):
        with placed("", start):
            weekday, hash_sign, n = item.partition("#")
            if hash_sign:
                nth.append((read_value(DAY_OF_WEEK, weekday, 0) % _WEEK, _nth(n, len(weekday) + 1)))
            elif item[-1:] in ("L", "l"):
                last.append(_last(item[:-1]))
            else:
                values |= parse_item(DAY_OF_WEEK, item)
        start += len(item) + 1
    return WeekDays(values, tuple(last), tuple(nth))


def _last(weekday: str) -> int:
    if not weekday:
        problem = "day of week: L needs a weekday before it, whose last occurrence in the month is meant"
        raise field_error(problem, "L", suggestion="5L for the last Friday")
    return read_value(DAY_OF_WEEK, weekday, 0) % _WEEK


def _weekday_near(item: str) -> int:
    day = item[:-1]
    if not (day.isascii() and day.isdigit()):
        problem = f"day of month: W needs one day before it, as in 15W, not {day!r}"
        raise field_error(problem, item, suggestion="15W")
    return read_value(DAY_OF_MONTH, day, 0)


def _nth(text: str, start: int) -> int:
    if text in {"1", "2", "3", "4", "5"}:
        return int(text)
    raise field_error(f"day of week: #{text} is out of range; allowed are #1 to #5", text, start, "5#3, 5L")


def _first_on(weekday: int, first: int) -> int:
    return 1 + (weekday - first) % _WEEK


def _nearest_weekday(day: int, first: int, length: int) -> int:
    weekday = (first + day - 1) % _WEEK
    if weekday == _SATURDAY:
        return day - 1 if day > 1 else day + 2
    if weekday == _SUNDAY:
        return day + 1 if day < length else day - 2
    return day
