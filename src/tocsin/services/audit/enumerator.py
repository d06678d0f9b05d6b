"""The instants of a definition, found by brute force (`ojs-cron` 3 to 5).

It shares no code with the calendar that decides: it walks the wall clock by minutes, or by seconds for six fields, and passes over only
days, hours and minutes that do not match. The product's are the data of the zones, and the grammar that turns English into cron.
"""

import re
from calendar import monthrange
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta, tzinfo
from functools import cache, lru_cache, partial
from heapq import merge
from itertools import groupby, takewhile
from typing import Final, TypeAlias

from ...domain.definition import JobDefinition
from ...domain.schedule.phrases import parse_phrase
from ...domain.schedule.timezones import zone

Instant: TypeAlias = tuple[datetime, bool]  # in UTC; True: a local time that the clocks skip, so that it does not fire
Fields: TypeAlias = tuple[str, ...]

_SECOND, _MINUTE, _HOUR, _DAY = (timedelta(seconds=number) for number in (1, 60, 3_600, 86_400))
_FARTHEST: Final = 26 * _HOUR  # clocks of one zone were never further apart; in a day more they change at most once
_LATEST: Final = datetime(9999, 12, 28, tzinfo=UTC)
_MOVES: Final = [number * _DAY for number in range(1, 367)]
_ONCE: Final = re.compile(r"(?:(?:@|once\s+)?at\s+)?(\d{4}-\d.*)", re.IGNORECASE)
_BOUND: Final = re.compile(r"\s+(from|until)\s+(?=\d{4}-\d)", re.IGNORECASE)
_DURATION: Final = re.compile(r"([0-9.]+)(ms|s|m|h)")
_UNITS: Final = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours"}
_ALIASES: Final = {
    "@hourly": "0 * * * *", "@daily": "0 0 * * *", "@midnight": "0 0 * * *", "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *", "@yearly": "0 0 1 1 *", "@annually": "0 0 1 1 *",
}  # fmt: skip
_NAMES: Final = {
    "SUN": 0, "MON": 1, "TUE": 2, "WED": 3, "THU": 4, "FRI": 5, "SAT": 6, "JAN": 1, "FEB": 2, "MAR": 3,
    "APR": 4, "MAY": 5, "JUN": 6, "JUL": 7, "AUG": 8, "SEP": 9, "OCT": 10, "NOV": 11, "DEC": 12,
}  # fmt: skip


def interval_of(text: str | None) -> timedelta | None:
    """Return the time between two instants of an `@every`; None for other schedules."""
    parts = _DURATION.findall(text) if text and text.lstrip().lower().startswith("@every") else ()
    return sum((timedelta(**{_UNITS[unit]: float(number)}) for number, unit in parts), timedelta()) or None


def instants(rule: JobDefinition, after: datetime, until: datetime, anchor: datetime) -> Iterator[tuple[Instant, int]]:
    """Yield the instants in (after, until], oldest first, and numbers of excluded instants.

    The instants of a local day that calendars or blackouts exclude are together, at their last; the number of an open instant is 0. A
    firing precedes a skipped time. Intervals count from `anchor`. A schedule that cannot be read raises ValueError.
    """
    clocks, once = zone(rule.timezone).data, _ONCE.fullmatch((rule.schedule or "").strip())
    text, *bounds = [once[1]] if once else _BOUND.split((rule.schedule or "").strip())
    limits = {word.lower(): _moment(at, clocks) for word, at in zip(bounds[::2], bounds[1::2], strict=True)}
    after = max(after, limits["from"] - timedelta(microseconds=1)) if "from" in limits else after
    until = min(until, limits.get("until", _LATEST), _LATEST)
    if once:
        named = (instant for instant in _once(rule, text, clocks) if after < instant[0] <= until)
    elif interval := interval_of(text):
        start = limits["from"] - interval if "from" in limits else anchor
        counts = range(*(max(0, (at - start) // interval) + 1 for at in (after, until)))
        named = ((start + number * interval, False) for number in counts)
    else:
        walks = (_cron(rule, clocks, fields, after, until) for fields in _expressions(text, rule.timezone))
        named = (instant for instant, _ in groupby(merge(*walks)))
    is_closed = cache(partial(_is_closed, rule))
    blackouts = [(_moment(span.start, clocks), _moment(span.end, clocks)) for span in rule.blackout]

    def closed_day(instant: Instant) -> date | None:
        day = instant[0].astimezone(clocks).date()
        return day if is_closed(day) or any(start <= instant[0] < end for start, end in blackouts) else None

    for day, group in groupby(named, closed_day):
        if day is None:
            yield from ((instant, 0) for instant in group)
        elif fires := [instant for instant in group if not instant[1]]:
            yield fires[-1], len(fires)


@lru_cache(maxsize=2**14)
def _expressions(text: str, timezone: str) -> tuple[Fields, ...]:
    """Return the six fields, the seconds first, of each cron expression that a text means."""
    text = _ALIASES.get(text.lower(), text)
    is_cron = len(text.split()) in {5, 6} and set("".join(text.split()[:2])) <= set("0123456789*/,-")
    zone_at_end = rf"(?i)\s+(in\s+)?{re.escape(timezone)}\Z"
    expressions = [text] if is_cron else parse_phrase(re.sub(zone_at_end, "", text)).expressions
    return tuple(("0", *fields)[-6:] for fields in (expression.upper().split() for expression in expressions))


@lru_cache(maxsize=2**12)
def _moment(text: str, clocks: tzinfo) -> datetime:
    """Return a moment: the first of two, or by the offset before a gap."""
    at = datetime.fromisoformat(text.strip())
    return (at if at.tzinfo else at.replace(tzinfo=clocks)).astimezone(UTC)


def _once(rule: JobDefinition, text: str, clocks: tzinfo) -> Iterator[Instant]:
    at = _moment(text, clocks)
    yield at, False
    wall = at.astimezone(clocks).replace(tzinfo=UTC)
    if rule.shift != "skip" and _is_closed(rule, wall.date()):
        for moved in [wall + move for move in _MOVES if _is_business(rule, (wall + move).date())][:1]:
            yield from (instant for instant in _shown(rule, clocks, moved) if not instant[1])


def _cron(rule: JobDefinition, clocks: tzinfo, fields: Fields, after: datetime, until: datetime) -> Iterator[Instant]:
    """Yield the instants in (after, until] of one expression, a day at a time."""
    while after < until:
        end = min(until, after + _DAY)
        offsets = [at.astimezone(clocks).utcoffset() or timedelta() for at in (after - _FARTHEST, end)]
        walls = _walls(rule, fields, after + min(offsets), end + max(offsets))
        shown = {instant for wall in walls for instant in _shown(rule, clocks, wall, fields)}
        yield from sorted(instant for instant in shown if after < instant[0] <= end)
        after = end


def _walls(rule: JobDefinition, fields: Fields, wall: datetime, last: datetime) -> Iterator[datetime]:
    """Yield the matching times on the wall clock, written as if in UTC."""
    seconds, minutes, hours = (_values(field, 0, high) for field, high in zip(fields, (59, 59, 23), strict=False))
    step, names_day = _MINUTE if seconds == {0} else _SECOND, cache(partial(_names_day, rule, fields[3:]))
    wall = wall.replace(second=0 if step is _MINUTE else wall.second, microsecond=0)
    while wall <= last:
        if not names_day(wall.date()):
            wall = wall.replace(hour=0, minute=0, second=0) + _DAY
        elif wall.hour not in hours:
            wall = wall.replace(minute=0, second=0) + _HOUR
        elif wall.minute not in minutes:
            wall = wall.replace(second=0) + _MINUTE
        else:
            if wall.second in seconds:
                yield wall
            wall += step


def _shown(rule: JobDefinition, clocks: tzinfo, wall: datetime, fields: Fields = ()) -> Iterator[Instant]:
    """Yield the instants of a wall-clock time; in a gap the offset grows."""
    before, later = (wall.replace(tzinfo=clocks, fold=fold).utcoffset() or timedelta() for fold in (0, 1))
    yield wall - before, before < later and (rule.dst is None or rule.dst.gap == "skip")
    if before > later and rule.dst is not None and rule.dst.fold == "both" and set("*-/") & set("".join(fields[:3])):
        yield wall - later, False


@lru_cache(maxsize=2**12)
def _values(field: str, low: int, high: int) -> frozenset[int]:
    """Return the values of a field; a range may run over its end."""
    values, size = set[int](), high - low + 1
    for item in field.split(","):
        body, _, step = item.partition("/")
        first, _, last = (f"{low}-{high}" if body == "*" else body).partition("-")
        start, end = (min(int(_NAMES.get(n, n)), high + 1) for n in (first, last or (str(high) if step else first)))
        values |= {(n - low) % size + low for n in range(start, end + 1 + size * (end < start), int(step or 1))}
    return frozenset(values)


@lru_cache(maxsize=2**14)
def _is_day(fields: Fields, day: date) -> bool:
    """Return whether a day matches the fields day of month, month and day of week."""
    month_days, week_days = fields[0].split(","), fields[2].split(",")
    in_month = any(_is_item(item, day, day.day, 1, 31) for item in month_days)
    in_week = any(_is_item(item, day, day.isoweekday() % 7, 0, 6) for item in week_days)
    is_free = any(re.fullmatch(r"\*(/0*1)?", item) for item in (*month_days, *week_days))
    return day.month in _values(fields[1], 1, 12) and (in_month and in_week if is_free else in_month or in_week)


def _is_item(item: str, day: date, value: int, low: int, high: int) -> bool:
    """Return whether a day matches a part of a field, such as `15W` or `5#3`."""
    length, (name, _, nth) = monthrange(day.year, day.month)[1], item.partition("#")
    if nth:
        return value in _values(name, low, high) and (day.day + 6) // 7 == int(nth)
    if item.endswith("W"):
        target = length if item == "LW" else int(item[:-1])
        working = (number for number in range(1, length + 1) if day.replace(day=number).isoweekday() in range(1, 6))
        return target <= length and day.day == min(working, key=lambda number: abs(number - target))
    if item.endswith("L"):
        return day.day == length if item == "L" else value in _values(item[:-1], low, high) and day.day + 7 > length
    return value in _values(item, low, high)


def _names_day(rule: JobDefinition, fields: Fields, day: date) -> bool:
    """Return whether a day matches an expression, or gets a closed day's times."""
    if _is_day(fields, day) or rule.shift == "skip" or not _is_business(rule, day):
        return _is_day(fields, day)
    earlier = takewhile(lambda other: not _is_business(rule, other), (day - move for move in _MOVES))
    return any(_is_closed(rule, other) and _is_day(fields, other) for other in earlier)


def _is_closed(rule: JobDefinition, day: date) -> bool:
    """Return whether `exclude` or `only` closes a day."""
    text, weekday = day.isoformat(), f"{day:%A}".lower()
    excluding, only = (
        [weekday in each.weekdays or any(days[:10] <= text <= days[-10:] for days in each.days) for each in calendars]
        for calendars in (rule.exclude, rule.only)
    )
    return any(excluding) or (bool(only) and not any(only))


def _is_business(rule: JobDefinition, day: date) -> bool:
    return day.isoweekday() in range(1, 6) and not _is_closed(rule, day)
