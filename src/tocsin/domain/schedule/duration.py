"""Durations as Go writes them: `1h30m`, `500ms` (`ojs-cron` 4.1)."""

import re
from datetime import timedelta
from fractions import Fraction
from types import MappingProxyType
from typing import Final

from .errors import ScheduleError

_MILLISECONDS: Final = MappingProxyType({"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000})
_PART: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h)", re.ASCII)
_LONGEST: Final = timedelta(days=36_525)
_MILLISECOND: Final = timedelta(milliseconds=1)
_ALLOWED: Final = "allowed are numbers with ms, s, m or h, as in 1h30m"


def parse_duration(text: str) -> timedelta:
    """Parse a duration between one millisecond and a hundred years, in whole milliseconds.

    Raises:
        ScheduleError: placed relative to `text`.
    """
    total, at = Fraction(0), 0
    while at < len(text):
        part = _PART.match(text, at)
        if part is None:
            raise ScheduleError(f"duration: cannot read {text[at:]!r}; {_ALLOWED}", start=at, length=len(text) - at)
        total += Fraction(part[1]) * _MILLISECONDS[part[2]]
        at = part.end()
    if not text:
        raise ScheduleError(f"duration: it is missing; {_ALLOWED}")
    if total.denominator != 1 or total < 1 or total > _LONGEST // _MILLISECOND:
        raise ScheduleError(
            f"duration: {text} is out of range; allowed are whole milliseconds from 1ms to 876600h", length=len(text)
        )
    return timedelta(milliseconds=int(total))


def format_duration(duration: timedelta) -> str:
    """Format a duration as Go's `time.Duration` does: `5m0s`, `1h30m0s`, `1.5s`, `500ms`."""
    milliseconds = duration // _MILLISECOND
    if milliseconds < _MILLISECONDS["s"]:
        return f"{milliseconds}ms"
    hours, rest = divmod(milliseconds, _MILLISECONDS["h"])
    minutes, rest = divmod(rest, _MILLISECONDS["m"])
    whole, fraction = divmod(rest, _MILLISECONDS["s"])
    seconds = f"{whole}.{fraction:03}".rstrip("0").rstrip(".") if fraction else str(whole)
    return (f"{hours}h" if hours else "") + (f"{minutes}m" if hours or minutes else "") + f"{seconds}s"
