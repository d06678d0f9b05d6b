"""Rates as people write them on a command line."""

from typing import Final

from ..runtime.errors import UsageError

_PERIODS: Final = {"s": 1.0, "m": 60.0, "h": 3_600.0}
MOST: Final = 10_000.0
"""More a second than one client can ask for."""


def rate(written: str, option: str) -> float:
    """How often a second: `10/s`, `100/m`, `20/h`, or a number of times a second.

    Raises:
        UsageError: it is none of these.
    """
    number, _, period = written.partition("/")
    try:
        often = float(number) / _PERIODS[period or "s"]
    except (ValueError, KeyError):
        often = 0.0
    if not 0 < often <= MOST:
        raise UsageError(f"{option} is {written!r}: write 10/s, 100/m or 20/h", code="invalid-rate")
    return often
