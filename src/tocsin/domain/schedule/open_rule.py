"""The rule of a schedule with calendars: what it names, without closed time."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from .closed_time import NEVER, ClosedTime
from .rules import Occurrence, Rule

_SEARCHED: Final = 400
"""Closed spans that a search passes beyond those that the calendars list; weekdays and dates repeat after 400 years."""
_JUST_BEFORE: Final = timedelta(microseconds=1)


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
        closed = (piece for piece in self._pieces(after, until) if piece[2])
        return self.named.count(after, until, anchor) - sum(
            self.named.count(begin, end, anchor) for begin, end, _ in closed
        )

    def count_excluded(self, after: datetime, until: datetime, anchor: datetime) -> int:
        """Return the number of instants in (after, until] that do not fire."""
        return self.named.count(after, until, anchor) - self.count(after, until, anchor)

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
