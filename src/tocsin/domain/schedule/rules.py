"""What a schedule may consist of: the interface of all rules, and those without a calendar of their own."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from heapq import merge
from itertools import groupby
from operator import attrgetter
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Occurrence:
    """One occurrence of a schedule.

    Attributes:
        at: the instant, an aware UTC datetime.
        skipped_local: None if the schedule fires at that instant. Else the wall-clock time (naive) that does not exist,
            since the clocks skipped it; nothing fires, and `at` is that time read with the offset in force before the
            change.
    """

    at: datetime
    skipped_local: datetime | None = None


class Rule(Protocol):
    """What every kind of rule answers. All times are aware; `anchor` matters to intervals only."""

    def next_after(self, after: datetime, anchor: datetime, /) -> datetime | None:
        """The first instant later than `after`; None if there is none."""

    def latest_until(self, until: datetime, after: datetime, anchor: datetime, /) -> datetime | None:
        """The last instant in (after, until]; None if there is none."""

    def count(self, after: datetime, until: datetime, anchor: datetime, /) -> int:
        """How many instants lie in (after, until]."""

    def occurrences(self, after: datetime, until: datetime, anchor: datetime, /) -> Iterator[Occurrence]:
        """What happens in (after, until], by instant."""


@dataclass(frozen=True, slots=True)
class IntervalRule:
    """`@every`: an instant at every whole multiple of the interval after the anchor (`ojs-cron` 4.1, S02)."""

    interval: timedelta

    def next_after(self, after: datetime, anchor: datetime, /) -> datetime | None:
        """See `Rule`."""
        try:
            return anchor + (self._passed(after, anchor) + 1) * self.interval
        except OverflowError:
            return None

    def latest_until(self, until: datetime, after: datetime, anchor: datetime, /) -> datetime | None:
        """See `Rule`."""
        passed = self._passed(until, anchor)
        if passed == 0:
            return None
        at = anchor + passed * self.interval
        return at if at > after else None

    def count(self, after: datetime, until: datetime, anchor: datetime, /) -> int:
        """See `Rule`."""
        return max(0, self._passed(until, anchor) - self._passed(after, anchor))

    def occurrences(self, after: datetime, until: datetime, anchor: datetime, /) -> Iterator[Occurrence]:
        """See `Rule`."""
        at = self.next_after(after, anchor)
        while at is not None and at <= until:
            yield Occurrence(at)
            at = self.next_after(at, anchor)

    def _passed(self, instant: datetime, anchor: datetime) -> int:
        return max(0, (instant - anchor) // self.interval)


@dataclass(frozen=True, slots=True)
class OnceRule:
    """One instant, and never again."""

    at: datetime

    def next_after(self, after: datetime, _anchor: datetime, /) -> datetime | None:
        """See `Rule`."""
        return self.at if self.at > after else None

    def latest_until(self, until: datetime, after: datetime, _anchor: datetime, /) -> datetime | None:
        """See `Rule`."""
        return self.at if after < self.at <= until else None

    def count(self, after: datetime, until: datetime, _anchor: datetime, /) -> int:
        """See `Rule`."""
        return int(after < self.at <= until)

    def occurrences(self, after: datetime, until: datetime, _anchor: datetime, /) -> Iterator[Occurrence]:
        """See `Rule`."""
        if after < self.at <= until:
            yield Occurrence(self.at)


@dataclass(frozen=True, slots=True)
class UnionRule:
    """Several rules at once; an instant that more than one of them names is one instant."""

    parts: tuple[Rule, ...]

    def next_after(self, after: datetime, anchor: datetime, /) -> datetime | None:
        """See `Rule`."""
        return min((at for part in self.parts if (at := part.next_after(after, anchor)) is not None), default=None)

    def latest_until(self, until: datetime, after: datetime, anchor: datetime, /) -> datetime | None:
        """See `Rule`."""
        return max(
            (at for part in self.parts if (at := part.latest_until(until, after, anchor)) is not None), default=None
        )

    def count(self, after: datetime, until: datetime, anchor: datetime, /) -> int:
        """See `Rule`; several rules are walked through, since they may share instants."""
        return sum(1 for occurrence in self.occurrences(after, until, anchor) if occurrence.skipped_local is None)

    def occurrences(self, after: datetime, until: datetime, anchor: datetime, /) -> Iterator[Occurrence]:
        """See `Rule`."""
        walks = [part.occurrences(after, until, anchor) for part in self.parts]
        merged = merge(*walks, key=lambda occurrence: (occurrence.at, occurrence.skipped_local is not None))
        for _, same in groupby(merged, key=attrgetter("at", "skipped_local")):
            yield next(same)
