"""The bounds of a schedule, and the refusal of schedules that never fire."""

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Final

from ..text import utc_text
from .clock_changes import local_time, parse_moment
from .closed_time import NEVER
from .errors import ScheduleError, placed
from .instants import DstPolicy, seconds
from .schedule import Schedule

_BOUND: Final = re.compile(r"\s+(from|until)\s+(?=\d{4}-\d)", re.IGNORECASE | re.ASCII)
_EXAMPLE: Final = "every 5 minutes from 2027-03-01T09:00 until 2027-04-01T00:00"
_ALMOST_A_SECOND: Final = timedelta(microseconds=999_999)


def without_bounds(text: str) -> str:
    """Return the text of a schedule without its bounds."""
    first = _BOUND.search(text)
    return text if first is None else text[: first.start()]


def bounds_of(text: str, timezone: str, dst: DstPolicy) -> tuple[datetime | None, datetime | None]:
    """Return the moments (UTC) between which a text fires, both included; None: no limit.

    Raises:
        ScheduleError: a moment cannot be read, or the bounds are not in order.
    """
    words = list(_BOUND.finditer(text))
    if not words:
        return None, None
    if [word[1].lower() for word in words] not in (["from", "until"], ["from"], ["until"]):
        raise ScheduleError(
            "expression: a schedule has at most one `from`, and then at most one `until`",
            text=text,
            start=words[-1].start(1),
            length=len(words[-1][1]),
            suggestion=_EXAMPLE,
            code="invalid-instant",
        )
    moments: dict[str, datetime] = {}
    for word, end in zip(words, [*(word.start() for word in words[1:]), len(text)], strict=True):
        with placed(text, word.end()):
            moments[word[1].lower()] = parse_moment(text[word.end() : end].rstrip(), timezone, dst)
    starts_at, ends_at = moments.get("from"), moments.get("until")
    if starts_at is not None and ends_at is not None and ends_at < starts_at:
        raise ScheduleError(
            "expression: it ends before it starts",
            text=text,
            start=words[-1].start(1),
            length=len(text) - words[-1].start(1),
            suggestion=_EXAMPLE,
            code="never-fires",
        )
    return starts_at, ends_at


def check_fires(schedule: Schedule, now: datetime) -> None:
    """Raise ScheduleError if a schedule never fires after `now`; one instant may be past."""
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
    shown = local_time(schedule.timezone, following + _ALMOST_A_SECOND).isoformat(timespec="seconds")
    if end <= now:
        problem = f"the end is past (now is {utc_text(now, 'seconds')}), so it never fires"
    else:
        problem = f"the end is before the next time ({shown}), so it never fires"
    *_, word = _BOUND.finditer(schedule.text)
    return ScheduleError(
        f"until: {problem}",
        text=schedule.text,
        start=word.start(1),
        length=len(schedule.text.rstrip()) - word.start(1),
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
    return any(wall is not None and wall <= seconds(NEVER) for wall in walls)
