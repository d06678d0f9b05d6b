"""What a wall-clock time means in a zone: one instant, none where the clocks skip it, or two where they repeat it."""

from datetime import datetime, timedelta
from datetime import timezone as fixed_offset

from . import timezones
from .instants import instant, seconds, wall_time
from .moments import first_shown, shifted


def instants_of(timezone: str, local: datetime) -> tuple[datetime, ...]:
    """The instants (UTC) at which a zone's clocks show a (naive) wall-clock time, in whole seconds."""
    first = first_shown(timezone, local.replace(microsecond=0))
    if first is None:
        return ()
    zone, at = timezones.zone(timezone), seconds(first)
    span = zone.span(at)
    following = zone.span(span.end)
    wall = at + span.offset
    if span.end == following.start and following.wall <= wall < following.expected:
        return first, instant(wall - following.offset)
    return (first,)


def skipped(timezone: str, local: datetime) -> datetime:
    """The instant (UTC) under which a wall-clock time that the clocks skip is known."""
    return shifted(timezone, local.replace(microsecond=0))


def local_time(timezone: str, at: datetime) -> datetime:
    """An instant on the wall clock of a zone, with the offset that was in force then."""
    offset = timezones.zone(timezone).span(seconds(at)).offset
    return at.astimezone(fixed_offset(timedelta(seconds=offset)))


def is_repeated(timezone: str, at: datetime) -> bool:
    """Whether the clocks of a zone show at an instant what they showed before."""
    span = timezones.zone(timezone).span(seconds(at))
    return seconds(at) + span.offset < span.fresh and wall_time(span.wall) < wall_time(span.fresh)
