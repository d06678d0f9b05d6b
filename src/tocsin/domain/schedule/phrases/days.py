"""The days that a phrase names, as day-of-month, month and day-of-week fields."""

from collections import defaultdict
from collections.abc import Iterable
from itertools import pairwise
from typing import Final

from ..english import in_runs
from .clauses import (
    ClauseSet,
    Dates,
    Exclusion,
    MonthDays,
    Months,
    Pace,
    Period,
    Unit,
    Weekdays,
    phrase_error,
    said_twice,
)

_EVERY_WEEKDAY: Final = frozenset(range(7))
_QUARTERS: Final = frozenset((1, 4, 7, 10))
_MONTHS: Final = 12
_SHORTEST_STEP: Final = 4


def listed(values: Iterable[int], low: int, high: int) -> str:
    """Write a set of values of a field without steps: `*`, `1-5`, `1,4,7,10`."""
    numbers = sorted(set(values))
    return "*" if len(numbers) == high - low + 1 else ",".join(in_runs(numbers, str, "-"))


def stepped(values: Iterable[int], high: int) -> str:
    """Write values from 0 to `high`, with steps where they fit: `*/15`, `9-17/2`."""
    numbers = sorted(set(values))
    steps = {later - earlier for earlier, later in pairwise(numbers)}
    if len(steps) == 1 and steps != {1}:
        step = steps.pop()
        if not numbers[0] and numbers[-1] + step > high:
            return f"*/{step}"
        if len(numbers) >= _SHORTEST_STEP:
            return f"{numbers[0]}-{numbers[-1]}/{step}"
    return listed(numbers, 0, high)


def times(seconds: Iterable[int]) -> list[str]:
    """Return the fields of expressions that name these seconds; a second of 0 is omitted."""
    minutes_of_hour = defaultdict[int, set[tuple[int, int]]](set)
    for at in sorted(set(seconds)):
        hour, rest = divmod(at, 3_600)
        minutes_of_hour[hour].add((rest // 60, rest % 60))
    hours_of = defaultdict[tuple[int, frozenset[int]], set[int]](set)
    for hour, marks in minutes_of_hour.items():
        for second in sorted({second for _, second in marks}):
            hours_of[second, frozenset(minute for minute, s in marks if s == second)].add(hour)
    return [
        (f"{second} " if second else "") + f"{stepped(minutes, 59)} {stepped(hours, 23)}"
        for (second, minutes), hours in hours_of.items()
    ]


def day_fields(clauses: ClauseSet) -> list[str]:
    """Return day-of-month, month and day-of-week fields, one text per expression."""
    period = _period(clauses)
    weekdays = _weekdays(clauses)
    dates, month_days, months = clauses.get(Dates), clauses.get(MonthDays), clauses.get(Months)
    if sum(choice is not None for choice in (weekdays, dates, month_days)) > 1:
        raise phrase_error(
            "it names weekdays and days of the month; cron fires on either, so both at once cannot be written",
            "first monday of the month, or on the 1st of the month",
        )
    if dates is not None:
        return _dates(dates, period, months)
    month_field = _months(period, months)
    if month_days is not None:
        return [_month_days(month_days, period, month_field)]
    if weekdays is not None:
        _require(period, "day", "week")
        return [f"* {_month_field(month_field)} {listed(weekdays, 0, 6)}"]
    if period is None or period.unit == "day":
        return [f"* {_month_field(month_field)} *"]
    if period.unit == "week":
        return [f"* {_month_field(month_field)} 0"]
    return [f"1 {_month_field(month_field)} *"]


def _period(clauses: ClauseSet) -> Period | None:
    period, pace = clauses.get(Period), clauses.get(Pace)
    if pace is not None and pace.unit not in {"second", "minute", "hour"}:
        if period is not None:
            raise said_twice("how often", "twice a day at 8am and 8pm")
        period = Period(pace.unit)
    if period is None or period.count == 1:
        return period
    if period.unit == "month" and period.count and _MONTHS % period.count == 0:
        return period
    hours = {"day": 24, "week": 168}.get(period.unit, 0) * period.count
    raise phrase_error(
        f"every {period.count} {period.unit}s is not a rule on the calendar: it needs a day to count from",
        f"@every {hours}h, which counts from registration" if hours else f"every {period.unit}",
    )


def _weekdays(clauses: ClauseSet) -> frozenset[int] | None:
    weekdays, excluded = clauses.get(Weekdays), clauses.get(Exclusion)
    if excluded is None:
        return weekdays.days if weekdays else None
    if clauses.has(MonthDays, Dates):
        raise phrase_error("weekdays can be left out of weekdays only", "every day except sunday at 9am")
    days = (weekdays.days if weekdays else _EVERY_WEEKDAY) - excluded.days
    if not days:
        raise phrase_error("the exception leaves no day", "every day except sunday at 9am")
    return days


def _months(period: Period | None, months: Months | None) -> frozenset[int]:
    if period is not None and (period.unit in {"quarter", "year"} or period.count > 1):
        if months is not None:
            raise said_twice("in which months", "on the 1st, in june")
        if period.unit == "month":
            return frozenset(range(1, _MONTHS + 1, period.count))
        return _QUARTERS if period.unit == "quarter" else frozenset((1,))
    return months.months if months else frozenset()


def _month_field(months: frozenset[int]) -> str:
    return listed(months, 1, _MONTHS) if months else "*"


def _month_days(days: MonthDays, period: Period | None, months: frozenset[int]) -> str:
    unit = days.of or (period.unit if period else None)
    _require(period, "day", "month", "quarter", "year", same_as=days.of)
    if unit in {"quarter", "year"}:
        months = _first_or_last(days, unit)
    elif days.months:
        if months:
            raise said_twice("in which months", "on the 1st, in june")
        months = days.months
    return f"{','.join(days.month_days) or '*'} {_month_field(months)} {','.join(days.week_days) or '*'}"


def _first_or_last(days: MonthDays, unit: Unit) -> frozenset[int]:
    items = (*days.month_days, *days.week_days)
    first = _QUARTERS if unit == "quarter" else frozenset((1,))
    if all(item in {"1", "1W"} or item.endswith("#1") for item in items):
        return first
    if all("L" in item for item in items):
        return frozenset((month + 2 for month in first) if unit == "quarter" else (12,))
    raise phrase_error(
        f"only the first and the last days of a {unit} can be named, and not both at once",
        f"last day of the {unit}, or on the 15th, in january, april, july and october",
    )


def _dates(dates: Dates, period: Period | None, months: Months | None) -> list[str]:
    if months is not None:
        raise said_twice("in which months", "on march 5th at 9am")
    _require(period, "year")
    by_day: dict[int, set[int]] = {}
    for month, day in dates.dates:
        by_day.setdefault(day, set()).add(month)
    return [f"{day} {listed(of, 1, _MONTHS)} *" for day, of in by_day.items()]


def _require(period: Period | None, *units: Unit, same_as: Unit | None = None) -> None:
    if period is None or (period.unit in units and (same_as is None or period.unit in {"day", same_as})):
        return
    raise phrase_error(
        f"'every {period.unit}' and the days that it names do not fit together",
        "every monday at 9am, on the 1st of the month, or on march 5th",
    )
