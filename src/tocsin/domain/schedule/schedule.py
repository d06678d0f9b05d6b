"""A schedule: a rule in time that was read and understood, and everything that can be asked of it."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from .instants import SPECIFIED, CalendarRule, DstPolicy
from .rules import IntervalRule, Occurrence, Rule, UnionRule


@dataclass(frozen=True, slots=True)
class Schedule:
    """When a job runs. Immutable; made by `parse`.

    Two schedules are equal when they were read from the same text, for the same zone, under the same policy. Every time
    given or returned is an aware datetime, those returned in UTC; a naive one raises TypeError. `anchor` is the moment
    of registration or of the last trigger: intervals count from it, everything else ignores it.

    Attributes:
        text: what was read.
        timezone: the IANA zone whose wall clock it means.
        dst: what happens where that clock changes.
        expressions: what was understood: cron expressions, or one `@every …` or `@at …`.
        warnings: what its author may not expect, one sentence each.
    """

    text: str
    timezone: str = "UTC"
    dst: DstPolicy = SPECIFIED
    expressions: tuple[str, ...] = field(default=(), compare=False)
    warnings: tuple[str, ...] = field(default=(), compare=False)
    rule: Rule = field(kw_only=True, compare=False, repr=False)

    @property
    def interval(self) -> timedelta | None:
        """The time between two instants of an `@every`; None for everything else."""
        return self.rule.interval if isinstance(self.rule, IntervalRule) else None

    @property
    def calendar_rules(self) -> tuple[CalendarRule, ...]:
        """The rules on the wall clock, one for each cron expression; none for intervals and single instants."""
        rules = self.rule.parts if isinstance(self.rule, UnionRule) else (self.rule,)
        return tuple(rule for rule in rules if isinstance(rule, CalendarRule))

    def next_after(self, after: datetime, *, anchor: datetime) -> datetime | None:
        """The first instant strictly later than `after`; None if the schedule is over."""
        found = self.rule.next_after(after, anchor)
        if found is not None and found <= after:
            # The one thing that would make a scheduler fire for ever: better no answer than this one.
            raise AssertionError(f"{self!r}: the instant after {after} came out as {found}")
        return found

    def latest_until(self, until: datetime, *, after: datetime, anchor: datetime) -> datetime | None:
        """The last instant in (after, until], found from the end; None if there is none."""
        return self.rule.latest_until(until, after, anchor)

    def count(self, after: datetime, until: datetime, *, anchor: datetime) -> int:
        """How many instants lie in (after, until]; wall times that do not exist are not counted."""
        return self.rule.count(after, until, anchor)

    def occurrences(self, after: datetime, until: datetime, *, anchor: datetime) -> Iterator[Occurrence]:
        """What happens in (after, until], ordered by `Occurrence.at`.

        The instants that fire are strictly increasing. A wall time that does not exist is reported once, at the instant
        that it would have been without the change of the clocks; if the schedule fires at that very instant (`*/15`
        does, and what a whole skipped day leaves out falls on the next one), the firing comes first. Adjoining windows
        therefore tile: whatever their borders, together they report everything once and nothing twice.
        """
        return self.rule.occurrences(after, until, anchor)
