"""Timetables: the fields of definitions that decide on time, and the last searches in them.

Many jobs have equal timetables. They share one object, so that a process can hold the timetables of a million jobs.

The ticker keeps the last searches of all jobs, so that it searches the calendar once for each instant of a schedule.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final, NamedTuple

from ..definition import CatchUp, JobDefinition, OnCompletion, day_rules
from ..schedule import DayRules, DstPolicy, Occurrence, Schedule, TimezoneDatabase, timezone_database

SHARED: Final = 2**15
"""The number of timetables that jobs share."""


@dataclass(frozen=True, slots=True)
class Timetable:
    """The fields of a definition that decide on time."""

    schedule: str | None
    timezone: str
    dst: DstPolicy | None
    enabled: bool
    catch_up: CatchUp
    catch_up_limit: int
    catch_up_max_age: float
    starting_deadline: float | None
    on_completion: OnCompletion
    is_divided: bool = False
    """Whether the job has a partition, so that `due` names the shard map."""
    days: DayRules | None = None
    """The calendars and blackouts; None: every day is open."""

    @classmethod
    def of(cls, definition: JobDefinition) -> "Timetable":
        """Return the timetable of a definition; equal timetables are one object."""
        return shared(
            definition.schedule,
            definition.timezone,
            definition.dst,
            definition.enabled,
            definition.catch_up,
            definition.catch_up_limit,
            definition.catch_up_max_age,
            definition.starting_deadline,
            definition.on_completion,
            definition.partition is not None,
            day_rules(definition.exclude, definition.only, definition.blackout, definition.shift),
        )

    def has_same_instants_as(self, other: "Timetable") -> bool:
        mine = self.schedule, self.timezone, self.dst, self.days
        return mine == (other.schedule, other.timezone, other.dst, other.days)


shared: Final = lru_cache(SHARED)(Timetable)
"""Returns the timetable with the given fields; equal timetables are one object."""


SCHEDULES: Final = 2**15
"""The number of schedules whose searches are remembered."""
WINDOWS: Final = 3
"""The number of searches that are remembered for each schedule: those of one decision, and one more."""


_FAR: Final = datetime(9998, 1, 1, tzinfo=UTC)
"""Later than all instants that are searched."""


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
        if schedule.interval is not None:  # each job counts from its own anchor, and the search is short
            return _search(schedule, after, anchor)
        database = timezone_database()
        if self._database is not database:
            self._windows.clear()
            self._database = database
        windows = self._windows.get(schedule, ())
        for window in windows:
            if window.after <= after and (window.at is None or after < window.at):
                return window
        if not windows and len(self._windows) >= SCHEDULES:
            del self._windows[next(iter(self._windows))]
        search = _search(schedule, after, anchor)
        self._windows[schedule] = (search, *windows[: WINDOWS - 1])
        return search


def _search(schedule: Schedule, after: datetime, anchor: datetime) -> _Window:
    """Return the window up to the first instant later than `after` that needs a decision."""
    at = schedule.next_after(after, anchor=anchor)
    if at is None and schedule.days is None:
        return _Window(after, None, fires=False)
    if at is not None and not schedule.may_skip(after, at) and schedule.is_open(after, at):
        return _Window(after, at, fires=True)
    occurrences = schedule.occurrences(after, at or _FAR, anchor=anchor)
    return _Window(after, next((occurrence.at for occurrence in occurrences), at), fires=False)
