"""The rules of a schedule about days: named sets of dates, blackouts, and moves.

Everything is text and numbers, as a job's definition stores it, so that decisions look nothing up.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import date, datetime
from typing import Final, Literal, TypeAlias, TypeVar

T = TypeVar("T", int, datetime)

Shift: TypeAlias = Literal["skip", "next_business_day"]
Weekday: TypeAlias = Literal["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"]
WEEKDAYS: Final[tuple[Weekday, ...]] = (
    *("monday", "tuesday", "wednesday", "thursday", "friday"),
    *("saturday", "sunday"),
)

FAR: Final = 2**31
"""A day later than all others."""
LONGEST_SHIFT: Final = 366
"""Days by which an instant moves at most."""
_EPOCH: Final = date(1970, 1, 1).toordinal()
_THURSDAY: Final = 3
_WEEK: Final = 7
_WEEKEND: Final = frozenset({5, 6})


@dataclass(frozen=True, slots=True)
class NamedDays:
    """The days of one calendar.

    Attributes:
        days: ISO dates and ranges of dates with both ends included (`2026-12-24/2026-12-26`), in order.
        weekdays: days of every week.
        until: the last date up to which `days` is known; empty: it needs no later days.
    """

    name: str
    days: tuple[str, ...] = ()
    weekdays: tuple[Weekday, ...] = ()
    until: str = ""


@dataclass(frozen=True, slots=True)
class Blackout:
    """A span of time [start, end) without instants.

    A time without an offset is in the zone of the schedule.
    """

    start: str
    end: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class DayRules:
    """The rules of a schedule about days.

    Attributes:
        exclude: calendars on whose days nothing fires.
        only: calendars outside whose days nothing fires; a day of any of them may fire. Empty: every day may.
        blackout: spans of time in which nothing fires.
        shift: whether the time of an instant on a closed day moves.
    """

    exclude: tuple[NamedDays, ...] = ()
    only: tuple[NamedDays, ...] = ()
    blackout: tuple[Blackout, ...] = ()
    shift: Shift = "skip"


def date_of(day: int) -> date:
    """Return the date of a number of days since 1970."""
    return date.fromordinal(day + _EPOCH)


def weekday_of(day: int) -> int:
    """Return the weekday of days since 1970; 0 is Monday."""
    return (day + _THURSDAY) % _WEEK


def range_of(written: str) -> tuple[int, int]:
    """Return the first day of a range, and the day after; or raise ValueError."""
    first, _, last = written.partition("/")
    start, end = (date.fromisoformat(day).toordinal() - _EPOCH for day in (first, last or first))
    if start > end:
        raise ValueError(f"{written} ends before it begins")
    return start, end + 1


def compact(written: Iterable[str]) -> tuple[str, ...]:
    """Return dates and ranges as ranges in order; raise ValueError for another text."""
    texts: list[str] = []
    for start, end in joined(sorted(map(range_of, written))):
        first, last = date_of(start).isoformat(), date_of(end - 1).isoformat()
        texts.append(first if first == last else f"{first}/{last}")
    return tuple(texts)


def joined(ordered: Iterable[tuple[T, T]]) -> Iterator[tuple[T, T]]:
    """Yield ranges [start, end), given in order; those that touch become one."""
    last: tuple[T, T] | None = None
    for start, end in ordered:
        if last is not None and start <= last[1]:
            last = last[0], max(last[1], end)
            continue
        if last is not None:
            yield last
        last = start, end
    if last is not None:
        yield last


class DaySet:
    """The dates of some calendars, as days since 1970."""

    __slots__ = ("_ends", "_starts", "_weekdays")

    def __init__(self, calendars: Iterable[NamedDays]) -> None:
        calendars = tuple(calendars)
        ranges = list(joined(sorted(range_of(text) for calendar in calendars for text in calendar.days)))
        self._starts = [start for start, _ in ranges]
        self._ends = [end for _, end in ranges]
        self._weekdays = frozenset(WEEKDAYS.index(name) for calendar in calendars for name in calendar.weekdays)

    def __contains__(self, day: int) -> bool:
        place = bisect_right(self._starts, day) - 1
        return (place >= 0 and day < self._ends[place]) or weekday_of(day) in self._weekdays

    @property
    def edges(self) -> list[int]:
        """The days at which a range begins, or has ended."""
        return [*self._starts, *self._ends]

    def steady_until(self, day: int) -> int:
        """Return a later day before which nothing changes."""
        place = bisect_right(self._starts, day) - 1
        if place >= 0 and day < self._ends[place]:
            return self._ends[place]
        if self._weekdays:
            return day + 1
        return self._starts[place + 1] if place + 1 < len(self._starts) else FAR


class OpenDays:
    """The days that `exclude` and `only` leave open."""

    __slots__ = ("_excluded", "_first", "_gap", "_last", "_only", "size")

    def __init__(self, rules: DayRules) -> None:
        self._gap = 0, 0
        """The last search: a day, and the first business day after it. The next search often begins between them."""
        self._excluded = DaySet(rules.exclude)
        self._only = DaySet(rules.only) if rules.only else None
        edges = [*self._excluded.edges, *([] if self._only is None else self._only.edges)]
        self._first, self._last = min(edges, default=0), max(edges, default=0)
        self.size = len(edges)
        """The number of days at which a calendar changes."""

    def is_closed(self, day: int) -> bool:
        return day in self._excluded or (self._only is not None and day not in self._only)

    def closed_from(self, day: int) -> int | None:
        """Return the first closed day at or after a day."""
        closed = day if self.is_closed(day) else self.turn(day)
        return None if closed >= FAR else closed

    def turn(self, day: int) -> int:
        """Return the next open day if this day is closed, and the reverse; or FAR."""
        is_closed = self.is_closed(day)
        return self._search(day, self._steady_until, lambda later: self.is_closed(later) is not is_closed)

    def _search(self, day: int, step: Callable[[int], int], is_wanted: Callable[[int], bool]) -> int:
        """Return the first wanted day that steps reach, or FAR.

        Before the first range and after the last, weeks are alike.
        """
        week = day + _WEEK
        while day <= max(week, self._last + _WEEK):
            day = step(day)
            if day >= FAR:
                break
            if is_wanted(day):
                return day
            if week < day < self._first:
                day = self._first - 1
        return FAR

    def _steady_until(self, day: int) -> int:
        end = self._excluded.steady_until(day)
        return end if self._only is None or day in self._excluded else min(end, self._only.steady_until(day))

    def is_business(self, day: int) -> bool:
        return weekday_of(day) not in _WEEKEND and not self.is_closed(day)

    def next_business(self, day: int) -> int | None:
        """Return the first business day after a day; None: no business day follows."""
        begin, end = self._gap
        if not begin <= day < end:
            found = self._search(
                day,
                lambda d: self.turn(d) if self.is_closed(d) else d + 1,  # no day between them is a business day
                lambda d: self.is_business(d) or begin <= d < end,
            )
            end = found if found >= FAR or self.is_business(found) else end
            self._gap = day, end
        return None if end >= FAR else end

    def first_moved_to(self, day: int) -> int:
        """Return the first day whose instants may move to `day` or a later day."""
        business = (d for d in range(day - 1, day - LONGEST_SHIFT - 1, -1) if self.is_business(d))
        return next((d + 1 for d in business), day - LONGEST_SHIFT)
