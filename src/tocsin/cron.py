"""The calendar by itself: read a schedule, ask it when it fires.

from tocsin.cron import next_fire_times, parse

parse("every weekday at 9am", "Europe/Berlin").expressions    # ("0 9 * * 1-5",)
next_fire_times("*/15 * * * *", "America/New_York", now, 5)    # five aware UTC datetimes
"""

from .domain.schedule import Schedule, ScheduleError, next_fire_times, parse

__all__ = ["Schedule", "ScheduleError", "next_fire_times", "parse"]
