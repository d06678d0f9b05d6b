"""`parse`: from the text of a user to a schedule."""

import re
from collections.abc import Callable
from dataclasses import replace
from datetime import date, datetime, timedelta
from functools import lru_cache, partial
from typing import Final

from ..text import utc_text
from . import timezones
from .bounds import bounds_of, check_fires, without_bounds
from .clock_changes import first_shown, local_time, parse_moment, shifted
from .closed_time import ClosedTime
from .day_rules import LONGEST_SHIFT, DayRules, OpenDays
from .errors import ScheduleError, placed
from .expression import ALIASES, parse_expression
from .instants import SPECIFIED, CalendarRule, DstPolicy
from .moved_pattern import MovedPattern
from .pattern import Pattern
from .rules import IntervalRule, MovedRule, OnceRule, Rule, UnionRule, format_duration, parse_duration
from .schedule import Schedule

_LONGEST: Final = 1_000
# The number of jobs of a large installation, so that a repeated query costs nothing; about half a kilobyte each.
_REMEMBERED: Final = 2**17
_CRON: Final = re.compile(
    r"(?:[\d*/,#?\-]|L|W|JAN|FEB|MAR|APR|MAY|JUN|JUL|AUG|SEP|OCT|NOV|DEC|SUN|MON|TUE|WED|THU|FRI|SAT)+",
    re.IGNORECASE | re.ASCII,
)
_FOREIGN: Final = re.compile(r"[^\t\n\r -~]")
_LAST_WORD: Final = re.compile(r"\s+(?:in\s+)?(\S+)\s*\Z", re.IGNORECASE | re.ASCII)
_MOMENT: Final = re.compile(r"(?:@at\s+|at\s+|once\s+at\s+)?(?=\d{4}-\d)", re.IGNORECASE | re.ASCII)
_SPECIAL: Final = f"{', '.join(ALIASES)} and @every <duration>"


_MOVED_BOUND: Final = DstPolicy(gap="shift")
"""A blackout that begins or ends at a skipped wall time does so when the clocks have passed it."""
_JUST_BEFORE: Final = timedelta(microseconds=1)
_SECOND: Final = timedelta(seconds=1)
_EPOCH: Final = date(1970, 1, 1)


@lru_cache(maxsize=2**14)
def _on_days(schedule: Schedule, rules: DayRules, _: timezones.TimezoneDatabase) -> Schedule:
    days = OpenDays(rules)
    moment = partial(parse_moment, timezone=schedule.timezone, dst=_MOVED_BOUND)
    spans = [(moment(span.start), moment(span.end), span) for span in rules.blackout]
    closed = ClosedTime(rules, days, schedule.timezone, tuple(sorted(spans, key=lambda span: span[:2])))
    rule = _moving(schedule, days) if rules.shift == "next_business_day" else schedule.rule
    return replace(schedule, rule=rule, days=rules, closed=closed)


def moved_to(schedule: Schedule, at: datetime) -> datetime | None:
    """Return the instant to which an excluded instant moves; None: it does not move."""
    closed, days = schedule.closed, schedule.days
    if closed is None or days is None or days.shift != "next_business_day" or schedule.interval is not None:
        return None
    moved = _moved(schedule, at, closed.days)
    return moved if moved is not None and schedule.next_after(moved - _JUST_BEFORE, anchor=moved) == moved else None


def _moved(schedule: Schedule, at: datetime, days: OpenDays) -> datetime | None:
    """Return the same wall time of the next business day, if it moves there."""
    local = local_time(schedule.timezone, at).replace(tzinfo=None)
    day = (local.date() - _EPOCH).days
    target = days.next_business(day) if days.is_closed(day) else None
    if target is None or target - day > LONGEST_SHIFT:
        return None
    wall = local + timedelta(days=target - day)
    shown = first_shown(schedule.timezone, wall)
    return shifted(schedule.timezone, wall) if shown is None and schedule.dst.gap == "shift" else shown


def _moving(schedule: Schedule, days: OpenDays) -> Rule:
    if isinstance(schedule.rule, OnceRule):
        moved = _moved(schedule, schedule.rule.at, days)
        return schedule.rule if moved is None else UnionRule((schedule.rule, OnceRule(moved)))
    rules = schedule.calendar_rules
    moving = tuple(
        CalendarRule(MovedPattern(rule.pattern, days), rule.timezone, rule.dst)
        for rule in rules
        if isinstance(rule.pattern, Pattern) and not rule.pattern.names_business_days
    )
    if not moving:
        return schedule.rule
    kind = MovedRule if len(rules) == 1 else UnionRule
    return kind((*rules, *moving))


def parse(text: str, timezone: str = "UTC", *, dst: DstPolicy | None = None, days: DayRules | None = None) -> Schedule:
    """Parse a schedule.

    Args:
        text: five cron fields, or six with seconds first; an alias such as `@daily`; `@every 1h30m`; `at` with a date and time, once;
            or English, such as `every weekday at 9am`. All but `at` may end with `from` and `until`, each with a date and time.
        timezone: the IANA name of the zone whose wall clock applies. A zone at the end of a phrase must equal it.
        dst: the job's policy for clock changes; the default is `ojs-cron` 5.2.
        days: the job's calendars and blackouts.

    Raises:
        ScheduleError: the text is invalid, ambiguous, or names no instant.
    """
    schedule = _parse(text, timezone, dst or SPECIFIED, timezones.timezone_database())
    return schedule if days is None else _on_days(schedule, days, timezones.timezone_database())


@lru_cache(maxsize=_REMEMBERED)
def _parse(text: str, timezone: str, dst: DstPolicy, database: timezones.TimezoneDatabase) -> Schedule:
    timezones.validate(timezone, database.names)
    warnings = timezones.zone_warnings(timezone)
    if len(text) > _LONGEST:
        raise ScheduleError(
            f"expression: it has {len(text)} characters; allowed are up to {_LONGEST}", code="invalid-expression"
        )
    if not text.strip():
        raise ScheduleError(
            "expression: it is empty", suggestion="0 9 * * *, @daily, or every day at 9am", code="invalid-expression"
        )
    if foreign := _FOREIGN.search(text):
        raise _foreign(text, foreign)
    start = len(text) - len(text.lstrip())
    moment = _MOMENT.match(text, start)
    if moment:
        return _once(text, moment.end(), timezone, dst)
    starts_at, ends_at = bounds_of(text, timezone, dst)
    repeated = without_bounds(text)
    if not repeated.strip():
        raise ScheduleError(
            "expression: there is nothing before its bounds",
            text=text,
            suggestion="every 5 minutes until 2027-04-01T00:00",
            code="invalid-expression",
        )
    try:
        schedule = _repeated(repeated, start, warnings, timezone, dst)
    except ScheduleError as error:
        raise error.within(text, 0) if error.text else error from None
    if starts_at is None and ends_at is None:
        return schedule
    bounded = replace(schedule, text=text, starts_at=starts_at, ends_at=ends_at)
    if starts_at is not None:
        check_fires(bounded, starts_at - _SECOND)
    return bounded


def _repeated(text: str, start: int, warnings: tuple[str, ...], timezone: str, dst: DstPolicy) -> Schedule:
    if text[start] == "@":
        return _special(text, start, warnings, timezone, dst)
    if _is_cron(text):
        return _calendar(text, (text,), warnings, timezone, dst)
    from .phrases import parse_phrase  # noqa: PLC0415 - most schedules are cron, and the grammar takes long to import

    phrase = parse_phrase(_without_zone(text, timezone))
    return _calendar(text, phrase.expressions, (*warnings, *phrase.warnings), timezone, dst)


def zone_in(text: str) -> str | None:
    """Return the zone with which a phrase ends; None: it names no zone."""
    last = _LAST_WORD.search(without_bounds(text)) if len(text) <= _LONGEST and text.isascii() else None
    if last is None:
        return None
    names = timezones.timezone_database().names
    return next((name for name in (last[1], last[1].upper()) if name in names), None)


def _without_zone(text: str, timezone: str) -> str:
    zone, last = zone_in(text), _LAST_WORD.search(text)
    if zone is None or last is None:
        return text
    if zone != timezone:
        raise ScheduleError(
            f"phrase: it names the zone {zone}, but `timezone` is {timezone}: the two must agree",
            text=text,
            start=last.start(1),
            length=len(last[1]),
            suggestion=f"`timezone: {zone}`, or the phrase without a zone",
            code="contradictory-timezone",
        )
    return text[: last.start()]


def _foreign(text: str, match: re.Match[str]) -> ScheduleError:
    code = f"U+{ord(match[0]):04X}"
    shown = f"{match[0]!r} ({code})" if match[0].isprintable() else code
    return ScheduleError(
        f"expression: the character {shown} is not allowed; allowed are ASCII letters, digits, signs and spaces",
        text=text,
        start=match.start(),
        code="invalid-expression",
    )


def _is_cron(text: str) -> bool:
    words = text.split()
    return any("*" in word or word == "?" for word in words) or all(map(_CRON.fullmatch, words))


def _special(text: str, start: int, warnings: tuple[str, ...], timezone: str, dst: DstPolicy) -> Schedule:
    name, *rest = text[start:].split(maxsplit=1)
    if name.lower() in ALIASES and not rest:
        return _calendar(text, (ALIASES[name.lower()],), warnings, timezone, dst)
    if name.lower() == "@every":
        written = rest[0].rstrip() if rest else ""
        begin = text.index(written, start + len(name)) if written else len(text)
        if written == "" or written[0].isdecimal():
            return _every(text, written, begin, timezone, dst)
    raise ScheduleError(
        f"expression: {text.strip()!r} is not a special expression; allowed are {_SPECIAL}",
        text=text,
        start=start,
        length=len(text.strip()),
        suggestion="@every 1h30m",
        code="invalid-expression",
    )


def _every(text: str, written: str, start: int, timezone: str, dst: DstPolicy) -> Schedule:
    with placed(text, start):
        interval = parse_duration(written)
    shown = format_duration(interval)
    warnings: tuple[str, ...] = ()
    if interval.microseconds:
        warnings = (
            f"{shown} is no whole number of seconds: the clock is looked at once a second, and some instants come late",
        )
    return Schedule(text, timezone, dst, (f"@every {shown}",), warnings, rule=IntervalRule(interval))


def _once(text: str, start: int, timezone: str, dst: DstPolicy) -> Schedule:
    with placed(text, start):
        at = parse_moment(text[start:].rstrip(), timezone, dst)
    return Schedule(text, timezone, dst, (f"@at {utc_text(at)}",), rule=OnceRule(at))


def _calendar(
    text: str, expressions: tuple[str, ...], warnings: tuple[str, ...], timezone: str, dst: DstPolicy
) -> Schedule:
    parsed = [parse_expression(expression) for expression in expressions]
    rules = tuple(CalendarRule(expression.pattern, timezone, dst) for expression in parsed)
    return Schedule(
        text,
        timezone,
        dst,
        tuple(expression.text for expression in parsed),
        tuple(dict.fromkeys((*warnings, *(warning for expression in parsed for warning in expression.warnings)))),
        rule=rules[0] if len(rules) == 1 else UnionRule(rules),
    )


def next_instants(
    schedule: Schedule,
    after: datetime,
    n: int,
    *,
    anchor: datetime | None = None,
    is_enough: Callable[[], bool] | None = None,
) -> list[datetime]:
    """Return the first `n` instants later than `after`, in UTC.

    There are fewer if the schedule ends before, or if `is_enough`, called between two instants, returns true. `after` is
    aware. Intervals count from `anchor`; None: from `after`.
    """
    instants, at = list[datetime](), after
    while len(instants) < n and not (instants and is_enough is not None and is_enough()):
        instant = schedule.next_after(at, anchor=anchor or after)
        if instant is None:
            break
        instants.append(instant)
        at = instant
    return instants


def next_fire_times(text: str, timezone: str, after: datetime, n: int) -> list[datetime]:
    """Return the first `n` instants that a text names after a moment, in UTC.

    Intervals count from `after`.

    Raises:
        ScheduleError: the text or the zone is invalid, or `after` has no offset.
    """
    if after.tzinfo is None:
        raise ScheduleError(
            f"after: {after.isoformat()} says no offset; allowed are aware datetimes", code="invalid-instant"
        )
    return next_instants(parse(text, timezone), after, n)
