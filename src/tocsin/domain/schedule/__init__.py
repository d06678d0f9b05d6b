"""The calendar: the instants that a schedule names (`ojs-cron` 3 to 5, `hip-62`).

    text ──parser──▶ expression | phrase | @every | at ──▶ pattern (wall time) ──instants──▶ UTC

Calendars, blackouts and moved days are put around a parsed schedule: `OpenRule` leaves closed time out, and `moved_pattern` adds
the times that move to business days. A `Pattern` knows only wall-clock time. A `Zone` knows only the offset between wall-clock time and UTC. `instants` combines both
and applies the rules for clock changes. Nothing here reads a clock: every moment is an argument.
"""

from .bounds import without_bounds
from .clock_changes import ClockChange, clock_changes, parse_moment
from .day_rules import WEEKDAYS, Blackout, DayRules, NamedDays, Shift, Weekday, compact, compact_ranges
from .errors import ScheduleError
from .explain import Explanation, Instant, calendar_warnings, explain, warnings_at
from .firing_check import check_fires
from .instants import DstPolicy
from .moved_instants import Moved, moved
from .parser import moved_to, next_fire_times, next_instants, parse, zone_in
from .rules import Occurrence
from .schedule import Schedule
from .timezones import TimezoneDatabase, install, refresh, validate_timezone
from .timezones import database as timezone_database

__all__ = [
    "WEEKDAYS",
    "Blackout",
    "ClockChange",
    "DayRules",
    "DstPolicy",
    "Explanation",
    "Instant",
    "Moved",
    "NamedDays",
    "Occurrence",
    "Schedule",
    "ScheduleError",
    "Shift",
    "TimezoneDatabase",
    "Weekday",
    "calendar_warnings",
    "check_fires",
    "clock_changes",
    "compact",
    "compact_ranges",
    "explain",
    "install",
    "moved",
    "moved_to",
    "next_fire_times",
    "next_instants",
    "parse",
    "parse_moment",
    "refresh",
    "timezone_database",
    "validate_timezone",
    "warnings_at",
    "without_bounds",
    "zone_in",
]
