"""The reading of cron expressions by croniter, beside that of the calendar.

croniter works on naive wall-clock time, and the rules for clock changes are applied here, because croniter follows other rules.
Expressions that croniter is known to read differently are not compared.
"""

import re
from dataclasses import replace
from datetime import datetime
from typing import Final

from croniter import CroniterError, croniter

from tocsin.domain.schedule import Schedule, timezones
from tocsin.domain.schedule.clock_changes import first_shown
from tocsin.domain.schedule.expression import parse_expression
from tocsin.domain.schedule.instants import SPECIFIED, CalendarRule, instant, seconds, wall_time

_WITH_SECONDS: Final = 6
_FAR: Final = 50
_SAME_ENDS: Final = re.compile(r"\b(\w+)-\1\b", re.IGNORECASE)
_STEPPED_RANGE: Final = re.compile(r"-\w+/")


def disagreements(schedule: Schedule, after: datetime, n: int = 5) -> tuple[str, ...]:
    """Return the expressions whose next `n` instants differ in croniter.

    Both engines follow the rules of the specification, not the policy of the schedule, because the comparison is about reading the
    expression.
    """
    start, differences = instant(seconds(after)), list[str]()
    for expression, rule in zip(schedule.expressions, schedule.calendar_rules, strict=False):
        fires = rule.next_after(start, start) is not None  # if not, croniter would search for a long time
        if fires and not known_to_differ(expression):
            croniter_times = _theirs(expression, schedule.timezone, start, n)
            own_times = _ours(replace(rule, dst=SPECIFIED), start, len(croniter_times))
            if own_times != croniter_times:
                differences.append(expression)
    return tuple(differences)


def known_to_differ(expression: str) -> bool:
    """Whether croniter reads the expression by its own rules, one per line below."""
    *_, month_days, months, week_days = expression.upper().split()
    days = parse_expression(expression).pattern.days
    return (
        _SAME_ENDS.search(expression) is not None  # 5-5 is the whole field
        or "W" in month_days  # 31W is the last day of a shorter month; lists with W, and LW, are refused
        or _STEPPED_RANGE.search(f"{months} {week_days}")
        is not None  # beyond the end of the field, a step starts again
        or (days.either and "#" in week_days)  # either day field becomes both
        or ("*" not in (month_days, week_days) and days.names_every_day)  # 1-7 is a star, */1 is not
    )


def _ours(rule: CalendarRule, start: datetime, n: int) -> list[datetime]:
    instants = list[datetime]()
    at = rule.next_after(start, start)
    while at is not None and len(instants) < n:
        instants.append(at)
        at = rule.next_after(at, start)
    return instants


def _theirs(expression: str, timezone: str, start: datetime, n: int) -> list[datetime]:
    """Return up to `n` instants of croniter, fewer if it cannot parse or stops searching."""
    instants = list[datetime]()
    local = wall_time(seconds(start) + timezones.zone(timezone).span(seconds(start)).offset)
    try:
        walk = croniter(
            expression,
            local,
            ret_type=datetime,
            second_at_beginning=len(expression.split()) == _WITH_SECONDS,
            max_years_between_matches=_FAR,
        )
        while len(instants) < n:
            at = first_shown(timezone, walk.get_next())
            if at is not None and at > start:
                instants.append(at)
    except CroniterError:
        return instants
    return instants
