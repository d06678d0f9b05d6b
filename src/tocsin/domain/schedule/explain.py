"""Everything that is known about a schedule before its use, as data."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Final

from . import timezones
from .bounds import check_fires
from .clock_changes import ClockChange, clock_changes, local_time
from .day_rules import DayRules
from .english import listed, meaning
from .instants import DstPolicy
from .parser import next_instants, parse, zone_in
from .schedule import Schedule

_INSTANTS: Final = 5


@dataclass(frozen=True, slots=True)
class Instant:
    """One coming instant: in UTC, and in the schedule's zone with its offset then."""

    utc: datetime
    local: datetime


@dataclass(frozen=True, slots=True)
class Explanation:
    """The meaning of a schedule.

    Attributes:
        text, timezone: the input.
        meaning: one English sentence, made from the parsed schedule.
        expressions: the cron expressions, or the `@every` or `@at`, that the text means.
        next: the coming instants.
        clock_changes: the effects of coming clock changes, one sentence each.
        warnings: consequences that the author may not expect, one sentence each.
        timezone_database: the release of the zone data, such as `2026a`.
    """

    text: str
    timezone: str
    meaning: str
    expressions: tuple[str, ...]
    next: tuple[Instant, ...]
    clock_changes: tuple[str, ...]
    warnings: tuple[str, ...]
    timezone_database: str


def explain(
    text: str,
    timezone: str | None,
    now: datetime,
    *,
    dst: DstPolicy | None = None,
    days: DayRules | None = None,
    n: int = _INSTANTS,
    is_enough: Callable[[], bool] | None = None,
) -> Explanation:
    """Parse a text and explain it from `now` (aware) on; intervals count from `now`.

    `timezone`: None: the zone with which the phrase ends, or UTC. `is_enough` ends the list of instants before `n`.

    Raises:
        ScheduleError: as in `parse` and `check_fires`.
    """
    timezone = timezone or zone_in(text) or "UTC"
    schedule = parse(text, timezone, dst=dst, days=days)
    check_fires(schedule, now)
    changes = clock_changes(schedule, now, now + AHEAD)
    return Explanation(
        text=text,
        timezone=timezone,
        meaning=meaning(schedule),
        expressions=schedule.expressions,
        next=tuple(
            Instant(at, local_time(timezone, at)) for at in next_instants(schedule, now, n, is_enough=is_enough)
        ),
        clock_changes=tuple(describe(change, timezone) for change in changes),
        warnings=warnings_at(schedule, now),
        timezone_database=timezones.timezone_database().version,
    )


AHEAD: Final = timedelta(days=400)
_SHOWN: Final = 4


def warnings_at(schedule: Schedule, now: datetime) -> tuple[str, ...]:
    """Return the warnings for a schedule registered at `now` (aware), one sentence each."""
    return (*schedule.warnings, *_clock_warnings(schedule, now), *calendar_warnings(schedule.days, now.date()))


WARNED: Final = timedelta(days=60)
"""The time before the last known day of a calendar in which its end is reported."""


def calendar_warnings(rules: DayRules | None, today: date) -> tuple[str, ...]:
    """Return the calendars whose last known day is near or past, one sentence each."""
    if rules is None:
        return ()
    soon = (today + WARNED).isoformat()
    uses = ((rules.exclude, "then none of its days is excluded"), (rules.only, "then nothing fires for it"))
    return tuple(
        f"the calendar {calendar.name} is known up to {calendar.until}; {effect}"
        for calendars, effect in uses
        for calendar in calendars
        if calendar.until and calendar.until <= soon
    )


def describe(change: ClockChange, timezone: str) -> str:
    when = f"on {change.at:%Y-%m-%d} at {change.at:%H:%M} UTC the clocks of {timezone} go"
    moved = f"{when} from {change.wall_before:%H:%M} to {change.wall_after:%H:%M}"
    if change.wall_before.date() != change.wall_after.date():
        moved = f"{when} from {change.wall_before:%Y-%m-%d %H:%M} to {change.wall_after:%Y-%m-%d %H:%M}"
    return f"{moved}: {_effect(change)}"


def _effect(change: ClockChange) -> str:
    shown = [f"{time:%H:%M}" if time.second == 0 else f"{time:%H:%M:%S}" for time in change.times[:_SHOWN]]
    rest = len(change.times) - len(shown)
    times = listed([*shown, f"{rest} more"] if rest else shown)
    do, come = ("do", "come") if len(change.times) > 1 else ("does", "comes")
    if change.effect == "skipped":
        return f"{times} {do} not exist and will not fire"
    if change.effect == "shifted":
        return f"{times} {do} not exist and will fire later by as much"
    if change.effect == "twice":
        return f"{times} {come} twice and will fire both times"
    silence = ", so the repeated stretch is silent" if change.stepping else ""
    return f"{times} {come} twice and will fire the first time only{silence}"


def _clock_warnings(schedule: Schedule, now: datetime) -> tuple[str, ...]:
    return tuple(
        f"{describe(change, schedule.timezone)} (see dst.{change.kind})"
        for change in clock_changes(schedule, now, now + AHEAD)
        if (change.effect == "skipped" and not change.stepping) or (change.effect == "once" and change.stepping)
    )
