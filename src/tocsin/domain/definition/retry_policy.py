"""The rules for retries, and for the recovery from lost workers."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise
from typing import Final, Literal

from pydantic import Field

from .. import duration
from ..schedule import Schedule
from .errors import DefinitionProblem
from .fields import Seconds, StoredModel, Text

DEFAULT_MAX_DEATHS: Final = 3
"""Workers that a step of an execution may lose, unless the definition of its job says otherwise."""


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
    if schedule.interval is not None:
        return schedule.interval.total_seconds()
    begin = _BEGIN if schedule.ends_at is None else min(_BEGIN, max(schedule.ends_at, _EARLIEST) - _SPAN)
    begin = (begin if schedule.starts_at is None else min(schedule.starts_at, _LATEST)) - _JUST_BEFORE
    fires = (each.at for each in schedule.occurrences(begin, begin + _SPAN, anchor=begin) if each.fires)
    return min(((later - at).total_seconds() for at, later in pairwise(islice(fires, _COMPARED))), default=None)


class RecoveryPolicy(StoredModel):
    """The rule for tasks whose workers are lost.

    A worker is lost if it is not heard for 30 seconds. The attempt then runs again, and `retry` does not count it.
    """

    max_deaths: int = Field(default=DEFAULT_MAX_DEATHS, ge=1, le=20, strict=True)
    """The number of lost workers after which a step fails as `worker_lost`, over all attempts of an execution. With 1, a task that only
    shares its worker with the cause of the loss fails too."""


class RetryPolicy(StoredModel):
    """The rule for retries (hip-62, Retry Policy).

    `max_attempts` includes the first attempt. Delays grow until `max_delay`.
    """

    max_attempts: int = Field(default=3, ge=1, le=100, strict=True)
    """The number of attempts, the first included."""
    initial_delay: Seconds = 30.0
    """The delay before the second attempt."""
    multiplier: float = Field(default=2.0, ge=1, strict=True)
    """The factor or exponent by which delays grow; see `backoff`."""
    max_delay: Seconds = 300.0
    """The limit of the delay between two attempts."""
    jitter: float = Field(default=0.1, ge=0, le=1, strict=True)
    """The share of a delay by which it may be longer or shorter."""
    max_delay_with_jitter: bool = False
    """True: `max_delay` also limits the delay with its jitter (ojs-retry §5.3).

    In hip-62 the jitter is added after the limit.
    """
    backoff: Literal["exponential", "linear", "polynomial", "none"] = "exponential"
    """The growth of delays with the number of failures n (ojs-retry §3).

    `exponential`: `multiplier^(n-1)`. `linear`: `n`. `polynomial`: `n^multiplier`. `none`: constant.
    """
    non_retryable_errors: tuple[Text, ...] = ()
    """Types of errors that are not retried; `*` at the end covers every type with that prefix."""
