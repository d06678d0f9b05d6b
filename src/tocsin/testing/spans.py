"""Spans of simulated time, as tests write them."""

import re
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final

from ..domain import duration
from ..domain.schedule import timezones

_CALENDAR: Final = re.compile(r"\s*(\d+)\s*(day|week)s?\s*")
_WORDS: Final = re.compile(r"\s*(\d+)\s*(second|minute|hour)s?\s*")
_DAYS: Final = {"day": 1, "week": 7}


def zone_of(name: str) -> tzinfo:
    """Return a time zone of the table that schedules use.

    Raises:
        ValueError: the table has no such name.
    """
    try:
        return timezones.zone(name).data
    except ValueError as error:
        raise ValueError(f"tz: {error}") from None


def end_of(start: datetime, span: str | float | timedelta, zone: tzinfo) -> datetime:
    """Return the end (UTC) of a span.

    `3 days` ends at the same time of the day in the zone, also across a change of its clocks. `72h` and a `timedelta` are exact.

    Raises:
        DurationError: the text is no span.
        ValueError: the span is negative.
    """
    if isinstance(span, timedelta):
        return start + _checked(span)
    if isinstance(span, str) and (days := _CALENDAR.fullmatch(span)):
        local = start.astimezone(zone).replace(tzinfo=None) + timedelta(days=int(days[1]) * _DAYS[days[2]])
        return max(start, local.replace(tzinfo=zone).astimezone(UTC))
    if isinstance(span, str) and (words := _WORDS.fullmatch(span)):
        return start + timedelta(**{f"{words[2]}s": int(words[1])})
    return start + _checked(timedelta(seconds=duration.parse(span)))


def instant_of(at: datetime | str, zone: tzinfo) -> datetime:
    """Return an instant in UTC; a time without an offset is that of the zone.

    Raises:
        ValueError: the text is not a time in ISO 8601.
    """
    if isinstance(at, str):
        try:
            at = datetime.fromisoformat(at)
        except ValueError:
            raise ValueError(f"at: write a time in ISO 8601, such as 2026-03-08T00:00, not {at!r}") from None
    return (at if at.tzinfo is not None else at.replace(tzinfo=zone)).astimezone(UTC)


def _checked(span: timedelta) -> timedelta:
    if span < timedelta():
        raise ValueError(f"time does not go back: pass a span of at least 0 seconds, not {span}")
    return span
