"""The rules that a schedule consists of: their interface, intervals, single instants, unions."""

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
        skipped_local: None if the schedule fires at that instant. Otherwise the nonexistent wall-clock time (naive) that the clocks
            skipped; nothing fires, and `at` is that time read with the offset before the change.
    """

    at: datetime
    skipped_local: datetime | None = None


class Rule(Protocol):
    """The interface of a rule. All times are aware; only intervals use `anchor`."""

    def next_after(self, after: datetime, anchor: datetime, /) -> datetime | None:
        """Return the first instant later than `after`, or None."""

    def latest_until(self, until: datetime, after: datetime, anchor: datetime, /) -> datetime | None:
        """Return the last instant in (after, until], or None."""

    def count(self, after: datetime, until: datetime, anchor: datetime, /) -> int:
        """Return the number of instants in (after, until]."""

    def occurrences(self, after: datetime, until: datetime, anchor: datetime, /) -> Iterator[Occurrence]:
        """Yield the occurrences in (after, until], by instant."""


@dataclass(frozen=True, slots=True)
class IntervalRule:
    """`@every`: every whole multiple of the interval after the anchor (`ojs-cron` 4.1, S02)."""

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
    """One instant."""

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
    """Several rules together; an instant that several of them name is one instant."""

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
        """See `Rule`; instants are enumerated, because rules may share them."""
        return sum(1 for occurrence in self.occurrences(after, until, anchor) if occurrence.skipped_local is None)

    def occurrences(self, after: datetime, until: datetime, anchor: datetime, /) -> Iterator[Occurrence]:
        """See `Rule`."""
        walks = [part.occurrences(after, until, anchor) for part in self.parts]
        merged = merge(*walks, key=lambda occurrence: (occurrence.at, occurrence.skipped_local is not None))
        for _, same in groupby(merged, key=attrgetter("at", "skipped_local")):
            yield next(same)
