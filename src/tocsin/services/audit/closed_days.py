"""The days on which a job may not fire, by its definition.

It shares nothing with the search of the schedule, which looks at spans of closed days, so that each is a check of the other.
"""

from collections.abc import Sequence
from datetime import datetime

from ...domain.definition import Calendar, JobDefinition
from ...domain.schedule import DstPolicy, parse_moment
from ...domain.schedule.clock_changes import local_time


def closing(rule: JobDefinition, at: datetime) -> str | None:
    """Return why a job may not fire at an instant; None: it may."""
    if not rule.exclude and not rule.only and not rule.blackout:
        return None
    local = local_time(rule.timezone, at)
    day, weekday = local.date().isoformat(), f"{local:%A}".lower()
    for calendar in rule.exclude:
        if _has(calendar, day, weekday):
            return f"{day} is a day of {calendar.name}"
    if rule.only and not any(_has(calendar, day, weekday) for calendar in rule.only):
        return f"{day} is no day of {_names(rule.only)}"
    for span in rule.blackout:
        start, end = (parse_moment(text, rule.timezone, DstPolicy(gap="shift")) for text in (span.start, span.end))
        if start <= at < end:
            return f"a blackout lasts from {span.start} to {span.end}"
    return None


def _has(calendar: Calendar, day: str, weekday: str) -> bool:
    # ISO dates are ordered as texts.
    ranges = ((text.partition("/")[0], text.rpartition("/")[2]) for text in calendar.days)
    return weekday in calendar.weekdays or any(first <= day <= last for first, last in ranges)


def _names(calendars: Sequence[Calendar]) -> str:
    return " or ".join(calendar.name for calendar in calendars)
