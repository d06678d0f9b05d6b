"""The instants that other time-zone data moves."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from typing import Final

from . import timezones
from .day_rules import DayRules
from .errors import ScheduleError
from .instants import DstPolicy, instant, seconds
from .parser import parse
from .timezones import FARTHEST, TimezoneDatabase

MAX_COMPARED: Final = 1_000
"""Instants of one schedule that are compared in each stretch of time."""


@dataclass(frozen=True, slots=True)
class Moved:
    """The instants (UTC) of one schedule that other data removes and adds, oldest first."""

    removed: tuple[datetime, ...]
    added: tuple[datetime, ...]


def differences(
    timezone: str, before: TimezoneDatabase, after: TimezoneDatabase, start: datetime, end: datetime
) -> list[tuple[datetime, datetime]]:
    """Return the joined stretches of (start, end] in which a zone has other clocks."""
    old, new, at, last = before.zone(timezone), after.zone(timezone), seconds(start), seconds(end)
    stretches: list[tuple[int, int]] = []
    while at < last:
        was, now = old.span(at), new.span(at)
        until = min(was.end, now.end, last)
        if was.offset != now.offset:
            if stretches and stretches[-1][1] == at:
                stretches[-1] = stretches[-1][0], until
            else:
                stretches.append((at, until))
        at = until
    return [(instant(first), instant(until)) for first, until in stretches]


def moved(
    text: str,
    timezone: str,
    dst: DstPolicy | None,
    before: TimezoneDatabase,
    after: TimezoneDatabase,
    start: datetime,
    end: datetime,
    *,
    days: DayRules | None = None,
) -> Moved | None:
    """Return the instants in (start, end] that differ; None: there are none.

    Intervals never move. In each stretch of time with other clocks at most `MAX_COMPARED` instants are compared.

    Raises:
        ScheduleError: a database does not have the zone.
    """
    stretches = differences(timezone, before, after, start, end)
    if not stretches:
        return None
    reach = timedelta(seconds=FARTHEST)
    spans = [(max(start, first - reach), min(end, until + reach)) for first, until in stretches]
    old, new = (_instants(text, timezone, dst, days, database, spans) for database in (before, after))
    if old == new:
        return None
    return Moved(tuple(sorted(old - new)), tuple(sorted(new - old)))


def _instants(
    text: str,
    timezone: str,
    dst: DstPolicy | None,
    days: DayRules | None,
    database: TimezoneDatabase,
    spans: list[tuple[datetime, datetime]],
) -> set[datetime]:
    instants: set[datetime] = set()
    with timezones.using(database):
        try:
            schedule = parse(text, timezone, dst=dst, days=days)
        except ScheduleError:  # the only wall time of the schedule does not exist with this data
            return instants
        for first, until in spans if schedule.interval is None else ():
            occurrences = islice(schedule.occurrences(first, until, anchor=first), MAX_COMPARED)
            instants |= {occurrence.at for occurrence in occurrences if occurrence.fires}
    return instants
