"""Everything that is known about a schedule before its use, as data."""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from typing import Final

from . import timezones
from .bounds import check_fires
from .clock_changes import ClockChange, clock_changes, first_shown, local_time
from .day_rules import DayRules
from .english import listed, meaning
from .expression import parse_expression
from .instants import SPECIFIED, CalendarRule, DstPolicy, instant, seconds, wall_time
from .parser import next_instants, parse, zone_in
from .schedule import Schedule

_INSTANTS: Final = 5


# Registration compares both engines, so a mistake of either shows there. croniter works on naive wall-clock time, and the rules for clock changes are
# applied here, because croniter follows other rules. Expressions that croniter is known to read differently are not compared.

_WITH_SECONDS: Final = 6
_FAR: Final = 50
_SAME_ENDS: Final = re.compile(r"\b(\w+)-\1\b", re.IGNORECASE)
_STEPPED_RANGE: Final = re.compile(r"-\w+/")


def disagreements(schedule: Schedule, after: datetime, n: int = 5) -> tuple[str, ...]:
    """Return a sentence for each expression whose next `n` instants differ in croniter.

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
                differences.append(
                    f"croniter reads {expression!r} otherwise: {_shown(croniter_times)}; here it is {_shown(own_times)}"
                )
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
    from croniter import CroniterError, croniter  # noqa: PLC0415 - only a registration compares

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


@dataclass(frozen=True, slots=True)
class LocalInstant:
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
    next: tuple[LocalInstant, ...]
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
            LocalInstant(at, local_time(timezone, at)) for at in next_instants(schedule, now, n, is_enough=is_enough)
        ),
        clock_changes=tuple(describe(change, timezone) for change in changes),
        warnings=warnings_at(schedule, now),
        timezone_database=timezones.timezone_database().version,
    )


AHEAD: Final = timedelta(days=400)
_SHOWN: Final = 4


def warnings_at(schedule: Schedule, now: datetime) -> tuple[str, ...]:
    """Return the warnings for a schedule registered at `now` (aware), one sentence each."""
    clocks = (*_clock_warnings(schedule, now), *disagreements(schedule, now))
    return (*schedule.warnings, *clocks, *calendar_warnings(schedule.days, now.date()))


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
