"""The refusal of schedules that fire at no time, with the reason."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Final

from ..text import utc_text
from .bounds import place_of_end
from .clock_changes import local_time
from .errors import ScheduleError
from .instants import seconds
from .schedule import Schedule

LAST: Final = datetime.max.replace(tzinfo=UTC)
_SECOND: Final = timedelta(seconds=1)
_MICROSECOND: Final = timedelta(microseconds=1)


def check_fires(schedule: Schedule, now: datetime) -> None:
    """Check that a schedule fires after `now` (aware); a single instant may be past.

    Raises:
        ScheduleError: it does not, with the reason.
    """
    if schedule.only_instant is not None and schedule.days is None:
        return
    if schedule.next_after(now, anchor=now) is None:
        raise _past_end(schedule, now) or _never_fires(schedule, now)


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


def _never_fires(schedule: Schedule, now: datetime) -> ScheduleError:
    """Return why a schedule fires at no time after `now`, also without its end."""
    if schedule.days is not None:
        problem = "it fires at no time: `exclude`, `only` and `blackout` leave out each of its times"
        suggestion = "other days, or a calendar that is known for a longer time"
    elif _names_time(schedule, now):
        problem = f"it fires at no time that exists: the clocks of {schedule.timezone} skip each of its times"
        suggestion = "another hour, or `dst.gap: shift`"
    else:
        problem, suggestion = "it fires at no time up to the year 9999", "an earlier year"
    text = schedule.text
    return ScheduleError(
        f"expression: {problem}", text=text, length=len(text), suggestion=suggestion, code="never-fires"
    )


def _names_time(schedule: Schedule, now: datetime) -> bool:
    after = seconds(local_time(schedule.timezone, max(now, schedule.starts_at or now)).replace(tzinfo=UTC))
    walls = (rule.pattern.next(after) for rule in schedule.calendar_rules)
    return any(wall is not None and wall <= seconds(LAST) for wall in walls)
