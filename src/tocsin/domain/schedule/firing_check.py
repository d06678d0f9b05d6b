"""The refusal of schedules that fire at no time, with the reason."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Final, Literal

from ..text import utc_text
from .bounds import place_of_end
from .clock_changes import local_time
from .errors import ScheduleError
from .instants import seconds
from .schedule import Schedule

LAST: Final = datetime.max.replace(tzinfo=UTC)
_SECOND: Final = timedelta(seconds=1)
_MICROSECOND: Final = timedelta(microseconds=1)
_Reason = Literal["excluded", "skipped", "too-late"]

_REASONS: Final[Mapping[_Reason, tuple[str, str]]] = MappingProxyType(
    {
        "excluded": (
            "it fires at no time: `exclude`, `only` and `blackout` leave out each of its times",
            "other days, or a calendar that is known for a longer time",
        ),
        "skipped": (
            "it fires at no time that exists: the clocks of {timezone} skip each of its times",
            "another hour, or `dst.gap: shift`",
        ),
        "too-late": ("it fires at no time up to the year 9999", "an earlier year"),
    }
)
"""Each reason, and what to write instead."""


def check_fires(schedule: Schedule, now: datetime) -> None:
    """Check that a schedule fires after `now` (aware); a single instant may be past.

    Raises:
        ScheduleError: it does not, with the reason.
    """
    if schedule.only_instant is not None and schedule.days is None:
        return
    if schedule.next_after(now, anchor=now) is None:
        raise _past_end(schedule, now) or _error(schedule, _reason(schedule, now))


def check_bounds(schedule: Schedule) -> None:
    """Check that a schedule with bounds fires between them.

    Raises:
        ScheduleError: it does not, with the reason.
    """
    start = schedule.starts_at
    if start is not None:
        check_fires(schedule, start - _SECOND)


def _past_end(schedule: Schedule, now: datetime) -> ScheduleError | None:
    """Return the error if the schedule would fire later without its end."""
    end = schedule.ends_at
    following = None if end is None else replace(schedule, ends_at=None).next_after(now, anchor=now)
    if end is None or following is None:
        return None
    # An end is written in whole seconds, so the instant of an interval is rounded up.
    shown = local_time(schedule.timezone, following + (_SECOND - _MICROSECOND)).isoformat(timespec="seconds")
    if end <= now:
        problem = f"the end is past (now is {utc_text(now, 'seconds')}), so it never fires"
    else:
        problem = f"the end is before the next time ({shown}), so it never fires"
    start, length = place_of_end(schedule.text)
    return ScheduleError(
        f"until: {problem}",
        text=schedule.text,
        start=start,
        length=length,
        suggestion=f"{shown} or later, or no `until`",
        code="never-fires",
    )


def _reason(schedule: Schedule, now: datetime) -> _Reason:
    """Return why a schedule fires at no time after `now`, also without its end."""
    if schedule.days is not None:
        return "excluded"
    zone = schedule.timezone
    after = seconds(local_time(zone, max(now, schedule.starts_at or now)).replace(tzinfo=UTC))
    walls = (rule.pattern.next(after) for rule in schedule.calendar_rules)
    return "skipped" if any(wall is not None and wall <= seconds(LAST) for wall in walls) else "too-late"


def _error(schedule: Schedule, reason: _Reason) -> ScheduleError:
    problem, suggestion = _REASONS[reason]
    return ScheduleError(
        "expression: " + problem.format(timezone=schedule.timezone),
        text=schedule.text,
        length=len(schedule.text),
        suggestion=suggestion,
        code="never-fires",
    )
