"""Read a schedule and compute its instants, without a running Tocsin.

A schedule is a cron expression of five fields (or six, with seconds first), an alias such as `@daily`, an interval such
as `@every 1h30m`, a single instant such as `at 2027-03-01T09:00`, or an English phrase.

    >>> from datetime import UTC, datetime
    >>> from tocsin.cron import next_fire_times, parse
    >>> parse("every weekday at 9am", "Europe/Berlin").expressions
    ('0 9 * * 1-5',)
    >>> now = datetime(2026, 3, 27, 12, 0, tzinfo=UTC)
    >>> for instant in next_fire_times("every weekday at 9am", "Europe/Berlin", now, 2):
    ...     print(instant.isoformat())
    2026-03-30T07:00:00+00:00
    2026-03-31T07:00:00+00:00

A text that cannot be read raises `ScheduleError`, which names the place and suggests a correction.

    >>> parse("every wekday at 9am")
    Traceback (most recent call last):
    ...
    tocsin.domain.schedule.errors.ScheduleError: phrase: cannot make sense of 'wekday' here
      every wekday at 9am
            ^^^^^^
    try: weekday
"""

from .domain.schedule import (
    ClockChange,
    DstPolicy,
    Explanation,
    Occurrence,
    Schedule,
    ScheduleError,
    clock_changes,
    explain,
    next_fire_times,
    parse,
)

__all__ = [
    "ClockChange",
    "DstPolicy",
    "Explanation",
    "Occurrence",
    "Schedule",
    "ScheduleError",
    "clock_changes",
    "explain",
    "next_fire_times",
    "parse",
]
