"""A single date and time, for schedules that fire once."""

from datetime import UTC, datetime, timedelta
from typing import Final

from . import timezones
from .dst import DstPolicy
from .errors import ScheduleError
from .zones import EPOCH, FARTHEST, Span

_SECOND: Final = timedelta(seconds=1)
# The first and the last year of all are left out, so that no offset leads beyond them.
_FIRST_YEAR: Final = 2
_LAST_YEAR: Final = 9998
_SHORTEST: Final = len("2027-03-01T09:00")
_EXAMPLE: Final = "at 2027-03-01T09:00:00"


def parse_moment(text: str, timezone: str, dst: DstPolicy) -> datetime:
    """Reads an ISO 8601 date and time; without an offset of its own it is on the wall clock of the zone.

    A wall time that exists twice is its first occurrence. One that does not exist would never fire, and is refused,
    unless the policy shifts it.

    Raises:
        ScheduleError: placed relative to `text`.
    """
    try:
        at = datetime.fromisoformat(text.replace(" ", "T", 1) if "T" not in text.upper() else text)
    except ValueError:
        at = None
    if at is None or len(text) < _SHORTEST:
        raise ScheduleError(
            f"at: cannot read {text!r}; allowed are a date and a time, as in ISO 8601",
            length=len(text),
            suggestion=_EXAMPLE,
        )
    if at.microsecond or not _FIRST_YEAR <= at.year <= _LAST_YEAR:
        raise ScheduleError(
            f"at: {text} is out of range; allowed are whole seconds of the years {_FIRST_YEAR} to {_LAST_YEAR}",
            length=len(text),
        )
    if at.tzinfo is not None:
        return at.astimezone(UTC)
    shown = first_shown(timezone, at)
    if shown is None and dst.gap == "skip":
        raise ScheduleError(
            f"at: {text} does not exist in {timezone}, whose clocks skip it", length=len(text), suggestion=_EXAMPLE
        )
    return shown or shifted(timezone, at)


def first_shown(timezone: str, local: datetime) -> datetime | None:
    """The first instant at which a zone's clocks show a (naive) wall-clock time; None if they skip it."""
    span, wall = _reached(timezone, local)
    return EPOCH + (wall - span.offset) * _SECOND if wall >= span.wall else None


def shifted(timezone: str, local: datetime) -> datetime:
    """The instant at which clocks would show a (naive) wall-clock time that they skip, had they not been changed."""
    span, wall = _reached(timezone, local)
    return EPOCH + (wall - span.before) * _SECOND


def _reached(timezone: str, local: datetime) -> tuple[Span, int]:
    """The first span whose clocks show the time or, having skipped it, a later one; and that time in wall seconds."""
    zone, wall = timezones.zone(timezone), (local.replace(tzinfo=UTC) - EPOCH) // _SECOND
    span = zone.span(wall - FARTHEST)
    while span.wall_end <= wall:
        span = zone.span(span.end)
    return span, wall
