"""The last calendar searches for each schedule.

The ticker keeps them for all jobs, so that it searches the calendar once for each instant of a schedule.
"""

from collections.abc import Iterator
from datetime import datetime
from typing import Final, NamedTuple

from ..schedule import Occurrence, Schedule, TimezoneDatabase, timezone_database

SCHEDULES: Final = 2**15
"""The number of schedules whose searches are remembered."""
WINDOWS: Final = 3
"""The number of searches that are remembered for each schedule: those of one decision, and one more."""


class _Window(NamedTuple):
    """The result of a search: nothing needs a decision between `after` and `at`."""

    after: datetime
    at: datetime | None
    """None: the schedule does not fire any more."""
    fires: bool
    """Whether the schedule fires at `at`, and skips no time until then."""


class Lookahead:
    """Remembers the first occurrence after a time, for each schedule.

    The memory changes no result: a search that it does not cover, or with newer zone data, searches the calendar again.
    """

    __slots__ = ("_database", "_windows")

    def __init__(self) -> None:
        self._windows: dict[Schedule, tuple[_Window, ...]] = {}
        self._database: TimezoneDatabase | None = None

    def next_at(self, schedule: Schedule, after: datetime, anchor: datetime) -> datetime | None:
        """Return the first instant later than `after` that needs a decision.

        At that time the schedule fires, or skips a nonexistent wall time. None: the schedule does not fire any more.
        """
        return self._first(schedule, after, anchor).at

    def occurrences(
        self, schedule: Schedule, after: datetime, until: datetime, anchor: datetime
    ) -> Iterator[Occurrence]:
        """Yield the occurrences in (after, until], as `Schedule.occurrences` does.

        Usually this is a single occurrence, which the last search found. The search for the next occurrence proves
        that there is no second, and is remembered for the next call.
        """
        _, first, fires = self._first(schedule, after, anchor)
        if first is not None and fires:
            if first > until:
                return
            _, second, fires = self._first(schedule, first, anchor)
            if second is not None and fires and second > until:
                yield Occurrence(first)
                return
        yield from schedule.occurrences(after, until, anchor=anchor)

    def _first(self, schedule: Schedule, after: datetime, anchor: datetime) -> _Window:
        """Return a window that contains `after`."""
        if schedule.interval is not None:  # each job counts from its own anchor, and the search is short
            return _Window(after, schedule.next_after(after, anchor=anchor), fires=True)
        database = timezone_database()
        if self._database is not database:
            self._windows.clear()
            self._database = database
        windows = self._windows.get(schedule, ())
        for window in windows:
            if window.after <= after and (window.at is None or after < window.at):
                return window
        at = schedule.next_after(after, anchor=anchor)
        fires = at is not None and not schedule.may_skip(after, at)
        if at is not None and not fires:
            at = next((occurrence.at for occurrence in schedule.occurrences(after, at, anchor=anchor)), at)
        if not windows and len(self._windows) >= SCHEDULES:
            del self._windows[next(iter(self._windows))]
        found = _Window(after, at, fires)
        self._windows[schedule] = (found, *windows[: WINDOWS - 1])
        return found
