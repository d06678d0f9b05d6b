"""A second opinion: the next instants as croniter has them, so that a mistake on either side is noticed early.

croniter is asked on naive wall-clock time, and the rules for clock changes are applied to its answers here, since it
follows others. Where it is known to read an expression differently from `ojs-cron`, its opinion is not asked.
"""

import re
from dataclasses import replace
from datetime import datetime
from typing import Final

from croniter import CroniterError, croniter

from . import timezones
from .expression import parse_expression
from .instants import SPECIFIED, CalendarRule, instant, seconds, wall_time
from .schedule import Schedule
from .wall_clock import first_shown

_WITH_SECONDS: Final = 6
_FAR: Final = 50
_SAME_ENDS: Final = re.compile(r"\b(\w+)-\1\b", re.IGNORECASE)
_STEPPED_RANGE: Final = re.compile(r"-\w+/")


def disagreements(schedule: Schedule, after: datetime, n: int = 5) -> tuple[str, ...]:
    """One sentence for each expression of whose next `n` instants croniter has other ones, with both answers.

    Both are asked under the rules of the specification, whatever the schedule's own wishes for clock changes are: it is
    the reading of the expression that is compared.
    """
    start, found = instant(seconds(after)), list[str]()
    for expression, rule in zip(schedule.expressions, schedule.calendar_rules, strict=False):
        if not known_to_differ(expression):
            theirs = _theirs(expression, schedule.timezone, start, n)
            ours = _ours(replace(rule, dst=SPECIFIED), start, len(theirs))
            if ours != theirs:
                found.append(f"croniter reads {expression!r} otherwise: {_shown(theirs)}; here it is {_shown(ours)}")
    return tuple(found)


def known_to_differ(expression: str) -> bool:
    """Whether croniter reads the expression by rules of its own; each line is one of them."""
    *_, month_days, months, week_days = expression.upper().split()
    days = parse_expression(expression).pattern.days
    return (
        _SAME_ENDS.search(expression) is not None  # 5-5 is the whole field
        or "W" in month_days  # 31W is the last day of a shorter month; lists with W, and LW, are refused
        or _STEPPED_RANGE.search(f"{months} {week_days}") is not None  # over the end of the field, a step begins anew
        or (days.either and "#" in week_days)  # either day field becomes both
        or ("*" not in (month_days, week_days) and days.names_every_day)  # 1-7 is a star, */1 is none
    )


def _ours(rule: CalendarRule, start: datetime, n: int) -> list[datetime]:
    instants = list[datetime]()
    at = rule.next_after(start, start)
    while at is not None and len(instants) < n:
        instants.append(at)
        at = rule.next_after(at, start)
    return instants


def _theirs(expression: str, timezone: str, start: datetime, n: int) -> list[datetime]:
    """Fewer than `n` where croniter cannot read the expression or gives up looking: it has no opinion on the rest."""
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


def _shown(instants: list[datetime]) -> str:
    return ", ".join(f"{at:%Y-%m-%dT%H:%M:%SZ}" for at in instants) or "never"
