"""The words of schedules and their values."""

import re
from collections.abc import Iterator
from types import MappingProxyType
from typing import Final

from ..errors import ScheduleError
from .clauses import Unit

_DAYS: Final = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_MONTHS: Final = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_TO_TEN: Final = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_NUMBERS: Final = {word: n for n, word in enumerate(_TO_TEN, 1)} | {
    "twelve": 12,
    "fifteen": 15,
    "twenty": 20,
    "thirty": 30,
}
_TO_TWELFTH: Final = (
    *("first", "second", "third", "fourth", "fifth", "sixth"),
    *("seventh", "eighth", "ninth", "tenth", "eleventh", "twelfth"),
)
_ORDINALS: Final = {word: n for n, word in enumerate(_TO_TWELFTH, 1)} | {
    "fifteenth": 15,
    "twentieth": 20,
    "thirtieth": 30,
}
_UNITS: Final[MappingProxyType[str, Unit]] = MappingProxyType(
    {"s": "second", "mi": "minute", "h": "hour", "d": "day", "w": "week", "mo": "month", "q": "quarter", "y": "year"}
)
_ADVERBS: Final[MappingProxyType[str, Unit]] = MappingProxyType(
    {"daily": "day", "weekly": "week", "monthly": "month", "quarterly": "quarter", "yearly": "year", "annually": "year"}
)
_CLOCK: Final = re.compile(r"(\d{1,2})(?::(\d\d)(?::(\d\d))?)?\s*([ap])?")
_NAMED: Final = MappingProxyType({"midnight": 0, "noon": 43_200, "midday": 43_200})
_HALF_DAY: Final = 12

WEEKDAYS: Final = frozenset(range(1, 6))
WEEKEND: Final = frozenset((0, 6))
SECONDS: Final[MappingProxyType[Unit, int]] = MappingProxyType({"second": 1, "minute": 60, "hour": 3_600})


def number(word: str) -> int:
    """`5` or `five`."""
    return int(word) if word.isdigit() else _NUMBERS[word.lower()]


def ordinal(word: str) -> int:
    """`5th` or `fifth`."""
    return int(word[:-2]) if word[0].isdigit() else _ORDINALS[word.lower()]


def unit(word: str) -> Unit:
    """`mins`, `hour`, `quarters`."""
    lower = word.lower()
    return _UNITS.get(lower[:2]) or _UNITS[lower[0]]


def unit_of(seconds: int) -> Unit:
    """Return the unit of a length in seconds; the hour if none matches."""
    return next((name for name, size in SECONDS.items() if size == seconds), "hour")


def adverb(word: str) -> Unit:
    """`daily`: the unit that the adverb counts."""
    return _ADVERBS[word.lower()]


def weekday(word: str) -> int:
    """`Mondays`: 0 is Sunday."""
    return _DAYS.index(word[:3].lower())


def month(word: str) -> int:
    """`September`: 1 is January."""
    return _MONTHS.index(word[:3].lower()) + 1


def _span(word: str, names: tuple[str, ...]) -> Iterator[int]:
    """Yield the indexes in `names` from first to last, wrapping around."""
    ends = re.findall("|".join(names), word.lower())
    first, last = names.index(ends[0]), names.index(ends[-1])
    return ((first + n) % len(names) for n in range((last - first) % len(names) + 1))


def weekday_span(word: str) -> frozenset[int]:
    """`mon-fri`."""
    return frozenset(_span(word, _DAYS))


def month_span(word: str) -> frozenset[int]:
    """`june to august`."""
    return frozenset(place + 1 for place in _span(word, _MONTHS))


def clock(word: str) -> int:
    """`9am`, `17:30`, `noon`: seconds since midnight; raise ScheduleError for other times."""
    lower = word.lower()
    if lower in _NAMED:
        return _NAMED[lower]
    parts = _CLOCK.match(lower)
    if parts is None:  # pragma: no cover - the grammar lets nothing else through
        raise ScheduleError(f"time: cannot read {word!r}", length=len(word), code="invalid-time")
    hour, minute, second = int(parts[1]), int(parts[2] or 0), int(parts[3] or 0)
    if parts[4]:
        valid = 1 <= hour <= _HALF_DAY
        hour = hour % _HALF_DAY + (_HALF_DAY if parts[4] == "p" else 0)
    else:
        valid = hour < 2 * _HALF_DAY
    if not valid or minute >= 60 or second >= 60:  # noqa: PLR2004
        raise ScheduleError(
            f"time: there is no {word.strip()}; allowed are 00:00 to 23:59 and 12am to 11:59pm",
            length=len(word),
            code="invalid-time",
        )
    return hour * 3_600 + minute * 60 + second
