"""The meaning of a schedule, in English."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from itertools import pairwise
from typing import Final

from .day_rules import DayRules
from .days import DayRule
from .fields import HOUR, MINUTE, SECOND, Field, values_of
from .pattern import Pattern
from .rules import IntervalRule, format_duration
from .schedule import Schedule

MONTHS: Final = (
    *("", "January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
WEEKDAYS: Final = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
_TEENS: Final = range(11, 14)
_SHORTEST_RUN: Final = 3


def listed(parts: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def in_runs(ascending: Iterable[int], name: Callable[[int], str], to: str = " to ") -> list[str]:
    """Return the names of values, three or more neighbours as a run: `Monday to Friday`."""
    runs: list[list[int]] = []
    for value in ascending:
        if runs and value == runs[-1][-1] + 1:
            runs[-1].append(value)
        else:
            runs.append([value])
    return [
        text
        for run in runs
        for text in ([f"{name(run[0])}{to}{name(run[-1])}"] if len(run) >= _SHORTEST_RUN else map(name, run))
    ]


def ordinal(n: int) -> str:
    """`1st`, `2nd`, `11th`."""
    ending = "th" if n % 100 in _TEENS else {1: "st", 2: "nd", 3: "rd"}.get(n % 10, "th")
    return f"{n}{ending}"


_FEW: Final = 6
_WEEK: Final = 7
_YEAR: Final = 12
_SHORTEST_WALK: Final = 4


def meaning(schedule: Schedule) -> str:
    """Return one sentence, without a period."""
    bounds = ((word, at) for word, at in (("from", schedule.starts_at), ("until", schedule.ends_at)) if at is not None)
    limits = " ".join(f"{word} {at:%Y-%m-%d %H:%M:%S} UTC" for word, at in bounds)
    return ", ".join(filter(None, (_unlimited(schedule), limits, *_days_of_calendars(schedule.days))))


def _days_of_calendars(rules: DayRules | None) -> Iterator[str]:
    if rules is None:
        return
    if rules.only:
        yield f"only on days of {' or '.join(calendar.name for calendar in rules.only)}"
    if rules.exclude:
        yield f"except on days of {listed([calendar.name for calendar in rules.exclude])}"
    if rules.shift == "next_business_day":
        yield "whose times move to the next business day"
    if count := len(rules.blackout):
        yield f"without {count} blackout{'s' if count > 1 else ''}"


def _unlimited(schedule: Schedule) -> str:
    if isinstance(schedule.rule, IntervalRule):
        start = "its first moment" if schedule.starts_at is not None else "the registration or the last trigger"
        return f"every {_duration(schedule.rule.interval)}, counted from {start}"
    if schedule.only_instant is not None:
        return f"once, at {schedule.only_instant:%Y-%m-%d %H:%M:%S} UTC"
    parts = [
        " ".join(filter(None, (_times(rule.pattern), _days(rule.pattern))))
        for rule in schedule.calendar_rules
        if isinstance(rule.pattern, Pattern)
    ]
    return f"{'; and '.join(parts)}, on the clocks of {schedule.timezone}"


def _duration(interval: timedelta) -> str:
    for unit, size in (("hour", 3_600), ("minute", 60), ("second", 1)):
        count, rest = divmod(interval, timedelta(seconds=size))
        if count and not rest:
            return unit if count == 1 else f"{count} {unit}s"
    return format_duration(interval)


def _times(pattern: Pattern) -> str:
    seconds, minutes, hours = (values_of(mask) for mask in (pattern.seconds, pattern.minutes, pattern.hours))
    exact = seconds != [0]
    if pattern.per_day <= _FEW:
        return "at " + listed([_clock(h, m, s, exact=exact) for h in hours for m in minutes for s in seconds])
    if len(minutes) == 1 and not exact:
        at = "" if minutes == [0] else f", at minute {minutes[0]}"
        return f"{_unit(HOUR, hours)}{at}"
    parts = [_unit(SECOND, seconds)] if exact else []
    if not (exact and minutes == list(range(60))):
        parts.append(_unit(MINUTE, minutes))
    if hours != list(range(24)):
        parts.append(f"in the hour{'s' if len(hours) > 1 else ''} {listed(in_runs(hours, '{:02}'.format))}")
    return ", ".join(parts)


def _unit(kind: Field, values: list[int]) -> str:
    """Describe one field: `every 15 minutes`, `every hour from 9 to 17`, `at minute 5`."""
    step = _step(values)
    is_complete = len(values) > 1 and step and values[0] == kind.low and values[-1] + step > kind.high
    if is_complete and step == 1:
        return f"every {kind.name}"
    if is_complete and (kind.high - kind.low + 1) % step == 0:
        return f"every {step} {kind.name}s"
    if step and len(values) >= _SHORTEST_WALK:
        return f"every {f'{step} {kind.name}s' if step > 1 else kind.name} from {values[0]} to {values[-1]}"
    return f"at {kind.name}{'s' if len(values) > 1 else ''} {listed(in_runs(values, str))}"


def _step(values: list[int]) -> int:
    """Return the distance between neighbours if it is constant, else 0."""
    steps = {later - earlier for earlier, later in pairwise(values)}
    return steps.pop() if len(steps) == 1 else 0


def _clock(hour: int, minute: int, second: int, *, exact: bool) -> str:
    return f"{hour:02}:{minute:02}" + (f":{second:02}" if exact else "")


def _days(pattern: Pattern) -> str:
    months = values_of(pattern.months)
    in_week, in_month = _weekly(pattern.days), _monthly(pattern.days)
    days = " or ".join(filter(None, (in_month, in_week)))
    if len(months) == _YEAR:
        return f"{days} of every month" if in_month and not in_week else days or _daily(pattern)
    return f"{days or _daily(pattern)} in {listed(in_runs(months, MONTHS.__getitem__))}".strip()


def _daily(pattern: Pattern) -> str:
    # "Every 15 minutes" says it already; "at 09:00" does not.
    return "" if pattern.per_day > _FEW else "every day"


def _monthly(days: DayRule) -> str:
    rule = days.month
    if rule.values.starred:
        return ""
    parts = [f"the {text}" for text in in_runs(values_of(rule.values.mask), ordinal)]
    parts += ["the last day"] * rule.last
    parts += ["the last weekday (Monday to Friday)"] * rule.last_weekday
    parts += [f"the weekday (Monday to Friday) nearest the {ordinal(day)}" for day in rule.nearest]
    return f"on {listed(parts)}"


def _weekly(days: DayRule) -> str:
    rule = days.week
    if rule.values.starred:
        return ""
    parts = _weekdays(values_of(rule.values.mask))
    parts += [f"the {ordinal(n)} {WEEKDAYS[day]} of the month" for day, n in rule.nth]
    parts += [f"the last {WEEKDAYS[day]} of the month" for day in rule.last]
    return f"on {listed(parts)}"


def _weekdays(days: list[int]) -> list[str]:
    """Return `Monday to Friday` or `Friday to Monday`, starting after an omitted day."""
    if len(days) == 1:
        return [f"every {WEEKDAYS[days[0]]}"]
    monday_first = [(day + 1) % _WEEK for day in range(_WEEK)]
    start = next((day for day in monday_first if day in days and (day - 1) % _WEEK not in days), 1)
    places = sorted((day - start) % _WEEK for day in days)
    return in_runs(places, lambda place: WEEKDAYS[(place + start) % _WEEK])
