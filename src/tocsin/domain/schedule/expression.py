"""Cron expressions of five or six fields (`ojs-cron` 3; CRON-03, 08 to 11, S01)."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Final, TypeVar

from .days import DayRule, parse_days, parse_month_days, parse_week_days
from .english import MONTHS, listed
from .errors import ScheduleError, placed
from .fields import HOUR, MINUTE, MONTH, NOTHING, SECOND, parse_field, values_of
from .pattern import LENGTHS, Pattern

ALIASES: Final = MappingProxyType(
    {
        "@yearly": "0 0 1 1 *",
        "@annually": "0 0 1 1 *",
        "@monthly": "0 0 1 * *",
        "@weekly": "0 0 * * 0",
        "@daily": "0 0 * * *",
        "@midnight": "0 0 * * *",
        "@hourly": "0 * * * *",
    }
)

_T = TypeVar("_T")
_KINDS: Final = (SECOND, MINUTE, HOUR, None, MONTH, None)
_TOKEN: Final = re.compile(r"\S+")
_WITH_SECONDS: Final = 6
_WITHOUT_SECONDS: Final = 5
_LEAP_FEBRUARY: Final = 29
_ALWAYS: Final = 28


@dataclass(frozen=True, slots=True)
class Expression:
    """A parsed cron expression: its fields, its wall-clock times, and warnings for its author."""

    text: str
    pattern: Pattern
    warnings: tuple[str, ...]


@lru_cache(maxsize=2048)
def parse_expression(text: str) -> Expression:
    """Parse five fields, or six with seconds first, depending on their number (CRON-08).

    Raises:
        ScheduleError: a field is invalid, or the expression can never fire.
    """
    written = [(match[0], match.start()) for match in _TOKEN.finditer(text)]
    if len(written) not in {_WITHOUT_SECONDS, _WITH_SECONDS}:
        raise ScheduleError(
            f"expression: it has {len(written)} fields; allowed are 5 (minute, hour, day of month, month, day of week) "
            "or 6 (the second first)",
            text=text,
            length=len(text),
            code="invalid-expression",
        )
    tokens = written if len(written) == _WITH_SECONDS else [("0", 0), *written]
    second, minute, hour, _, month, _ = (
        _read(text, start, parse_field, kind, token) if kind else NOTHING
        for kind, (token, start) in zip(_KINDS, tokens, strict=True)
    )
    (month_days, start), (week_days, week_start) = tokens[3], tokens[5]
    days = parse_days(
        _read(text, start, parse_month_days, month_days), _read(text, week_start, parse_week_days, week_days)
    )
    if not _possible(days, month.mask):
        raise ScheduleError(
            f"day of month: {month_days} never comes in {_names(values_of(month.mask))}: the expression could never fire",
            text=text,
            start=start,
            length=len(month_days),
            code="never-fires",
        )
    stepping = second.stepping or minute.stepping or hour.stepping
    pattern = Pattern(second.mask, minute.mask, hour.mask, days, month.mask, stepping)
    return Expression(
        " ".join(token for token, _ in written), pattern, _months_without(days, month.mask) + _either(days)
    )


def _read(text: str, start: int, read: Callable[..., _T], *given: object) -> _T:
    """Parse a token that begins at `start`; its errors refer to the whole text."""
    with placed(text, start):
        return read(*given)


def _lengths(month: int) -> tuple[int, ...]:
    return (_ALWAYS, _LEAP_FEBRUARY) if month == 2 else (LENGTHS[month],)  # noqa: PLR2004


@lru_cache(maxsize=1024)
def _possible(days: DayRule, months: int) -> bool:
    return any(days.possible(length) for month in values_of(months) for length in _lengths(month))


@lru_cache(maxsize=1024)
def _months_without(days: DayRule, months: int) -> tuple[str, ...]:
    """Return warnings for days that only some of the months have (3.5)."""
    warnings = []
    written = days.month.values.written | set(days.month.nearest)
    for day in sorted(day for day in written if day > _ALWAYS):
        never = [month for month in values_of(months) if day > _lengths(month)[-1]]
        if never:
            warnings.append(f"day {day} does not exist in {_names(never)}; nothing fires for it there")
        elif day == _LEAP_FEBRUARY and months >> 2 & 1:
            warnings.append("day 29 exists in February only in leap years; nothing fires for it in the others")
    if any(n == 5 for _, n in days.week.nth):  # noqa: PLR2004
        warnings.append("not every month has a fifth such weekday; nothing fires in those that have not")
    return tuple(warnings)


def _either(days: DayRule) -> tuple[str, ...]:
    if not days.either:
        return ()
    if days.names_every_day:
        return ("one of the day fields names every day, so the other changes nothing; write * where any day will do",)
    return ("both day fields are restricted: a day matches if either field matches, not only if both do",)


def _names(months: list[int]) -> str:
    return listed([MONTHS[month] for month in months])
