"""Instants of wall-clock times; the rules for clock changes apply here (`ojs-cron` 5.2; CRON-16, CRON-17).

A zone is walked span by span. Within a span, wall time and UTC differ by a constant, so a match on the wall gives the instant. At
the start of a span, the wall times that a fold repeats are left out, because their first occurrence was in the previous span. The
wall times of a gap, which no span contains, are reported.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final, Literal, TypeAlias, get_args

from . import timezones
from .errors import ScheduleError
from .moved_pattern import MovedPattern
from .pattern import Pattern
from .rules import Occurrence
from .timezones import EPOCH, FARTHEST, Span, Zone

SKIPPED_IN_A_ROW: Final = 30
"""A search ends if the clocks skip this number of matching days one after another.

Such a day comes at most once a year, so that these are 30 years, and the schedule fires at no time that exists.
"""
_SECOND: Final = timedelta(seconds=1)
_DAY: Final = 86_400
_LATEST: Final = (datetime.max.replace(tzinfo=UTC) - EPOCH) // _SECOND
_WALL_EPOCH: Final = EPOCH.replace(tzinfo=None)


Gap: TypeAlias = Literal["skip", "shift"]
Fold: TypeAlias = Literal["once", "both"]


@dataclass(frozen=True, slots=True)
class DstPolicy:
    """The treatment of wall-clock times that do not exist, or exist twice.

    Attributes:
        gap: `skip` (CRON-16): a nonexistent time does not fire, and is reported. `shift`: it fires later, by the amount of the clock
            change; if the schedule already names that instant, it fires once.
        fold: `once` (CRON-17): a repeated time fires at its first occurrence. `both`: schedules that step through the hours (a `*`, a
            range or a step in second, minute or hour) fire in both passes, so that `*/15` keeps its pace; fixed times fire once.

    Raises:
        ScheduleError: the policy is unknown.
    """

    gap: Gap = "skip"
    fold: Fold = "once"

    def __post_init__(self) -> None:
        for name, value, allowed in (("gap", self.gap, get_args(Gap)), ("fold", self.fold, get_args(Fold))):
            if value not in allowed:
                raise ScheduleError(
                    f"dst.{name}: there is no policy {value!r}; allowed are {' and '.join(allowed)}",
                    code="invalid-dst-policy",
                )


SPECIFIED: Final = DstPolicy()


def seconds(instant: datetime) -> int:
    """Return whole seconds since 1970 of an aware instant, rounded down."""
    since = instant - EPOCH
    return since.days * _DAY + since.seconds


def instant(at: int) -> datetime:
    """Return the aware UTC datetime of seconds since 1970."""
    return EPOCH + timedelta(0, at)


def wall_time(wall: int) -> datetime:
    return _WALL_EPOCH + timedelta(0, wall)


@dataclass(frozen=True, slots=True)
class CalendarRule:
    """A pattern on the wall clock of a zone.

    Attributes:
        timezone: the zone's name; it is looked up each time, so that newer zone data applies immediately.
        deviates: whether the policy differs from the specification for this pattern.
        fires_twice: whether wall times that a fold repeats fire again.
    """

    pattern: Pattern | MovedPattern
    timezone: str
    dst: DstPolicy
    deviates: bool = field(init=False)
    fires_twice: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "fires_twice", self.dst.fold == "both" and self.pattern.stepping)
        object.__setattr__(self, "deviates", self.dst.gap == "shift" or self.fires_twice)

    def next_after(self, after: datetime, _anchor: datetime, /) -> datetime | None:
        """Return the first instant later than `after`.

        None: it would be later than the year 9999, or the clocks skip every matching time.
        """
        since = after - EPOCH
        moment = self._next(timezones.zone(self.timezone), since.days * _DAY + since.seconds + 1)
        return None if moment is None or moment > _LATEST else EPOCH + timedelta(0, moment)

    def latest_until(self, until: datetime, after: datetime, _anchor: datetime, /) -> datetime | None:
        """Return the last instant in (after, until]."""
        moment = self._previous(timezones.zone(self.timezone), seconds(until), seconds(after))
        return None if moment is None else instant(moment)

    def count(self, after: datetime, until: datetime, _anchor: datetime, /) -> int:
        """Return the number of instants in (after, until]."""
        zone, start, end, total = timezones.zone(self.timezone), seconds(after) + 1, seconds(until) + 1, 0
        while start < end:
            span = zone.span(start)
            stop = min(span.end, end)
            total += self.pattern.count(max(start + span.offset, self._from(span)), stop + span.offset)
            if self.dst.gap == "shift":
                total += sum(1 for _ in self._shifted(span, start, stop))
            start = stop
        return total

    def occurrences(self, after: datetime, until: datetime, _anchor: datetime, /) -> Iterator[Occurrence]:
        """Yield the occurrences in (after, until] by instant; a firing precedes a skipped time."""
        zone, start, end = timezones.zone(self.timezone), seconds(after) + 1, seconds(until) + 1
        at = self._next(zone, start)
        while at is not None and at < end:
            yield from self._skipped(zone, start, at)
            yield Occurrence(instant(at))
            start, at = at, self._next(zone, at + 1)
        yield from self._skipped(zone, start, end)

    def _skipped(self, zone: Zone, start: int, end: int) -> Iterator[Occurrence]:
        """Yield nonexistent wall times whose instants, by the old offset, are in [start, end)."""
        while start < end and self.dst.gap == "skip":
            span = zone.span(start)
            for wall in self._gap(span, start, end):
                yield Occurrence(instant(wall - span.before), wall_time(wall))
            start = span.end

    def _next(self, zone: Zone, start: int) -> int | None:
        if self.deviates:
            return self._next_as_wished(zone, start)
        # By the specification a time fires when it is first shown, and wall times are first shown in order. So the next
        # match on the wall is the next to fire, unless the clocks skip it.
        span = zone.span(start)
        wall = start + span.offset
        wall_instant, skipped = self.pattern.next(max(span.fresh, wall)), 0
        while wall_instant is not None and wall_instant >= span.wall_end:
            near = wall_instant - span.offset - FARTHEST
            span = zone.span(max(span.end, near))
            if wall_instant < span.fresh:
                wall_instant, skipped = self.pattern.next(span.fresh), skipped + 1
                if skipped == SKIPPED_IN_A_ROW:
                    return None
        return None if wall_instant is None else wall_instant - span.offset

    def _next_as_wished(self, zone: Zone, start: int) -> int | None:
        """Return the first instant under a policy that shifts or repeats, span by span."""
        moment: int | None = None
        skipped = 0
        while start <= _LATEST and skipped < SKIPPED_IN_A_ROW:
            span = zone.span(start)
            skipped += moment is not None and moment < span.wall
            moment = self.pattern.next(max(start + span.offset, self._from(span)))
            at = moment - span.offset if moment is not None and moment < span.wall_end else None
            if self.dst.gap == "shift":
                at = next(self._shifted(span, start, span.end if at is None else at), at)
            if at is not None or moment is None:
                return at
            # There is no match on the wall before `found`: continue where that time may first be shown. Only a schedule
            # that fires in both passes of a fold must visit every span, because its times repeat.
            start = span.end if self.fires_twice else max(span.end, moment - span.offset - FARTHEST)
        return None

    def _previous(self, zone: Zone, end: int, after: int) -> int | None:
        while end > after:
            span = zone.span(end)
            wall_instant = self.pattern.previous(end + span.offset)
            fits = wall_instant is not None and wall_instant >= self._from(span)
            at = wall_instant - span.offset if wall_instant is not None and fits else None
            if self.dst.gap == "shift":
                at = max(self._shifted(span, span.start if at is None else at, end + 1), default=at)
            if at is not None:
                return at if at > after else None
            if wall_instant is None:
                return None
            # As above. In a fold, repeated wall times may be later than `end` on the wall, but not in time.
            is_fold = span.before > span.offset
            end = (
                span.start - 1
                if is_fold or self.fires_twice
                else min(span.start - 1, wall_instant - span.offset + FARTHEST)
            )
        return None

    def walls(self, start: int, end: int) -> Iterator[int]:
        """Yield the wall times in [start, end) that the pattern names, skipped times included."""
        wall_instant = self.pattern.next(start)
        while wall_instant is not None and wall_instant < end:
            yield wall_instant
            wall_instant = self.pattern.next(wall_instant + 1)

    def _from(self, span: Span) -> int:
        """Return the wall time from which a span's times fire, after repeated times."""
        return span.wall if self.fires_twice else span.fresh

    def _gap(self, span: Span, start: int, end: int) -> Iterator[int]:
        """Yield wall times skipped at the start of a span, by instant in [start, end)."""
        return self.walls(max(span.expected, start + span.before), min(span.wall, end + span.before))

    def _shifted(self, span: Span, start: int, end: int) -> Iterator[int]:
        """Yield the instants in [start, end) to which skipped times shift."""
        for wall in self._gap(span, start, end):
            at = wall - span.before
            if self.pattern.next(at + span.offset) != at + span.offset:
                yield at
