"""The calendar: the instants that a schedule names (`ojs-cron` 3 to 5, `hip-62`).

    text ──parser──▶ expression | phrase | @every | at ──▶ pattern (wall time) ──instants──▶ UTC

A `Pattern` knows only wall-clock time. A `Zone` knows only the offset between wall-clock time and UTC. `instants` combines both
and applies the rules for clock changes. Nothing here reads a clock: every moment is an argument.
"""

from .bounds import without_bounds
from .clock_changes import ClockChange, clock_changes
from .errors import ScheduleError
from .explain import Explanation, Instant, explain, warnings_at
from .instants import DstPolicy
from .moved_instants import Moved, moved
from .parser import check_fires, next_fire_times, next_instants, parse, zone_in
from .rules import Occurrence
from .schedule import Schedule
from .timezones import TimezoneDatabase, install, refresh, validate_timezone
from .timezones import database as timezone_database

__all__ = [
    "ClockChange",
    "DstPolicy",
    "Explanation",
    "Instant",
    "Moved",
    "Occurrence",
    "Schedule",
    "ScheduleError",
    "TimezoneDatabase",
    "check_fires",
    "clock_changes",
    "explain",
    "install",
    "moved",
    "next_fire_times",
    "next_instants",
    "parse",
    "refresh",
    "timezone_database",
    "validate_timezone",
    "warnings_at",
    "without_bounds",
    "zone_in",
]
