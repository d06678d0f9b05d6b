"""The next few instants of a schedule."""

from datetime import datetime

from .errors import ScheduleError
from .parser import parse
from .schedule import Schedule


def next_instants(schedule: Schedule, after: datetime, n: int, *, anchor: datetime | None = None) -> list[datetime]:
    """The first `n` instants later than `after`, in UTC; fewer if the schedule ends before.

    Args:
        schedule: any schedule.
        after: an aware datetime.
        n: how many, at most.
        anchor: where intervals count from; `after` if none is given.
    """
    instants, at = list[datetime](), after
    while len(instants) < n:
        found = schedule.next_after(at, anchor=anchor or after)
        if found is None:
            break
        instants.append(found)
        at = found
    return instants


def next_fire_times(text: str, timezone: str, after: datetime, n: int) -> list[datetime]:
    """The first `n` instants later than `after` that a text names in a zone, in UTC; intervals count from `after`.

    Raises:
        ScheduleError: the text or the zone is invalid, or `after` says no offset.
    """
    if after.tzinfo is None:
        raise ScheduleError(f"after: {after.isoformat()} says no offset; allowed are aware datetimes")
    return next_instants(parse(text, timezone), after, n)
