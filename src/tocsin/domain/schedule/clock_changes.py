"""The effect of clock changes: times lost, shifted, or repeated (`ojs-cron` 5.2)."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from . import timezones
from .instants import CalendarRule, instant, seconds, wall_time
from .schedule import Schedule
from .zones import Span


@dataclass(frozen=True, slots=True)
class ClockChange:
    """One clock change that affects a schedule.

    Attributes:
        at: the instant of the change, aware, UTC.
        kind: `gap`: the clocks skip wall time; `fold`: they repeat wall time.
        wall_before, wall_after: the wall times just before and just after, naive.
        times: the wall times, naive, that the schedule names within the skipped or repeated stretch, each once.
        stepping: whether the schedule steps through those hours instead of naming fixed times in them.
        effect: the effect on the times: `skipped`, `shifted`, fired `once` (at their first occurrence), or fired `twice`.
    """

    at: datetime
    kind: Literal["gap", "fold"]
    wall_before: datetime
    wall_after: datetime
    times: tuple[datetime, ...]
    stepping: bool
    effect: Literal["skipped", "shifted", "once", "twice"]


def clock_changes(schedule: Schedule, after: datetime, until: datetime) -> Iterator[ClockChange]:
    """Return the changes in (after, until] that affect the schedule, in order."""
    rules = schedule.calendar_rules
    if not rules:
        return
    zone, at, end = timezones.zone(schedule.timezone), seconds(after) + 1, seconds(until)
    while at <= end:
        span = zone.span(at)
        if span.start >= at and span.offset != span.before:
            yield from _effects(rules, span)
        at = span.end


def _effects(rules: tuple[CalendarRule, ...], span: Span) -> Iterator[ClockChange]:
    # Stepping and fixed rules may behave differently in the same hour, so each kind is reported separately.
    for stepping in (False, True):
        alike = [rule for rule in rules if rule.pattern.stepping is stepping]
        walls = {wall for rule in alike for wall in rule.walls(*sorted((span.wall, span.expected)))}
        if walls:
            yield ClockChange(
                instant(span.start),
                "gap" if span.offset > span.before else "fold",
                wall_time(span.expected),
                wall_time(span.wall),
                tuple(wall_time(wall) for wall in sorted(walls)),
                stepping,
                _effect(alike[0], span),
            )


def _effect(rule: CalendarRule, span: Span) -> Literal["skipped", "shifted", "once", "twice"]:
    if span.offset > span.before:
        return "skipped" if rule.dst.gap == "skip" else "shifted"
    return "twice" if rule.fires_twice else "once"
