"""Instants and rates as people type them."""

from datetime import UTC, date, datetime, timedelta
from typing import Final, overload
from zoneinfo import ZoneInfo

from ..domain import duration
from .failures import Refused

_PERIODS: Final = {"s": 1.0, "m": 60.0, "h": 3_600.0}


@overload
def instant(option: str, given: None, *, now: datetime, timezone: str | None = None) -> None: ...
@overload
def instant(option: str, given: str, *, now: datetime, timezone: str | None = None) -> datetime: ...
def instant(option: str, given: str | None, *, now: datetime, timezone: str | None = None) -> datetime | None:
    """An instant in UTC: a date, a date and a time, or how long ago (`24h`); None where nothing is given.

    Without an offset it is meant on the wall clock of `timezone`, or of this machine.

    Raises:
        Refused: it is none of these.
    """
    if given is None:
        return None
    if given == "now":
        return now
    try:
        at = datetime.fromisoformat(given)
    except ValueError:
        try:
            return now - timedelta(seconds=duration.parse(given))
        except duration.DurationError:
            example = f"a date ({date(2026, 3, 1)}), a time (2026-03-01T02:00), or how long ago (24h)"
            raise Refused(f"{option}: {given!r} is no instant: write {example}") from None
    if at.tzinfo is None and timezone is not None:
        at = at.replace(tzinfo=ZoneInfo(timezone))
    return at.astimezone(UTC)


def rate(option: str, given: str) -> float:
    """How often a second: `10/s`, `100/m`, `20/h`, or a number of times a second.

    Raises:
        Refused: it is none of these.
    """
    number, _, period = given.partition("/")
    try:
        often = float(number) / _PERIODS[period or "s"]
    except (ValueError, KeyError):
        often = 0.0
    if not 0 < often <= 10_000:  # noqa: PLR2004 - more than one client can ask for
        raise Refused(f"{option}: {given!r} is no rate: write 10/s, 100/m or 20/h")
    return often
