"""A job's executions by local day."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from math import gcd
from typing import Final

from ...domain.execution_counts import PERIOD, period_of, start_of
from ...domain.schedule import ScheduleError
from ...domain.schedule.clock_changes import instants_of, local_time, skipped
from ...domain.schedule.timezones import validate_timezone
from ...ports import History
from ...ports.queries import CountQuery, InvalidQuery
from ..calculations import Calculator, Effort
from .buckets import Buckets
from .model import Span, Window
from .reader import MAX_PASSED
from .regimes import Ledger

MAX_DAYS: Final = 400
_DAY: Final = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Day:
    """A local day: its executions by status, and the instants that were missed."""

    day: date
    completed: int
    failed: int
    skipped: int
    missed: int


async def read_calendar(
    history: History, ledger: Ledger, window: Window, timezone: str, calculate: Calculator
) -> list[Day]:
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
    job, since = ledger.evidence.job, start_of(period_of(edges[0]))
    until = start_of(-(-(edges[-1] - start_of(0)) // PERIOD))
    counts = await history.counts(CountQuery(job=job, since=since, until=until, width=_width(edges)))
    passed = await history.passed(job, edges[0], edges[-1], limit=MAX_PASSED)

    def counted(effort: Effort) -> list[Day]:
        buckets = Buckets(spans, effort)
        buckets.add_by_status(counts, ledger)
        buckets.add_passed((span for span in passed if span.reason == "missed"), ledger)
        return [
            Day(day, *(bucket.counts.get(decision, 0) for decision in ("completed", "failed", "skipped", "missed")))
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
    return (instants_of(zone, midnight) or (skipped(zone, midnight),))[0].astimezone(UTC)
