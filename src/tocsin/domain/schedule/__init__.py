"""The calendar: which instants a schedule names, through every change of the clocks (`ojs-cron` 3 to 5, `hip-62`).

    text ──reading──▶ expression | phrase | @every | at ──▶ pattern (wall time) ──instants──▶ UTC

A `Pattern` knows only the wall clock, a `Zone` only how a wall clock stands to UTC; `instants` is the one place where
both meet and where the rules for clock changes are applied. Nothing here reads a clock: every moment is an argument.
"""

from .clock_changes import ClockChange, clock_changes
from .errors import ScheduleError
from .explain import Explanation, Instant, explain, warnings_at
from .instants import DstPolicy
from .parser import next_fire_times, next_instants, parse
from .rules import Occurrence
from .schedule import Schedule
from .timezones import TimezoneDatabase, install, refresh, validate_timezone

__all__ = [
    "ClockChange",
    "DstPolicy",
    "Explanation",
    "Instant",
    "Occurrence",
    "Schedule",
    "ScheduleError",
    "TimezoneDatabase",
    "clock_changes",
    "explain",
    "install",
    "next_fire_times",
    "next_instants",
    "parse",
    "refresh",
    "validate_timezone",
    "warnings_at",
]
