"""Instants as people write them on a command line."""

from datetime import UTC, datetime, timedelta

from ..domain import duration
from .failures import Refused

FORMS = "an ISO date and time such as 2026-11-20T09:00 (on this machine's clock) or 2026-11-20T09:00Z, or how long ago: 90m, 2d"


def instant(written: str | None, option: str, *, now: datetime) -> datetime | None:
    """The instant (UTC) that an option was given; None: it was not.

    Raises:
        Refused: neither an instant nor a length of time.
    """
    if written is None:
        return None
    try:
        return now - timedelta(seconds=duration.parse(written))
    except duration.DurationError:
        pass
    try:
        return datetime.fromisoformat(written).astimezone(UTC)
    except (ValueError, OverflowError):
        raise Refused(f"{option} is {written!r}: write {FORMS}") from None


def length(written: str, option: str) -> timedelta:
    """The length of time that an option was given.

    Raises:
        Refused: it is none.
    """
    try:
        return timedelta(seconds=duration.parse(written))
    except duration.DurationError as error:
        raise Refused(f"{option} is {written!r}: {error}") from None
