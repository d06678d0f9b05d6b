"""The days of an iCalendar file: its all-day events between two dates.

A file may be hostile. Its size, its events and the rules of recurrence are checked before anything is expanded, so that an expansion
has a small bound.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date, datetime, time, timedelta
from typing import Any, Final, NamedTuple

from dateutil.rrule import rrulestr

from ...domain.definition import DefinitionError, DefinitionProblem, show

MAX_BYTES: Final = 1_048_576
MAX_EVENTS: Final = 5_000
MAX_RECURRING: Final = 200
"""Events that recur."""
MAX_EVENT_DAYS: Final = 366
"""Days of one event."""
MAX_OCCURRENCES: Final = 50_000
"""Events of a file between the dates, with each repetition."""
MAX_DAYS: Final = 500_000
"""Days of these events together."""
MAX_DATES: Final = 1_000
"""Dates that an event adds or leaves out one by one."""
MAX_RULE: Final = 400
"""Characters of a rule of recurrence."""
_FIRST_YEAR: Final = 1900
_LAST_YEAR: Final = 2199
_RULE_PARTS: Final = {
    "DAILY": {"BYDAY"},
    "WEEKLY": {"BYDAY"},
    "MONTHLY": {"BYDAY", "BYMONTH", "BYMONTHDAY", "BYSETPOS"},
    "YEARLY": {"BYDAY", "BYMONTH", "BYMONTHDAY", "BYSETPOS", "BYYEARDAY", "BYWEEKNO"},
}
"""The parts that a rule may have by its frequency. Others name times of day, or days that a search may not find for long."""
_COMMON: Final = {"FREQ", "INTERVAL", "COUNT", "UNTIL", "WKST"}
MAX_WORK: Final = 500_000
"""Periods that the rules of a file may have together, from their first event on; a year counts as ten."""
_CYCLE_YEARS: Final = 400
"""The Gregorian calendar repeats after these years, with its weekdays."""
_NEWEST_YEAR: Final = 9999
_SEARCHED_YEARS: Final = 40
"""Years after the days of interest that are searched at least: 29 February on a given weekday comes once in 40 years or more often."""
_PERIOD_DAYS: Final = {"DAILY": 1.0, "WEEKLY": 7.0, "MONTHLY": 30.4, "YEARLY": 36.5}
"""Days of a unit of work. To search a year costs about as much as to search ten months."""
_ENDS: Final = ("COUNT", "UNTIL")
_DAY: Final = timedelta(days=1)


class Work(NamedTuple):
    """The work to expand a rule."""

    units: int
    """The periods that are searched."""
    occurrences: int
    """The events that it becomes, at most; each is a copy, and costs as much as many periods."""


def days_of_file(content: bytes, source: str, first: date, last: date) -> Iterator[date]:
    """Yield the days of all-day events of a file, from `first` to `last`.

    A day of several events comes several times.

    Raises:
        ImportError: the extra `calendars` is not installed.
    """
    import recurring_ical_events  # noqa: PLC0415 - only job files with such calendars need it
    from icalendar import Calendar  # noqa: PLC0415 - likewise

    with _readable(source, "", "it is no iCalendar file"):
        calendar: Any = Calendar.from_ical(content)
    events = calendar.walk("VEVENT")
    if len(events) > MAX_EVENTS:
        raise _refused(source, "", f"{len(events):,} events, more than {MAX_EVENTS:,}: divide the file", "too-large")
    recurring = sum("RRULE" in event for event in events)
    if recurring > MAX_RECURRING:
        raise _refused(source, "", f"{recurring:,} recurring events, more than {MAX_RECURRING:,}", "too-large")
    work = occurrences = 0
    for number, event in enumerate(events, 1):
        place = _place(event, number)
        with _readable(source, place, "it cannot be read"):
            _check(event, source, place)
            more, repeated = _work(event, source, place, first, last)
        work, occurrences = work + more, occurrences + repeated
        if work > MAX_WORK:
            reason = (
                f"up to this rule, the rules of the file recur too often since their first events ({work:,} units, more than {MAX_WORK:,}): "
                "write a later DTSTART, or divide the file"
            )
            raise _refused(source, f"{place}, RRULE", reason, "too-large")
        if occurrences > MAX_OCCURRENCES:
            reason = (
                f"up to this event, the events of the file come more than {MAX_OCCURRENCES:,} times from {first} to {last}: "
                "write an earlier `until`, or join rules"
            )
            raise _refused(source, place, reason, "too-large")
    count = 0
    with _readable(source, "", "its events cannot be expanded"):
        for event in recurring_ical_events.of(calendar).between(first, last + _DAY):
            if str(event.get("STATUS", "")).upper() == "CANCELLED":
                continue
            for day in _days(event, first, last):
                count += 1
                if count > MAX_DAYS:
                    reason = f"its events have more than {MAX_DAYS:,} days together: write shorter events, or divide the file"
                    raise _refused(source, "", reason, "too-large")
                yield day


def _check(event: Any, source: str, place: str) -> None:  # noqa: ANN401 - the library has no types
    """Refuse an event without days, or with too much to expand."""
    start = event.get("DTSTART")
    start = None if start is None else start.dt
    end = event["DTEND"].dt if "DTEND" in event else None
    duration = event["DURATION"].dt if "DURATION" in event else None
    if not isinstance(start, date) or isinstance(start, datetime):
        reason = "it must be a date without a time, because a calendar consists of whole days"
        raise _refused(source, f"{place}, DTSTART", reason, "invalid-value")
    if isinstance(end, datetime) or (end is not None and not isinstance(end, date)):
        raise _refused(source, f"{place}, DTEND", "it must be a date without a time", "invalid-value")
    if not _FIRST_YEAR <= start.year <= _LAST_YEAR:
        reason = f"it is {start}: allowed are the years {_FIRST_YEAR} to {_LAST_YEAR}"
        raise _refused(source, f"{place}, DTSTART", reason, "out-of-range")
    length = duration if end is None else end - start
    field = "DTEND" if end is not None else "DURATION"
    if length is not None and length < 0 * _DAY:
        raise _refused(source, f"{place}, {field}", f"the event ends before it begins, on {start}", "out-of-range")
    if length is not None and length > MAX_EVENT_DAYS * _DAY:
        raise _refused(source, f"{place}, {field}", f"it has more than {MAX_EVENT_DAYS} days", "too-large")
    _check_recurrence(event, source, place)


def _check_recurrence(event: Any, source: str, place: str) -> None:  # noqa: ANN401 - the library has no types
    for field in ("RDATE", "EXDATE"):
        dates = _dates(event, field)
        if len(dates) > MAX_DATES:
            raise _refused(source, f"{place}, {field}", f"{len(dates):,} dates, more than {MAX_DATES:,}", "too-large")
        if not all(isinstance(day, date) for day in dates):
            raise _refused(source, f"{place}, {field}", "it has a period: write dates", "not-supported")
    if "EXRULE" in event:
        raise _refused(source, f"{place}, EXRULE", "it is obsolete: write EXDATE", "not-supported")
    rule = event.get("RRULE")
    if rule is None:
        return
    text = "several rules" if isinstance(rule, list) else rule.to_ical().decode()
    frequency = "" if isinstance(rule, list) else str(next(iter(rule.get("FREQ", [""]))))
    allowed = _RULE_PARTS.get(frequency)
    odd = None if allowed is None else sorted(set(rule) - allowed - _COMMON)
    if allowed is not None and min(rule.get("INTERVAL", [1])) < 1:
        raise _refused(
            source, f"{place}, RRULE", f"{show(text)} never advances: INTERVAL must be 1 or more", "out-of-range"
        )
    if allowed is None or odd or len(text) > MAX_RULE:
        parts = f"{odd[0]} does not go with {frequency}" if odd else "write FREQ=YEARLY, MONTHLY, WEEKLY or DAILY"
        reason = f"{show(text)} is no rule for whole days that ends: {parts}"
        raise _refused(source, f"{place}, RRULE", reason, "not-supported")


def _work(event: Any, source: str, place: str, first: date, last: date) -> Work:  # noqa: ANN401 - the library has no types
    """Return the work to expand an event between two days, counted before it is expanded.

    The library searches a rule day by day from its first event on, and a rule that names no day up to the year 9999. Here the same search
    runs in a later year with the same calendar, 400 years or a multiple of 400 years on: it soon meets the last year of dates.
    """
    rule, dates = event.get("RRULE"), len(_dates(event, "RDATE"))
    if rule is None:
        return Work(0, 1 + dates)
    start = event["DTSTART"].dt
    years = _CYCLE_YEARS * ((_NEWEST_YEAR - _SEARCHED_YEARS - max(start, last).year) // _CYCLE_YEARS)
    later = datetime.combine(start.replace(year=start.year + years), time())
    endless = type(rule)({part: value for part, value in rule.items() if part not in _ENDS})
    stop = max(later, datetime.combine(last.replace(year=last.year + years), time()))
    begin, end = (datetime.combine(day.replace(year=day.year + years), time()) for day in (first, _end_of(rule, last)))
    occurrences = 0
    for found in rrulestr(endless.to_ical().decode(), dtstart=later):
        occurrences += begin <= found <= end
        if found >= stop:
            break
    else:  # it names no day after `last`, even without its end
        reason = f"{show(rule.to_ical().decode())} names no day: correct it, or remove the event"
        raise _refused(source, f"{place}, RRULE", reason, "invalid-value")
    interval = min(rule.get("INTERVAL", [1]))
    units = 1 + int((found - later).days / (_PERIOD_DAYS[str(rule["FREQ"][0])] * interval))
    most = max((0, *rule.get("COUNT", [occurrences])))
    return Work(units, min(occurrences, most) + dates)


def _dates(event: Any, field: str) -> list[Any]:  # noqa: ANN401 - the library has no types
    lists = event.get(field, [])
    return [entry.dt for each in (lists if isinstance(lists, list) else [lists]) for entry in each.dts]


def _days(event: Any, first: date, last: date) -> Iterator[date]:  # noqa: ANN401 - the library has no types
    start = event["DTSTART"].dt
    end = event["DTEND"].dt if "DTEND" in event else start + _DAY
    day, stop = max(start, first), min(max(end, start + _DAY), last + _DAY)
    while day < stop:
        yield day
        day += _DAY


def _place(event: Any, number: int) -> str:  # noqa: ANN401 - the library has no types
    name = str(event.get("SUMMARY") or event.get("UID") or "")
    return f"event {number} ({show(name)})" if name else f"event {number}"


@contextmanager
def _readable(source: str, place: str, problem: str) -> Iterator[None]:
    try:
        yield
    except DefinitionError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, RecursionError) as error:
        detail = " ".join(str(error).split())[:120]
        raise _refused(source, place, f"{problem}: {detail}" if detail else problem, "invalid-value") from None


def _refused(source: str, place: str, reason: str, code: str) -> DefinitionError:
    return DefinitionError(DefinitionProblem(reason, field=place, source=source, code=code))


def _end_of(rule: Any, last: date) -> date:  # noqa: ANN401 - the library has no types
    """Return the last day of a rule, at most `last`."""
    [until] = rule.get("UNTIL", [last])
    return min(last, until.date() if isinstance(until, datetime) else until)
