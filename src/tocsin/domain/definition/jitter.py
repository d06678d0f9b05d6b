"""The rule for a jitter: it fits between two instants of the schedule."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise
from typing import Final

from .. import duration
from ..schedule import Schedule
from .errors import DefinitionProblem

MAX_JITTER_S: Final = 86_400.0
"""The longest jitter: a day."""
_COMPARED: Final = 100
"""Instants of a schedule that are looked at for its shortest interval."""
_SPAN: Final = timedelta(days=400)
_BEGIN: Final = datetime(2028, 1, 1, tzinfo=UTC)
"""The time from which they are looked at if the schedule has no bounds, always the same, in a leap year."""
_EARLIEST: Final = datetime(3, 1, 1, tzinfo=UTC)
_LATEST: Final = datetime(9998, 1, 1, tzinfo=UTC)
"""Between these times, dates that are `_SPAN` away can be written."""
_JUST_BEFORE: Final = timedelta(seconds=1)


def jitter_problems(jitter: float, schedule: Schedule | None) -> Iterator[DefinitionProblem]:
    """Yield the problems of a jitter in seconds; 0: the job has none."""
    if not jitter:
        return
    value = duration.short(jitter)
    if schedule is None:
        reason = "only starts by a schedule are delayed: give the job a schedule, or leave it out"
        yield DefinitionProblem(reason, field="jitter", value=value, code="exclusive-fields")
    elif jitter > MAX_JITTER_S:
        yield DefinitionProblem("must be at most 24h", field="jitter", value=value, code="out-of-range")
    elif (interval := _shortest_interval(schedule)) is not None and jitter >= interval:
        reason = f"must be less than {duration.short(interval)}, the time between two instants of the schedule"
        yield DefinitionProblem(reason, field="jitter", value=value, code="out-of-range")


def _shortest_interval(schedule: Schedule) -> float | None:
    """Return the seconds between the closest of the first instants; None: there are not two."""
    if schedule.interval is not None:
        return schedule.interval.total_seconds()
    begin = _begin(schedule) - _JUST_BEFORE
    fires = (each.at for each in schedule.occurrences(begin, begin + _SPAN, anchor=begin) if each.fires)
    return min(((later - at).total_seconds() for at, later in pairwise(islice(fires, _COMPARED))), default=None)


def _begin(schedule: Schedule) -> datetime:
    """Return the time from which the instants are looked at."""
    if schedule.starts_at is not None:
        return min(schedule.starts_at, _LATEST)
    return _BEGIN if schedule.ends_at is None else min(_BEGIN, max(schedule.ends_at, _EARLIEST) - _SPAN)
