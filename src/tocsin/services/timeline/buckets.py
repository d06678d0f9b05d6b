"""The buckets of a timeline: marks counted by time and decision, without listing them."""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Final, cast

from ...domain.execution_counts import ANNOUNCED
from ...domain.replay import INSTANT, InForce, NotFired, Past, Stretch
from ...domain.schedule import Schedule
from ...ports import ExecutionCount, PassedSpan
from ..calculations import Effort
from .marks import CRON
from .model import MarkDecision, Span, TimelineBucket

MOST_COUNTED: Final = 100_000
"""Instants of one bucket that are counted if the schedule must list them: more than one a second in a day."""
_HOUR: Final = timedelta(hours=1)


class Buckets:
    """Counts by bucket. Counting ends when its effort is spent."""

    def __init__(self, spans: Sequence[Span], effort: Effort) -> None:
        """`spans`: the buckets, which adjoin."""
        self._spans = spans
        self._starts = [span.start for span in spans]
        self._counts: list[Counter[MarkDecision]] = [Counter() for _ in spans]
        self._effort = effort
        self.is_complete = True

    def add_executions(self, counts: Iterable[ExecutionCount], past: Past, *, by_status: bool = False) -> None:
        """Count executions that the caller sees.

        Announced instants are left out, because `add_stretches` counts them. `by_status`: they are skipped, and any trigger counts as the schedule.
        """
        for count in counts:
            if not past.has_seen(count.definition) or (count.status == ANNOUNCED and not by_status):
                continue
            status = "skipped" if count.status == ANNOUNCED else count.status
            is_trigger = count.trigger != CRON and not by_status
            self._add(count.start, cast("MarkDecision", "trigger" if is_trigger else status), count.total)

    def add_passed(self, passed: Iterable[PassedSpan], past: Past) -> None:
        """Count instants that passed although the job was active.

        The schedule divides a span among buckets.
        """
        newest_first = defaultdict[int, list[InForce]](list)
        for known in reversed(past.regimes):
            newest_first[known.sequence].append(known)
        for span in passed:
            regime = next((known for known in newest_first[span.definition] if known.fact.time < span.until), None)
            if regime is None or not past.has_seen(span.definition):
                continue
            verdict = cast("NotFired", span.reason)
            # After a deletion, the span begins before the definition.
            start = max(span.start, regime.fact.time) + INSTANT
            first, last = self._number(start), self._number(span.until)
            if first == last and first is not None:
                self._counts[first][verdict] += span.total
            elif (schedule := regime.schedule) is not None:
                origin = past.anchor(regime, span.until)
                self._count(Stretch(start, span.until + INSTANT, verdict, schedule, origin))

    def add_stretches(self, stretches: Iterable[Stretch]) -> None:
        """Count instants of pauses and of the future, nonexistent local times, and excluded instants."""
        for stretch in stretches:
            self._count(stretch)
            self._count_skipped(stretch)
            self._count_excluded(stretch)

    def result(self) -> list[TimelineBucket]:
        return [
            TimelineBucket(span.start, span.end, {decision: n for decision, n in sorted(counts.items()) if n})
            for span, counts in zip(self._spans, self._counts, strict=True)
        ]

    @property
    def total(self) -> int:
        return sum(sum(counts.values()) for counts in self._counts)

    def _number(self, at: datetime) -> int | None:
        number = bisect_right(self._starts, at) - 1
        return number if number >= 0 and at < self._spans[number].end else None

    def _add(self, at: datetime, decision: MarkDecision, count: int) -> None:
        number = self._number(at)
        if number is not None:
            self._counts[number][decision] += count

    def _overlaps(self, stretch: Stretch) -> Iterable[tuple[int, datetime, datetime]]:
        """Yield the buckets that overlap a stretch, each with the part of it."""
        for number in range(max(0, bisect_right(self._starts, stretch.start) - 1), len(self._spans)):
            start, end = max(self._spans[number].start, stretch.start), min(self._spans[number].end, stretch.end)
            if self._spans[number].start >= stretch.end:
                return
            if self._effort.is_spent():
                self.is_complete = False
                return
            if start < end:
                yield number, start, end

    def _count(self, stretch: Stretch) -> None:
        if stretch.verdict is None:
            return
        for number, start, end in self._overlaps(stretch):
            count = stretch.schedule.count(start - INSTANT, end - INSTANT, anchor=stretch.anchor, most=MOST_COUNTED)
            self._counts[number][stretch.verdict] += count

    def _count_skipped(self, stretch: Stretch) -> None:
        """Count the local times that the clocks skip, which are listed around clock changes."""
        for number, start, end in self._overlaps(stretch):
            if stretch.schedule.may_skip(start - INSTANT, end - INSTANT):
                self._counts[number]["no-such-local-time"] += _skipped(stretch.schedule, start, end, stretch.anchor)

    def _count_excluded(self, stretch: Stretch) -> None:
        if stretch.schedule.days is None:
            return
        for number, start, end in self._overlaps(stretch):
            count = stretch.schedule.count_excluded(start - INSTANT, end - INSTANT, anchor=stretch.anchor)
            self._counts[number]["excluded"] += count


def _skipped(schedule: Schedule, start: datetime, end: datetime, anchor: datetime) -> int:
    count = 0
    while start < end:
        stop = min(end, start + _HOUR)
        if schedule.may_skip(start - INSTANT, stop - INSTANT):
            occurrences = schedule.occurrences(start - INSTANT, stop - INSTANT, anchor=anchor)
            count += sum(occurrence.skipped_local is not None for occurrence in occurrences)
        start = stop
    return count
