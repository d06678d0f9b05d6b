"""Wall-clock times in a zone, and the effect of clock changes on them (`ojs-cron` 5.2)."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from datetime import timezone as fixed_offset
from typing import Final, Literal

from . import timezones
from .closed_time import ClosedTime
from .errors import ScheduleError
from .instants import CalendarRule, DstPolicy, instant, seconds, wall_time
from .schedule import Schedule
from .timezones import EPOCH, Span


def instants_of(timezone: str, local: datetime) -> tuple[datetime, ...]:
    """Return the instants (UTC) of a (naive) wall-clock time, in whole seconds."""
    first = first_shown(timezone, local)
    if first is None:
        return ()
    zone, at = timezones.zone(timezone), seconds(first)
    span = zone.span(at)
    following = zone.span(span.end)
    wall = at + span.offset
    if span.end == following.start and following.wall <= wall < following.expected:
        return first, instant(wall - following.offset)
    return (first,)


def local_time(timezone: str, at: datetime) -> datetime:
    """Return an instant on the wall clock of a zone, with its offset then."""
    offset = timezones.zone(timezone).span(seconds(at)).offset
    return at.astimezone(fixed_offset(timedelta(seconds=offset)))


def is_repeated(timezone: str, at: datetime) -> bool:
    """Whether the clocks of a zone show a repeated time at an instant."""
    span = timezones.zone(timezone).span(seconds(at))
    return seconds(at) + span.offset < span.fresh and wall_time(span.wall) < wall_time(span.fresh)


_SECOND: Final = timedelta(seconds=1)
# The first and the last year are left out, so that no offset exceeds the range of datetime.
_FIRST_YEAR: Final = 2
_LAST_YEAR: Final = 9998
_SHORTEST: Final = len("2027-03-01T09:00")
_EXAMPLE: Final = "at 2027-03-01T09:00:00"


def parse_moment(text: str, timezone: str, dst: DstPolicy) -> datetime:
    """Parse an ISO 8601 date and time; without an offset it is in the zone.

    A repeated wall time means its first occurrence. A nonexistent wall time would never fire; it is refused unless the policy shifts it.
    """
    try:
        at = datetime.fromisoformat(text.replace(" ", "T", 1) if "T" not in text.upper() else text)
    except ValueError:
        at = None
    if at is None or len(text) < _SHORTEST:
        raise ScheduleError(
            f"at: cannot read {text!r}; allowed are a date and a time, as in ISO 8601",
            length=len(text),
            suggestion=_EXAMPLE,
            code="invalid-instant",
        )
    if at.microsecond or not _FIRST_YEAR <= at.year <= _LAST_YEAR:
        raise ScheduleError(
            f"at: {text} is out of range; allowed are whole seconds of the years {_FIRST_YEAR} to {_LAST_YEAR}",
            length=len(text),
            code="invalid-instant",
        )
    if at.tzinfo is not None:
        return at.astimezone(UTC)
    shown = first_shown(timezone, at)
    if shown is None and dst.gap == "skip":
        raise ScheduleError(
            f"at: {text} does not exist in {timezone}, whose clocks skip it",
            length=len(text),
            suggestion=_EXAMPLE,
            code="invalid-instant",
        )
    return shown or shifted(timezone, at)


def first_shown(timezone: str, local: datetime) -> datetime | None:
    """Return the first instant of a (naive) wall-clock time; None: the clocks skip it."""
    span, wall = _reached(timezone, local)
    return EPOCH + (wall - span.offset) * _SECOND if wall >= span.wall else None


def shifted(timezone: str, local: datetime) -> datetime:
    """Return the instant of a skipped (naive) wall-clock time without the clock change."""
    span, wall = _reached(timezone, local)
    return EPOCH + (wall - span.before) * _SECOND


def _reached(timezone: str, local: datetime) -> tuple[Span, int]:
    """Return the span that shows the time (`Zone.showing`), and the time in wall seconds."""
    wall = (local.replace(tzinfo=UTC) - EPOCH) // _SECOND
    return timezones.zone(timezone).showing(wall), wall


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
            yield from _effects(rules, span, schedule.closed)
        at = span.end


def _effects(rules: tuple[CalendarRule, ...], span: Span, closed: ClosedTime | None) -> Iterator[ClockChange]:
    # Stepping and fixed rules may behave differently in the same hour, so each kind is reported separately.
    for stepping in (False, True):
        alike = [rule for rule in rules if rule.pattern.stepping is stepping]
        walls = {wall for rule in alike for wall in rule.walls(*sorted((span.wall, span.expected)))}
        if closed is not None:
            walls = {wall for wall in walls if closed.end_at(instant(wall - span.before)) is None}
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
