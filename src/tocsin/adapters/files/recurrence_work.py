"""The work of expanding rules of recurrence, counted before they are expanded.

The library searches a rule day by day from its first event on, and a rule that names no day up to the year 9999. Here the same search
runs 400 years or a multiple of them later, where the calendar is the same: so it soon meets the last year that a date can have.
"""

from datetime import date, datetime, time
from typing import Any, Final, NamedTuple

from dateutil.rrule import rrulestr

MAX_WORK: Final = 500_000
"""Periods that the rules of a file may have together, from their first event on; a year counts as ten."""
_CYCLE_YEARS: Final = 400
"""The Gregorian calendar repeats after these years, with its weekdays."""
_LAST_YEAR: Final = 9999
_SEARCHED_YEARS: Final = 40
"""Years after the days of interest that are searched at least: 29 February on a given weekday comes once in 40 years or more often."""
_PERIOD_DAYS: Final = {"DAILY": 1.0, "WEEKLY": 7.0, "MONTHLY": 30.4, "YEARLY": 36.5}
"""Days of a unit of work. To search a year costs about as much as to search ten months."""
_ENDS: Final = ("COUNT", "UNTIL")


class NamesNoDay(ValueError):
    """A rule names no day within 40 years after the days of interest."""


class Work(NamedTuple):
    """The work to expand a rule."""

    units: int
    """The periods that are searched."""
    occurrences: int
    """The events that it becomes, at most; each is a copy, and costs as much as many periods."""


def work_of(rule: Any, start: date, first: date, last: date) -> Work:  # noqa: ANN401 - the library has no types
    """Return the work to expand a rule between two days.

    `start`: the day of the first event. `first`, `last`: the days.

    Raises:
        NamesNoDay: the rule names no day after `last`, even without its end.
    """
    years = _CYCLE_YEARS * ((_LAST_YEAR - _SEARCHED_YEARS - max(start, last).year) // _CYCLE_YEARS)
    later = datetime.combine(start.replace(year=start.year + years), time())
    endless = type(rule)({part: value for part, value in rule.items() if part not in _ENDS})
    stop = max(later, datetime.combine(last.replace(year=last.year + years), time()))
    begin, end = (datetime.combine(day.replace(year=day.year + years), time()) for day in (first, _end_of(rule, last)))
    occurrences = 0
    for found in rrulestr(endless.to_ical().decode(), dtstart=later):
        occurrences += begin <= found <= end
        if found >= stop:
            break
    else:
        raise NamesNoDay
    interval = min(rule.get("INTERVAL", [1]))
    units = 1 + int((found - later).days / (_PERIOD_DAYS[str(rule["FREQ"][0])] * interval))
    most = max((0, *rule.get("COUNT", [occurrences])))
    return Work(units, min(occurrences, most))


def _end_of(rule: Any, last: date) -> date:  # noqa: ANN401 - the library has no types
    """Return the last day of a rule, at most `last`."""
    [until] = rule.get("UNTIL", [last])
    return min(last, until.date() if isinstance(until, datetime) else until)
