"""Durations as people write them, in seconds: `30s`, `1h30m`, `PT30S`, `12.5`.

Every field for a duration accepts three notations: Go's (ojs-cron §4.1), extended by `d` and `w`; ISO 8601 (ojs-retry),
without years and months, because their length is not fixed; and a plain number of seconds.
"""

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import ClassVar, Final, Literal, TypeAlias

from .errors import TocsinError

MAX_DURATION_S: Final = 10 * 365 * 86_400.0
"""Ten years in seconds. A longer duration is a typing error and would overflow a datetime."""

_SECONDS: Final = {
    "w": Decimal(604_800),
    "d": Decimal(86_400),
    "h": Decimal(3_600),
    "m": Decimal(60),
    "s": Decimal(1),
    "ms": Decimal("0.001"),
}
_NUMBER: Final = r"[0-9]{1,15}(?:\.[0-9]{1,9})?"
_GO: Final = re.compile("".join(f"(?:(?P<{unit}>{_NUMBER}){unit})?" for unit in _SECONDS))
_ISO: Final = re.compile(
    rf"P(?:(?P<w>{_NUMBER})W)?(?:(?P<d>{_NUMBER})D)?(?:T(?=[0-9])"
    rf"(?:(?P<h>{_NUMBER})H)?(?:(?P<m>{_NUMBER})M)?(?:(?P<s>{_NUMBER})S)?)?"
)
_CALENDAR: Final = re.compile(r"P(?:[0-9.]+[YWD])*[0-9.]+[YM].*")
_NOTATIONS: Final = (
    f"write numbers with the units {', '.join(_SECONDS)}, the longest first (90d, 1h30m, 500ms), "
    "ISO 8601 (P90D, PT30S), or a number of seconds"
)
DurationCode: TypeAlias = Literal[
    "invalid-duration", "duration-without-unit", "duration-in-calendar-units", "duration-out-of-range"
]


class DurationError(TocsinError, ValueError):
    """A duration that cannot be read or is out of range; `suggestion` may be empty."""

    codes: ClassVar[Mapping[str, str]] = {
        "invalid-duration": "A duration has no known notation.",
        "duration-without-unit": "A duration in text is a number without a unit.",
        "duration-in-calendar-units": "A duration has years or months, whose length is not fixed.",
        "duration-out-of-range": "A duration is negative or longer than ten years.",
    }
    """The meaning of each code."""

    def __init__(self, problem: str, *, code: DurationCode, suggestion: str = "") -> None:
        super().__init__(problem)
        self.code: DurationCode = code
        self.suggestion = suggestion


def parse(written: object) -> float:
    """Return the seconds of a written duration.

    Units go from the longest to the shortest, each at most once, so that `1m30` and `30s1h` are errors and not guesses.

    Raises:
        DurationError: it is not a number of seconds and has no known notation, or it is negative or longer than `MAX_DURATION_S`.
    """
    match written:
        case bool():
            raise _unreadable()
        case int() | float():
            return _checked(
                float(written) if abs(written) <= MAX_DURATION_S else MAX_DURATION_S * (2 if written > 0 else -1)
            )
        case str():
            return _checked(_total(written.strip()))
        case _:
            raise _unreadable()


def iso(seconds: float) -> str:
    """Return the ISO 8601 form, as the Open Job Spec writes durations: 90 → `PT1M30S`.

    `parse(iso(seconds)) == seconds` for every value that `parse` returns.
    """
    return "PT" + (_written(seconds, "HMS") or "0S")


def short(seconds: float) -> str:
    """Return the form for people: 5400 → `1h30m`, 0.5 → `0.5s`."""
    return _written(seconds, "hms") or "0s"


def _total(text: str) -> float:
    if match_ := _GO.fullmatch(text) or _ISO.fullmatch(text):
        parts = {unit: Decimal(number) for unit, number in match_.groupdict().items() if number is not None}
        if parts:
            # Decimal, because 1.1m is 66 seconds and not 66.00000000000001.
            return float(sum(number * _SECONDS[unit] for unit, number in parts.items()))
    if re.fullmatch(_NUMBER, text):
        raise DurationError(
            f"a duration in text needs a unit, one of {', '.join(_SECONDS)}: write {text}s",
            code="duration-without-unit",
            suggestion=f"{text}s",
        )
    if _CALENDAR.fullmatch(text):
        raise DurationError(
            "years and months have no fixed length; write days or weeks, such as 90d or P30D",
            code="duration-in-calendar-units",
            suggestion="P30D",
        )
    raise _unreadable()


def _unreadable() -> DurationError:
    return DurationError(f"not a duration: {_NOTATIONS}", code="invalid-duration")


def _checked(seconds: float) -> float:
    if not seconds >= 0:  # negated, so that NaN is refused as well
        raise DurationError("a duration cannot be negative", code="duration-out-of-range", suggestion="0s")
    if seconds > MAX_DURATION_S:
        raise DurationError(
            "a duration cannot be longer than ten years", code="duration-out-of-range", suggestion="3650d"
        )
    return seconds


def _written(seconds: float, units: str) -> str:
    # The shortest decimal text of a float reads back as the same float, so this loses nothing.
    rest = Decimal(repr(seconds))
    text = ""
    for unit, size in zip(units, (3_600, 60, 1), strict=True):
        amount, rest = (rest, Decimal(0)) if size == 1 else divmod(rest, size)
        if amount:
            text += f"{amount.normalize():f}{unit}"
    return text
