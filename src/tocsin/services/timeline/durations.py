"""Durations of executions over time."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from math import ceil
from typing import Final

from ...ports import History
from ...ports.queries import CountQuery
from ..calculations import Calculator, Effort, in_place
from .model import Span, Window
from .regimes import Ledger

MAX_READ: Final = 20_000
"""Durations that are read for an answer; of more executions, it is a sample."""
MAX_SLICES: Final = 400
"""Spans of which a sample has the first executions."""
_ENDED: Final = frozenset({"completed", "failed", "cancelled"})


@dataclass(frozen=True, slots=True)
class DurationBucket:
    """Durations in [start, end), in seconds; None: there are none.

    `count`: executions that ended and were not skipped.
    """

    start: datetime
    end: datetime
    count: int
    p50: float | None
    p95: float | None
    max: float | None


@dataclass(frozen=True, slots=True)
class Durations:
    """The durations of a job; buckets without executions are left out."""

    buckets: tuple[DurationBucket, ...]
    sampled: bool
    """Whether percentiles and maxima are those of a sample."""


async def read_durations(
    history: History, ledger: Ledger, window: Window, calculate: Calculator = in_place
) -> Durations:
    """Return percentiles of the durations of a job by time."""
    job, width = ledger.evidence.job, window.width
    spans = window.spans(width)
    covered = window.covered(spans)
    counts = dict.fromkeys((span.start for span in spans), 0)
    query = CountQuery(job=job, since=covered.since, until=covered.until, width=width)
    for count in await history.counts(query):
        if count.status in _ENDED and ledger.has_seen(count.definition):
            counts[count.start] += count.total
    is_sampled = sum(counts.values()) > MAX_READ
    busy = [span for span in spans if counts[span.start]]
    slices = max(1, MAX_SLICES // len(busy)) if is_sampled else 1
    limit = MAX_READ // (slices * len(busy)) if is_sampled else MAX_READ
    parts = [(part.start, part.end) for span in busy for part in _divided(span, slices)]
    read = await history.durations(job, parts, limit=limit)

    def bucket(number: int, span: Span) -> DurationBucket:
        own = read[number * slices : (number + 1) * slices]
        seen = sorted(each.duration_ms / 1_000 for part in own for each in part if ledger.has_seen(each.definition))
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

    return Durations(await calculate(calculated), is_sampled)


def percentile(ascending: Sequence[float], percent: int) -> float | None:
    """Return the least value that a percentage of the values does not exceed."""
    return ascending[max(0, ceil(len(ascending) * percent / 100) - 1)] if ascending else None


def _divided(span: Span, parts: int) -> list[Span]:
    step = (span.end - span.start) / parts
    edges = [*(span.start + n * step for n in range(parts)), span.end]
    return [Span(start, end) for start, end in pairwise(edges)]
