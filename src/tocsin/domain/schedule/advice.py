"""What the author of a schedule should know at registration: its warnings, coming clock changes, a second opinion."""

from datetime import datetime, timedelta
from typing import Final

from .clock_changes import ClockChange, clock_changes
from .names import listed
from .referee import disagreements
from .schedule import Schedule

AHEAD: Final = timedelta(days=400)
_SHOWN: Final = 4


def warnings_at(schedule: Schedule, now: datetime) -> tuple[str, ...]:
    """Everything worth a warning, one sentence each, for a schedule that is registered at `now` (aware)."""
    return (*schedule.warnings, *_clock_warnings(schedule, now), *disagreements(schedule, now))


def describe(change: ClockChange, timezone: str) -> str:
    """One sentence on what a change of the clocks does to a schedule."""
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
    """The changes whose effect is no matter of course: fixed times that fall away, a silent hour in a steady pace."""
    return tuple(
        f"{describe(change, schedule.timezone)} (see dst.{change.kind})"
        for change in clock_changes(schedule, now, now + AHEAD)
        if (change.effect == "skipped" and not change.stepping) or (change.effect == "once" and change.stepping)
    )
