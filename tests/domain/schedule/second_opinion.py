"""The reading of cron expressions by croniter, beside that of the calendar."""

import re
from contextlib import suppress
from datetime import datetime
from typing import Final

from croniter import CroniterError, croniter

from tocsin.domain.schedule import next_instants, parse, timezones
from tocsin.domain.schedule.clock_changes import first_shown
from tocsin.domain.schedule.expression import parse_expression
from tocsin.domain.schedule.instants import seconds, wall_time

_SAME_ENDS: Final = re.compile(r"\b(\w+)-\1\b", re.IGNORECASE)
_STEPPED_RANGE: Final = re.compile(r"-\w+/")


def differs(expression: str, timezone: str, start: datetime) -> bool:
    """Return whether croniter has other next instants, with the rules for clock changes applied to its wall times."""
    theirs, local = list[datetime](), wall_time(seconds(start) + timezones.zone(timezone).span(seconds(start)).offset)
    with suppress(CroniterError):
        has_seconds = len(expression.split()) == 6
        walk = croniter(expression, local, datetime, second_at_beginning=has_seconds, max_years_between_matches=50)
        while len(theirs) < 5:
            at = first_shown(timezone, walk.get_next())
            if at is not None and at > start:
                theirs.append(at)
    return next_instants(parse(expression, timezone), start, len(theirs)) != theirs


def known_to_differ(expression: str) -> bool:
    """Whether croniter reads the expression by its own rules, one per line below."""
    *_, month_days, months, week_days = expression.upper().split()
    days = parse_expression(expression).pattern.days
    return (
        _SAME_ENDS.search(expression) is not None  # 5-5 is the whole field
        or "W" in month_days  # 31W is the last day of a shorter month; lists with W, and LW, are refused
        or _STEPPED_RANGE.search(f"{months} {week_days}") is not None  # beyond its end, a step starts again
        or (days.either and "#" in week_days)  # either day field becomes both
        or ("*" not in (month_days, week_days) and days.names_every_day)  # 1-7 is a star, */1 is not
    )
