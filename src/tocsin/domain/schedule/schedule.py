"""A parsed schedule, and every query on it."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import islice
from typing import Final

from . import timezones
from .closed_time import NEVER, ClosedTime, Exclusion
from .day_rules import DayRules
from .instants import SPECIFIED, CalendarRule, DstPolicy, seconds
from .rules import IntervalRule, Occurrence, OnceRule, Rule, UnionRule

_SEARCHED: Final = 400
"""Closed spans that a search passes beyond those that the calendars list; weekdays and dates repeat after 400 years."""


@dataclass(frozen=True, slots=True)
class OpenRule:
    """A rule whose instants in closed time do not fire.

    They are reported together: as one occurrence for each local day, at the last of them. So a job that names every second has one
    decision for a day of its calendar.
    """

    named: Rule
    closed: ClosedTime

    def next_after(self, after: datetime, anchor: datetime, /) -> datetime | None:
        """See `Rule`; None also if all the instants that the search meets are closed."""
        at = self.named.next_after(after, anchor)
        for _ in range(_SEARCHED + self.closed.size):
            end = None if at is None else self.closed.end_at(at)
            if end is None:
                return at
            at = None if end == NEVER else self.named.next_after(end - _JUST_BEFORE, anchor)
        return None

    def latest_until(self, until: datetime, after: datetime, anchor: datetime, /) -> datetime | None:
        for begin, end, is_closed in reversed(list(self._pieces(after, until))):
            at = None if is_closed else self.named.latest_until(end, begin, anchor)
            if at is not None:
                return at
        return None

    def count(self, after: datetime, until: datetime, anchor: datetime, /) -> int:
        return self.named.count(after, until, anchor) - self.count_excluded(after, until, anchor)

    def count_excluded(self, after: datetime, until: datetime, anchor: datetime) -> int:
        """Return the number of instants in (after, until] that do not fire."""
        closed = (piece for piece in self._pieces(after, until) if piece[2])
        return sum(self.named.count(begin, end, anchor) for begin, end, _ in closed)

    def excluded_instants(self, after: datetime, until: datetime, anchor: datetime) -> Iterator[datetime]:
        """Yield the instants in (after, until] that do not fire, oldest first."""
        for begin, end, is_closed in self._pieces(after, until):
            if is_closed:
                yield from (o.at for o in self.named.occurrences(begin, end, anchor) if o.fires)

    def occurrences(self, after: datetime, until: datetime, anchor: datetime, /) -> Iterator[Occurrence]:
        """See `Rule`; those in closed time stand for several instants."""
        for begin, end, is_closed in self._pieces(after, until):
            if not is_closed:
                yield from self.named.occurrences(begin, end, anchor)
            elif (first := self.named.next_after(begin, anchor)) is None:
                return
            else:
                yield from self._by_day(first, begin, end, anchor)

    def _by_day(self, first: datetime | None, begin: datetime, end: datetime, anchor: datetime) -> Iterator[Occurrence]:
        """Yield the instants of a closed part as one occurrence for each local day."""
        while first is not None and first <= end:
            stop = min(end, self.closed.end_of_day(first) - _JUST_BEFORE)
            last = self.named.latest_until(stop, begin, anchor) or first
            yield Occurrence(last, excluded=self.named.count(begin, stop, anchor))
            begin, first = stop, self.named.next_after(stop, anchor)

    def _pieces(self, after: datetime, until: datetime) -> Iterator[tuple[datetime, datetime, bool]]:
        """Yield the parts (begin, end] of (after, until] in order, and whether each is closed."""
        at = after
        for start, end in self.closed.spans(after, until):
            closes, opens = max(start - _JUST_BEFORE, at), min(end - _JUST_BEFORE, until)
            if closes > at:
                yield at, closes, False
            if opens > closes:
                yield closes, opens, True
            at = max(at, opens)
        if at < until:
            yield at, until, False


_JUST_BEFORE: Final = timedelta(microseconds=1)
_DAY: Final = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Schedule:
    """The times at which a job runs. Immutable; made by `parse`.

    Two schedules are equal if they were parsed from the same text, for the same zone, under the same rules. Every datetime given or
    returned is aware, and returned datetimes are in UTC; a naive datetime raises TypeError. `anchor` is the moment of registration or of
    the last trigger: intervals count from it, other schedules ignore it.

    Attributes:
        text: the parsed text.
        timezone: the IANA zone whose wall clock applies.
        dst: the policy for clock changes.
        expressions: the cron expressions, or one `@every …` or `@at …`, that the text means.
        warnings: consequences that its author may not expect, one sentence each.
        rule: all that the text names, with times that move to another day.
        days: the rules about days; None: every day is open.
        closed: the time in which they let nothing fire.
        starts_at, ends_at: the moments (UTC) between which it fires, both included; None: no limit. Intervals count from `starts_at`.
    """

    text: str
    timezone: str = "UTC"
    dst: DstPolicy = SPECIFIED
    expressions: tuple[str, ...] = field(default=(), compare=False)
    warnings: tuple[str, ...] = field(default=(), compare=False)
    rule: Rule = field(kw_only=True, compare=False, repr=False)
    starts_at: datetime | None = field(default=None, kw_only=True, compare=False)
    ends_at: datetime | None = field(default=None, kw_only=True, compare=False)
    days: DayRules | None = field(default=None, kw_only=True)
    closed: ClosedTime | None = field(default=None, kw_only=True, compare=False, repr=False)
    _firing: Rule = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        rule = self.rule if self.closed is None else OpenRule(self.rule, self.closed)
        object.__setattr__(self, "_firing", rule)

    @property
    def interval(self) -> timedelta | None:
        """The time between two instants of an `@every`; None for other schedules."""
        return self.rule.interval if isinstance(self.rule, IntervalRule) else None

    @property
    def most_per_day(self) -> int:
        """The most instants of a day with 24 hours; 0: the schedule fires once."""
        interval = self.interval
        if interval is not None:
            return -(-_DAY // interval)
        return sum(rule.pattern.per_day for rule in self.calendar_rules)

    @property
    def only_instant(self) -> datetime | None:
        """The instant (UTC) of a schedule that fires once; None for other schedules."""
        last = self.rule.parts[-1] if isinstance(self.rule, UnionRule) else self.rule
        return last.at if isinstance(last, OnceRule) else None

    @property
    def calendar_rules(self) -> tuple[CalendarRule, ...]:
        """The rules on the wall clock: those of cron expressions, then those of moved times."""
        rules = self.rule.parts if isinstance(self.rule, UnionRule) else (self.rule,)
        return tuple(rule for rule in rules if isinstance(rule, CalendarRule))

    def next_after(self, after: datetime, *, anchor: datetime) -> datetime | None:
        """Return the first instant strictly later than `after`; None if the schedule is over."""
        moment = self._firing.next_after(self._begin(after), self._anchor(anchor))
        if moment is not None and self.ends_at is not None and moment > self.ends_at:
            return None
        if moment is not None and moment <= after:
            # An instant that is not later would make a scheduler fire endlessly: fail instead.
            raise AssertionError(f"{self!r}: the instant after {after} came out as {moment}")
        return moment

    def may_skip(self, after: datetime, until: datetime) -> bool:
        """Return whether `occurrences` may report a nonexistent wall time in (after, until].

        False only if the clocks do not change there, and the times that the last change skipped are over.
        """
        if isinstance(self.rule, IntervalRule | OnceRule):
            return False
        start = seconds(after) + 1
        span = timezones.zone(self.timezone).span(start)
        return seconds(until) >= span.end or start < span.wall - span.before

    def is_open(self, after: datetime, until: datetime) -> bool:
        """Return whether no time in (after, until] is closed."""
        return self.closed is None or next(self.closed.spans(after, until), None) is None

    def _begin(self, after: datetime) -> datetime:
        return after if self.starts_at is None else max(after, self.starts_at - _JUST_BEFORE)

    def _within(self, after: datetime, until: datetime) -> tuple[datetime, datetime]:
        return self._begin(after), until if self.ends_at is None else min(until, self.ends_at)

    def _anchor(self, anchor: datetime) -> datetime:
        """Return the moment from which an interval counts; the first instant is `starts_at` itself."""
        return anchor if self.starts_at is None or self.interval is None else self.starts_at - self.interval

    def latest_until(self, until: datetime, *, after: datetime, anchor: datetime) -> datetime | None:
        """Return the last instant in (after, until], searched backwards, or None."""
        begin, end = self._within(after, until)
        return self._firing.latest_until(end, begin, self._anchor(anchor)) if begin < end else None

    def count(self, after: datetime, until: datetime, *, anchor: datetime, most: int | None = None) -> int:
        """Return the number of instants in (after, until] that fire; at most `most`."""
        if most is None or type(self.rule) is not UnionRule:
            begin, end = self._within(after, until)
            count = self._firing.count(begin, end, self._anchor(anchor)) if begin < end else 0
            return count if most is None else min(most, count)
        # A union counts by enumerating, because its parts may share instants.
        fires = (occurrence for occurrence in self.occurrences(after, until, anchor=anchor) if occurrence.fires)
        return sum(1 for _ in islice(fires, most))

    def occurrences(self, after: datetime, until: datetime, *, anchor: datetime) -> Iterator[Occurrence]:
        """Yield the occurrences in (after, until], ordered by `Occurrence.at`.

        The instants that fire are strictly increasing. A nonexistent wall time is reported once, at the instant that it would have had
        without the clock change. If the schedule also fires at that instant (`*/15` does, and a skipped day falls on the next day), the
        firing comes first. Instants in closed time are reported together, a local day at a time. Adjoining windows therefore tile:
        together they report everything exactly once.
        """
        begin, end = self._within(after, until)
        if begin >= end:
            return iter(())
        return self._firing.occurrences(begin, end, self._anchor(anchor))

    def count_excluded(self, after: datetime, until: datetime, *, anchor: datetime) -> int:
        """Return the number of instants in (after, until] that calendars exclude."""
        begin, end = self._within(after, until)
        if not isinstance(self._firing, OpenRule) or begin >= end:
            return 0
        return self._firing.count_excluded(begin, end, self._anchor(anchor))

    def excluded_instants(self, after: datetime, until: datetime, *, anchor: datetime) -> Iterator[datetime]:
        """Yield the instants in (after, until] that calendars exclude, oldest first."""
        begin, end = self._within(after, until)
        if isinstance(self._firing, OpenRule) and begin < end:
            yield from self._firing.excluded_instants(begin, end, self._anchor(anchor))

    def exclusion(self, at: datetime) -> Exclusion | None:
        """Return why calendars exclude an instant of the schedule; None: they do not."""
        return None if self.closed is None else self.closed.exclusion(at)
