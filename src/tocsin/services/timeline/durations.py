"""Durations of executions over time."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from math import ceil, gcd
from typing import Final

from pydantic import ConfigDict

from ...domain.execution_counts import PERIOD, period_of, start_of
from ...domain.replay import Past
from ...domain.schedule import ScheduleError
from ...domain.schedule.clock_changes import instants_of, local_time, shifted
from ...domain.schedule.timezones import validate_timezone
from ...ports import History
from ...ports.queries import CountQuery, InvalidQuery
from ..calculations import Calculator, Effort, in_place
from .marks import Buckets
from .model import Span, Window
from .reader import MAX_PASSED

MAX_READ: Final = 20_000
"""Durations that are read for an answer; of more executions, it is a sample."""
MAX_SLICES: Final = 400
"""Spans of which a sample has the first executions."""
_ENDED: Final = frozenset({"completed", "failed", "cancelled"})
MAX_DAYS: Final = 400
_DAY: Final = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class CalendarDay:
    """A local day: its executions by status, and the instants that were missed."""

    day: date
    completed: int
    failed: int
    skipped: int
    missed: int


async def read_calendar(
    history: History, past: Past, window: Window, timezone: str, calculate: Calculator
) -> list[CalendarDay]:
    """Return the local days that a window touches.

    Raises:
        InvalidQuery: the zone is unknown, or the window has too many days.
    """
    try:
        zone = validate_timezone(timezone)
    except ScheduleError as error:
        raise InvalidQuery("timezone", timezone, str(error)) from None
    if window.until - window.since > MAX_DAYS * _DAY:
        raise InvalidQuery("until", window.until.isoformat(), f"must be at most {MAX_DAYS} days after `since`")
    days = [local_time(zone, window.since).date()]
    while days[-1] < local_time(zone, window.until - timedelta(microseconds=1)).date():
        days.append(days[-1] + _DAY)
    edges = [_start(zone, day) for day in (*days, days[-1] + _DAY)]
    spans = [Span(start, end) for start, end in pairwise(edges)]
    job, since = past.job, start_of(period_of(edges[0]))
    until = start_of(-(-(edges[-1] - start_of(0)) // PERIOD))
    counts = await history.counts(CountQuery(job=job, since=since, until=until, width=_width(edges)))
    passed = await history.passed(job, edges[0], edges[-1], limit=MAX_PASSED)

    def counted(effort: Effort) -> list[CalendarDay]:
        buckets = Buckets(spans, effort)
        buckets.add_executions(counts, past, by_status=True)
        buckets.add_passed((span for span in passed if span.reason == "missed"), past)
        return [
            CalendarDay(
                day, *(bucket.counts.get(decision, 0) for decision in ("completed", "failed", "skipped", "missed"))
            )
            for day, bucket in zip(days, buckets.result(), strict=True)
        ]

    return await calculate(counted)


def _width(edges: Sequence[datetime]) -> timedelta:
    """Return the widest span whose multiples since 1970 include all edges.

    It is a day in UTC, and an hour in most zones with clock changes.
    """
    periods = gcd(_DAY // PERIOD, *(period_of(edge) for edge in edges))
    return periods * PERIOD


def _start(zone: str, day: date) -> datetime:
    """Return the first instant of a local day; the clocks may skip its midnight."""
    midnight = datetime(day.year, day.month, day.day)  # noqa: DTZ001 - on the wall clock
    return (instants_of(zone, midnight) or (shifted(zone, midnight),))[0].astimezone(UTC)


@dataclass(frozen=True, slots=True)
class DurationBucket:
    """Durations of the executions scheduled in [start, end), in seconds."""

    start: datetime
    end: datetime
    count: int
    """Executions that completed, failed or were cancelled."""
    p50: float | None
    p95: float | None
    max: float | None


@dataclass(frozen=True, slots=True)
class JobDurations:
    """The durations of a job over time; buckets without executions are left out."""

    __pydantic_config__ = ConfigDict(use_attribute_docstrings=True)

    buckets: tuple[DurationBucket, ...]
    sampled: bool
    """Whether percentiles and maxima come from a sample; up to 20,000 executions are all read."""


async def read_durations(
    history: History, past: Past, window: Window, calculate: Calculator = in_place
) -> JobDurations:
    """Return percentiles of the durations of a job by time."""
    job, width = past.job, window.width
    spans = window.spans(width)
    covered = window.covered(spans)
    counts = dict.fromkeys((span.start for span in spans), 0)
    query = CountQuery(job=job, since=covered.since, until=covered.until, width=width)
    for count in await history.counts(query):
        if count.status in _ENDED and past.has_seen(count.definition):
            counts[count.start] += count.total
    is_sampled = sum(counts.values()) > MAX_READ
    busy = [span for span in spans if counts[span.start]]
    slices = max(1, MAX_SLICES // len(busy)) if is_sampled else 1
    limit = MAX_READ // (slices * len(busy)) if is_sampled else MAX_READ
    parts = [(part.start, part.end) for span in busy for part in _divided(span, slices)]
    read = await history.durations(job, parts, limit=limit)

    def bucket(number: int, span: Span) -> DurationBucket:
        own = read[number * slices : (number + 1) * slices]
        seen = sorted(each.duration_ms / 1_000 for part in own for each in part if past.has_seen(each.definition))
        longest = seen[-1] if seen else None
        return DurationBucket(
            span.start, span.end, counts[span.start], percentile(seen, 50), percentile(seen, 95), longest
        )

    def calculated(effort: Effort) -> tuple[DurationBucket, ...]:
        buckets = list[DurationBucket]()
        for number, span in enumerate(busy):
            effort.is_spent()  # it lets the event loop run; the durations are few enough to take all
            buckets.append(bucket(number, span))
        return tuple(buckets)

    return JobDurations(await calculate(calculated), is_sampled)


def percentile(ascending: Sequence[float], percent: int) -> float | None:
    """Return the least value that a percentage of the values does not exceed."""
    return ascending[max(0, ceil(len(ascending) * percent / 100) - 1)] if ascending else None


def _divided(span: Span, parts: int) -> list[Span]:
    step = (span.end - span.start) / parts
    edges = [*(span.start + n * step for n in range(parts)), span.end]
    return [Span(start, end) for start, end in pairwise(edges)]
