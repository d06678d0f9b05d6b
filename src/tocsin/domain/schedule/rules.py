"""The rules that a schedule consists of: their interface, intervals, single instants, unions."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from fractions import Fraction
from heapq import merge
from itertools import groupby
from operator import attrgetter
from types import MappingProxyType
from typing import Final, Protocol

from typing_extensions import override

from .errors import ScheduleError


@dataclass(frozen=True, slots=True)
class Occurrence:
    """One occurrence of a schedule.

    Attributes:
        at: the instant, an aware UTC datetime.
        skipped_local: None if the schedule fires at that instant. Otherwise the nonexistent wall-clock time (naive) that the clocks
            skipped; nothing fires, and `at` is that time read with the offset before the change.
        excluded: the number of instants of a local day that calendars exclude, if this stands for them; `at` is the last of them.
    """

    at: datetime
    skipped_local: datetime | None = None
    excluded: int = 0

    @property
    def fires(self) -> bool:
        return self.skipped_local is None and not self.excluded


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
        try:
            return anchor + (self._passed(after, anchor) + 1) * self.interval
        except OverflowError:
            return None

    def latest_until(self, until: datetime, after: datetime, anchor: datetime, /) -> datetime | None:
        count = self._passed(until, anchor)
        if count == 0:
            return None
        at = anchor + count * self.interval
        return at if at > after else None

    def count(self, after: datetime, until: datetime, anchor: datetime, /) -> int:
        return max(0, self._passed(until, anchor) - self._passed(after, anchor))

    def occurrences(self, after: datetime, until: datetime, anchor: datetime, /) -> Iterator[Occurrence]:
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
        return self.at if self.at > after else None

    def latest_until(self, until: datetime, after: datetime, _anchor: datetime, /) -> datetime | None:
        return self.at if after < self.at <= until else None

    def count(self, after: datetime, until: datetime, _anchor: datetime, /) -> int:
        return int(after < self.at <= until)

    def occurrences(self, after: datetime, until: datetime, _anchor: datetime, /) -> Iterator[Occurrence]:
        if after < self.at <= until:
            yield Occurrence(self.at)


@dataclass(frozen=True, slots=True)
class UnionRule:
    """Several rules together; an instant that several of them name is one instant."""

    parts: tuple[Rule, ...]

    def next_after(self, after: datetime, anchor: datetime, /) -> datetime | None:
        return min((at for part in self.parts if (at := part.next_after(after, anchor)) is not None), default=None)

    def latest_until(self, until: datetime, after: datetime, anchor: datetime, /) -> datetime | None:
        return max(
            (at for part in self.parts if (at := part.latest_until(until, after, anchor)) is not None), default=None
        )

    def count(self, after: datetime, until: datetime, anchor: datetime, /) -> int:
        """See `Rule`; instants are enumerated, because rules may share them."""
        return sum(1 for occurrence in self.occurrences(after, until, anchor) if occurrence.skipped_local is None)

    def occurrences(self, after: datetime, until: datetime, anchor: datetime, /) -> Iterator[Occurrence]:
        walks = [part.occurrences(after, until, anchor) for part in self.parts]
        merged = merge(*walks, key=lambda occurrence: (occurrence.at, occurrence.skipped_local is not None))
        for _, same in groupby(merged, key=attrgetter("at", "skipped_local")):
            yield next(same)


class MovedRule(UnionRule):
    """A rule, and the same rule with times moved to other days, without shared instants."""

    __slots__ = ()

    @override
    def count(self, after: datetime, until: datetime, anchor: datetime, /) -> int:
        """See `Rule`; nothing is enumerated."""
        return sum(part.count(after, until, anchor) for part in self.parts)


_MILLISECONDS: Final = MappingProxyType({"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000})
_PART: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h)", re.ASCII)
_LONGEST: Final = timedelta(days=36_525)
_MILLISECOND: Final = timedelta(milliseconds=1)
_ALLOWED: Final = "allowed are numbers with ms, s, m or h, as in 1h30m"


def parse_duration(text: str) -> timedelta:
    """Parse a duration between one millisecond and a hundred years, in whole milliseconds."""
    total, at = Fraction(0), 0
    while at < len(text):
        part = _PART.match(text, at)
        if part is None:
            raise ScheduleError(
                f"duration: cannot read {text[at:]!r}; {_ALLOWED}",
                start=at,
                length=len(text) - at,
                code="invalid-interval",
            )
        total += Fraction(part[1]) * _MILLISECONDS[part[2]]
        at = part.end()
    if not text:
        raise ScheduleError(f"duration: it is missing; {_ALLOWED}", code="invalid-interval")
    if total.denominator != 1 or total < 1 or total > _LONGEST // _MILLISECOND:
        raise ScheduleError(
            f"duration: {text} is out of range; allowed are whole milliseconds from 1ms to 876600h",
            length=len(text),
            code="invalid-interval",
        )
    return timedelta(milliseconds=int(total))


def format_duration(duration: timedelta) -> str:
    """Format a duration as Go's `time.Duration` does: `5m0s`, `1h30m0s`, `1.5s`, `500ms`."""
    milliseconds = duration // _MILLISECOND
    if milliseconds < _MILLISECONDS["s"]:
        return f"{milliseconds}ms"
    hours, rest = divmod(milliseconds, _MILLISECONDS["h"])
    minutes, rest = divmod(rest, _MILLISECONDS["m"])
    whole_seconds, fraction = divmod(rest, _MILLISECONDS["s"])
    seconds = f"{whole_seconds}.{fraction:03}".rstrip("0").rstrip(".") if fraction else str(whole_seconds)
    return (f"{hours}h" if hours else "") + (f"{minutes}m" if hours or minutes else "") + f"{seconds}s"
