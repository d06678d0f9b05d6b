"""The time in which a schedule does not fire: closed days and blackouts."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from heapq import merge
from typing import Final

from . import timezones
from .day_rules import FAR, Blackout, DayRules, DaySet, NamedDays, OpenDays, date_of, joined
from .instants import instant, seconds
from .pattern import DAY
from .timezones import Zone

NEVER: Final = datetime.max.replace(tzinfo=UTC)
"""The end of a span that does not end."""
_JUST_BEFORE: Final = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Exclusion:
    """The reason why an instant does not fire.

    Attributes:
        blackout: the blackout that contains it; None: its day is closed.
        day: its local date, as ISO text.
        calendars: those that exclude the day; empty: it is in none of `only`.
        only: the calendars; one of them must have the day.
    """

    day: str
    blackout: Blackout | None = None
    calendars: tuple[NamedDays, ...] = ()
    only: tuple[NamedDays, ...] = ()

    def __str__(self) -> str:
        if self.blackout is not None:
            span = f"the blackout from {self.blackout.start} to {self.blackout.end}"
            return f"{span} ({self.blackout.reason})" if self.blackout.reason else span
        if self.calendars:
            return f"{self.day} is a day of {', '.join(calendar.name for calendar in self.calendars)}"
        names = ", ".join(calendar.name for calendar in self.only)
        late = [calendar for calendar in self.only if calendar.until and calendar.until < self.day]
        known = "".join(f"; {calendar.name} is known up to {calendar.until}" for calendar in late)
        return f"{self.day} is no day of {names}{known}"


@dataclass(frozen=True, slots=True)
class ClosedTime:
    """Spans of time without firings.

    Attributes:
        rules: the rules that close days.
        days: the days that they leave open.
        timezone: the zone whose clocks show the days.
        blackouts: each with its first instant, and the instant after its last, in order.
    """

    rules: DayRules
    days: OpenDays
    timezone: str
    blackouts: tuple[tuple[datetime, datetime, Blackout], ...]

    @property
    def size(self) -> int:
        """The number of spans, without those of weekdays."""
        return self.days.size + len(self.blackouts)

    def spans(self, after: datetime, until: datetime) -> Iterator[tuple[datetime, datetime]]:
        """Return the spans [start, end) that begin by `until` and end after `after`.

        They are in order and do not overlap.
        """
        blackouts = ((start, end) for start, end, _ in self.blackouts if end > after and start <= until)
        return joined(merge(self._closed_days(after, until), blackouts))

    def end_at(self, at: datetime) -> datetime | None:
        """Return the end of the span that contains an instant; None: the instant is open."""
        return next((end for start, end in self.spans(at - _JUST_BEFORE, at) if start <= at < end), None)

    def end_of_day(self, at: datetime) -> datetime:
        zone = timezones.zone(self.timezone)
        return max(_midnight(zone, _day(zone, at) + 1), at + _JUST_BEFORE)

    def exclusion(self, at: datetime) -> Exclusion | None:
        """Return why an instant does not fire; None: it may fire."""
        if self.end_at(at) is None:
            return None
        zone = timezones.zone(self.timezone)
        number = _day(zone, at)
        day = date_of(number).isoformat()
        blackout = next((blackout for start, end, blackout in self.blackouts if start <= at < end), None)
        if blackout is not None and not self.days.is_closed(number):
            return Exclusion(day, blackout)
        calendars = tuple(calendar for calendar in self.rules.exclude if number in DaySet((calendar,)))
        return Exclusion(day, None, calendars, self.rules.only)

    def _closed_days(self, after: datetime, until: datetime) -> Iterator[tuple[datetime, datetime]]:
        zone = timezones.zone(self.timezone)
        day = self.days.closed_from(_day(zone, after) - 1)
        while day is not None:
            end_day = self.days.turn(day)
            start, end = _midnight(zone, day), NEVER if end_day == FAR else _midnight(zone, end_day)
            if start > until:
                return
            if end > after:
                yield start, end
            day = None if end_day == FAR else self.days.closed_from(end_day)


def _day(zone: Zone, at: datetime) -> int:
    second = seconds(at)
    return (second + zone.span(second).offset) // DAY


def _midnight(zone: Zone, day: int) -> datetime:
    """Return the first instant of a local day; the clocks may skip its midnight."""
    wall = day * DAY
    span = zone.showing(wall)
    return instant(max(wall, span.wall) - span.offset)
