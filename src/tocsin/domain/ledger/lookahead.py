"""The last calendar search of a job.

The ticker keeps it, so that it searches the calendar once for each instant.
"""

from collections.abc import Iterator
from datetime import datetime

from ..schedule import Occurrence, Schedule, TimezoneDatabase, timezone_database


class Lookahead:
    """Remembers the first occurrence after one time.

    The memory changes no result: a search with other arguments, or with newer zone data, searches the calendar again.
    """

    __slots__ = ("_after", "_anchor", "_at", "_database", "_fires", "_schedule")

    def __init__(self) -> None:
        self._schedule: Schedule | None = None
        self._after: datetime | None = None
        self._anchor: datetime | None = None
        self._database: TimezoneDatabase | None = None
        self._at: datetime | None = None
        self._fires = False

    def next_at(self, schedule: Schedule, after: datetime, anchor: datetime) -> datetime | None:
        """Return the first instant later than `after` that needs a decision.

        At that time the schedule fires, or skips a nonexistent wall time. None: the schedule does not fire any more.
        """
        at, _ = self._first(schedule, after, anchor)
        return at

    def occurrences(
        self, schedule: Schedule, after: datetime, until: datetime, anchor: datetime
    ) -> Iterator[Occurrence]:
        """Yield the occurrences in (after, until], as `Schedule.occurrences` does.

        Usually this is a single occurrence, which the last search found. The search for the next occurrence proves
        that there is no second, and is remembered for the next call.
        """
        first, fires = self._first(schedule, after, anchor)
        if first is not None and fires:
            if first > until:
                return
            second, fires = self._first(schedule, first, anchor)
            if second is not None and fires and second > until:
                yield Occurrence(first)
                return
        yield from schedule.occurrences(after, until, anchor=anchor)

    def _first(self, schedule: Schedule, after: datetime, anchor: datetime) -> tuple[datetime | None, bool]:
        """Return the first instant after a time, and whether no time is skipped until then."""
        counted_from = None if schedule.interval is None else anchor
        database = timezone_database()
        key = (schedule, after, counted_from)
        if self._database is not database or (self._schedule, self._after, self._anchor) != key:
            at = schedule.next_after(after, anchor=anchor)
            fires = at is not None and not schedule.may_skip(after, at)
            if at is not None and not fires:
                at = next((occurrence.at for occurrence in schedule.occurrences(after, at, anchor=anchor)), at)
            self._at, self._fires = at, fires
            self._schedule, self._after, self._anchor, self._database = *key, database
        return self._at, self._fires
