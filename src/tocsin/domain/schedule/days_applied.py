"""Calendars applied to a schedule: closed time, and times that move to another day."""

from dataclasses import replace
from datetime import date, datetime, timedelta
from typing import Final

from .clock_changes import first_shown, local_time, parse_moment, shifted
from .closed_time import ClosedTime
from .day_rules import LONGEST_SHIFT, DayRules, OpenDays
from .instants import CalendarRule, DstPolicy
from .moved_pattern import MovedPattern
from .pattern import Pattern
from .rules import MovedRule, OnceRule, Rule, UnionRule
from .schedule import Schedule

_MOVED_BOUND: Final = DstPolicy(gap="shift")
"""A blackout that begins or ends at a skipped wall time does so when the clocks have passed it."""
_JUST_BEFORE: Final = timedelta(microseconds=1)
_EPOCH: Final = date(1970, 1, 1)


def with_days(schedule: Schedule, rules: DayRules) -> Schedule:
    """Return a schedule under rules about days.

    Raises:
        ScheduleError: a time of a blackout cannot be read.
        ValueError: a day of a calendar cannot be read.
    """
    days = OpenDays(rules)
    spans = [(_moment(b.start, schedule), _moment(b.end, schedule), b) for b in rules.blackout]
    closed = ClosedTime(rules, days, schedule.timezone, tuple(sorted(spans, key=lambda span: span[:2])))
    rule = _moving(schedule, days) if rules.shift == "next_business_day" else schedule.rule
    return replace(schedule, rule=rule, days=rules, closed=closed)


def moved_to(schedule: Schedule, at: datetime) -> datetime | None:
    """Return the instant to which the time of an excluded instant moves.

    None: it does not move.
    """
    closed, days = schedule.closed, schedule.days
    if closed is None or days is None or days.shift != "next_business_day" or schedule.interval is not None:
        return None
    moved = _moved(schedule, at, closed.days)
    return moved if moved is not None and schedule.next_after(moved - _JUST_BEFORE, anchor=moved) == moved else None


def _moved(schedule: Schedule, at: datetime, days: OpenDays) -> datetime | None:
    """Return the same wall time of the next business day.

    None: the day of `at` is open, or the time does not exist.
    """
    local = local_time(schedule.timezone, at).replace(tzinfo=None)
    day = (local.date() - _EPOCH).days
    target = days.next_business(day) if days.is_closed(day) else None
    if target is None or target - day > LONGEST_SHIFT:
        return None
    wall = local + timedelta(days=target - day)
    shown = first_shown(schedule.timezone, wall)
    return shifted(schedule.timezone, wall) if shown is None and schedule.dst.gap == "shift" else shown


def _moment(written: str, schedule: Schedule) -> datetime:
    return parse_moment(written, schedule.timezone, _MOVED_BOUND)


def _moving(schedule: Schedule, days: OpenDays) -> Rule:
    """Return the rule of a schedule with the times that move to business days."""
    if isinstance(schedule.rule, OnceRule):
        moved = _moved(schedule, schedule.rule.at, days)
        return schedule.rule if moved is None else UnionRule((schedule.rule, OnceRule(moved)))
    rules = schedule.calendar_rules
    moving = tuple(
        CalendarRule(MovedPattern(rule.pattern, days), rule.timezone, rule.dst)
        for rule in rules
        if isinstance(rule.pattern, Pattern) and not rule.pattern.names_business_days
    )
    if not moving:
        return schedule.rule
    kind = MovedRule if len(rules) == 1 else UnionRule
    return kind((*rules, *moving))
