"""Instants as people write them on a command line."""

from datetime import UTC, datetime, timedelta
from typing import overload
from zoneinfo import ZoneInfo

from ...domain import duration
from ..runtime.errors import UsageError

FORMS = "an ISO date and time such as 2026-11-20T09:00 (on this machine's clock) or 2026-11-20T09:00Z, or how long ago: 90m, 2d"


@overload
def instant(written: None, option: str, *, now: datetime, timezone: str | None = None) -> None: ...
@overload
def instant(written: str, option: str, *, now: datetime, timezone: str | None = None) -> datetime: ...
@overload
def instant(written: str | None, option: str, *, now: datetime, timezone: str | None = None) -> datetime | None: ...
def instant(written: str | None, option: str, *, now: datetime, timezone: str | None = None) -> datetime | None:
    """The instant (UTC) that an option was given; None: it was not.

    Without an offset it is on the wall clock of `timezone`, or of this machine.

    Raises:
        UsageError: neither an instant nor a length of time.
    """
    if written is None or written == "now":
        return None if written is None else now
    try:
        return now - timedelta(seconds=duration.parse(written))
    except duration.DurationError:
        pass
    try:
        at = datetime.fromisoformat(written)
        return (at if at.tzinfo or timezone is None else at.replace(tzinfo=ZoneInfo(timezone))).astimezone(UTC)
    except (ValueError, OverflowError):
        raise UsageError(f"{option} is {written!r}: write {FORMS}", code="invalid-time") from None


def length(written: str, option: str) -> timedelta:
    """The length of time that an option was given.

    Raises:
        UsageError: it is none.
    """
    try:
        return timedelta(seconds=duration.parse(written))
    except duration.DurationError as error:
        raise UsageError(f"{option} is {written!r}: {error}") from None
