"""The values of a timeline: its window, a mark for each instant, and buckets."""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final, Literal, Self, TypeAlias, cast

from ...domain import ids
from ...domain.events import Due, Passed, Recorded
from ...domain.execution_counts import ANNOUNCED, PERIOD
from ...domain.replay import INSTANT, Decision, InForce, NotFired, Past, Stretch, verdict_of
from ...domain.schedule import Occurrence, Schedule
from ...ports import ExecutionCount, ExecutionRow, PassedSpan
from ...ports.queries import InvalidQuery, in_utc, require_year
from ..calculations import Effort

MarkDecision: TypeAlias = Literal[
    "pending",  # it fired, and its execution has this status
    "running",
    "completed",
    "failed",
    "cancelled",
    "skipped",
    "fired",  # it fired, and its execution is not in the history
    NotFired,
    "trigger",  # an execution that the schedule did not request
]
"""The decision on an instant, as `why` gives it; of an instant that fired, the status of its execution."""

MAX_DAYS: Final = 3_660
"""The longest time of an answer."""
MAX_BUCKETS: Final = 500
MAX_FINE: Final = timedelta(hours=3)
"""The longest time with buckets below `PERIOD`, for which the history counts rows."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_DAY: Final = timedelta(days=1)
_WIDTHS: Final = (
    *(timedelta(seconds=s) for s in (1, 5, 15, 60)),
    *(timedelta(minutes=m) for m in (5, 15, 30)),
    *(timedelta(hours=h) for h in (1, 3, 6, 12)),
    *(timedelta(days=d) for d in (1, 2, 7, 28, 91, 364)),
)
"""The widths of buckets that a person can read."""


@dataclass(frozen=True, slots=True)
class TimelineMark:
    """An instant and the decision on it, or an execution that something else triggered."""

    at: datetime
    decision: MarkDecision
    """The status of the execution of an instant that fired (`fired`: the history has none), `trigger` for an execution that
    the schedule did not request, and otherwise the verdict of `why`."""
    reason: str | None = None
    """The reason for a skip, a cancellation or a pause; `catch_up`: it fired late; of a `trigger`, its origin."""
    execution_id: str | None = None
    status: str | None = None
    """The status of the execution."""
    late_by: float | None = None
    """Seconds from the instant to the decision."""
    count: int = 1
    """Executions on shards with this status, or instants that are only counted."""


@dataclass(frozen=True, slots=True)
class TimelineBucket:
    """The marks in [start, end), by decision."""

    start: datetime
    end: datetime
    counts: Mapping[MarkDecision, int]


@dataclass(frozen=True, slots=True)
class Span:
    """A time [start, end)."""

    start: datetime
    end: datetime


@dataclass(frozen=True, slots=True)
class Window:
    """The time [since, until) of a request, and the most buckets of its answer."""

    since: datetime
    until: datetime
    buckets: int

    @classmethod
    def of(cls, since: datetime, until: datetime, buckets: int) -> Self:
        """Return a window; times without a zone are in UTC.

        Raises:
            InvalidQuery: the time is empty, too long, or outside the calendar.
        """
        begin, end = _checked("since", since), _checked("until", until)
        if not begin < end:
            raise InvalidQuery("until", until.isoformat(), f"must be later than `since`, {since.isoformat()}")
        if end - begin > MAX_DAYS * _DAY:
            raise InvalidQuery("until", until.isoformat(), f"must be at most {MAX_DAYS:,} days after `since`")
        return cls(begin, end, buckets)

    @property
    def width(self) -> timedelta:
        """The smallest legible width of at most `buckets` buckets."""
        days = -(-(self.until - self.since) // _DAY)
        longest = -(-days // max(1, self.buckets - 1)) * _DAY
        widths = (width for width in _WIDTHS if width >= PERIOD or self.until - self.since <= MAX_FINE)
        return next((width for width in widths if len(self._numbers(width)) <= self.buckets), longest)

    def spans(self, width: timedelta) -> tuple[Span, ...]:
        """Return spans of a width that cover the window, at multiples since 1970."""
        return tuple(Span(_EPOCH + n * width, _EPOCH + (n + 1) * width) for n in self._numbers(width))

    def _numbers(self, width: timedelta) -> range:
        return range((self.since - _EPOCH) // width, -(-(self.until - _EPOCH) // width))

    def covered(self, spans: tuple[Span, ...]) -> "Window":
        return replace(self, since=spans[0].start, until=spans[-1].end)


def _checked(field: str, time: datetime) -> datetime:
    at = in_utc(field, time if time.tzinfo else time.replace(tzinfo=UTC))
    require_year(field, time, at.year)
    return at


CRON: Final = "cron"
"""The trigger of the executions of instants."""


def marks_of(
    past: Past, rows: Sequence[ExecutionRow], window: Window, effort: Effort, *, most: int
) -> tuple[list[TimelineMark], bool]:
    """Return at most `most` marks of a window by time, and whether they are all.

    `rows`: the executions that are scheduled in the window, as far as the caller sees them.
    """
    marks, is_complete = list[TimelineMark](), True
    for mark in _marks(past, rows, window):
        if len(marks) == most or effort.is_spent():
            is_complete = False
            break
        marks.append(mark)
    return sorted(marks, key=lambda mark: (mark.at, mark.decision, mark.status or "")), is_complete


def _marks(past: Past, rows: Sequence[ExecutionRow], window: Window) -> Iterator[TimelineMark]:
    runs: defaultdict[datetime, list[ExecutionRow]] = defaultdict(list)
    announced: dict[datetime, list[ExecutionRow]] = {}
    for row in rows:
        if row.trigger != CRON:
            yield TimelineMark(row.scheduled_time, "trigger", row.trigger, row.execution_id, row.status)
        elif row.execution_id == ids.passed_id(row.job_name, row.scheduled_time):
            announced[row.scheduled_time] = [row]
        else:
            runs[row.scheduled_time].append(row)
    for mark in _decided(past, runs, window):
        if mark.status is None:  # it is the mark of the instant, which an execution announced as skipped
            announced.pop(mark.at, None)
        yield mark
    for at, of_instant in (*runs.items(), *announced.items()):  # the ledger's event is out of reach
        yield from _runs(at, of_instant, late_by=None, reason=None)
    for stretch in past.stretches(window.since, window.until):
        if stretch.verdict is None or stretch.verdict in {"paused", "disabled"}:
            continue
        now = past.now if stretch.verdict == "undecided" else None
        after, until, schedule = stretch.start - INSTANT, stretch.end - INSTANT, stretch.schedule
        named = schedule.occurrences(after, until, anchor=stretch.anchor)
        yield from _named(named, stretch.verdict, stretch.reason, now)
        yield from _excluded(schedule, after, until, stretch.anchor)


def _decided(past: Past, runs: dict[datetime, list[ExecutionRow]], window: Window) -> Iterator[TimelineMark]:
    """Yield the marks of the ledger's events, and take their executions out of `runs`."""
    for decision in past.decisions:
        match decision.message:
            case Due(scheduled_time=at) as fact if window.since <= at < window.until:
                yield from _fired(past, decision, fact, runs.pop(at, ()))
            case Passed() as fact if fact.until >= window.since and fact.start < window.until:
                yield from _passed(past, decision, fact, window)
            case _:
                pass


def _fired(past: Past, decision: Recorded[Decision], fact: Due, runs: Sequence[ExecutionRow]) -> Iterator[TimelineMark]:
    at = fact.scheduled_time
    regime = past.regime_at(at, before=decision.sequence)
    if regime is None or not past.is_seen(regime):
        return
    late_by, reason = _late(at, decision.time), "catch_up" if fact.catch_up else None
    if runs:
        yield from _runs(at, runs, late_by=late_by, reason=reason)
    else:
        yield TimelineMark(at, "fired", reason, ids.occurrence_id(fact.job, at), None, late_by)
    if fact.dst_skip:
        yield TimelineMark(at, "no-such-local-time")


def _runs(
    at: datetime, runs: Sequence[ExecutionRow], *, late_by: float | None, reason: str | None
) -> Iterator[TimelineMark]:
    by_status: defaultdict[str, list[ExecutionRow]] = defaultdict(list)
    for row in runs:
        by_status[row.status].append(row)
    for status, same in by_status.items():
        first = same[0]
        shown: object = status
        yield TimelineMark(at, shown, first.reason or reason, first.execution_id, status, late_by, len(same))  # type: ignore[arg-type] # a status is a decision


def _passed(past: Past, decision: Recorded[Decision], fact: Passed, window: Window) -> Iterator[TimelineMark]:
    regime = past.regime_at(fact.until, before=decision.sequence)
    if regime is None or not past.is_seen(regime):
        return
    verdict, schedule, named = verdict_of(decision, regime), regime.schedule, list[Occurrence]()
    reason = past.reason_of(regime) if fact.reason == "paused" else None
    if schedule is not None:
        # After a deletion, `start` lies before the definition.
        after = max(fact.start, regime.since, window.since - INSTANT)
        until, anchor = min(fact.until, window.until - INSTANT), past.anchor(regime, fact.until)
        named = [*schedule.occurrences(after, until, anchor=anchor)]
        yield from _named(named, verdict, reason, decision.time)
        yield from _excluded(schedule, after, until, anchor)
    if not named and fact.count and fact.until < window.until:  # newer zone data names none of them
        yield TimelineMark(fact.until, verdict, reason, late_by=_late(fact.until, decision.time), count=fact.count)


def _named(
    named: Iterable[Occurrence], verdict: MarkDecision, reason: str | None, decided: datetime | None
) -> Iterator[TimelineMark]:
    for occurrence in named:
        late_by = None if decided is None else _late(occurrence.at, decided)
        if occurrence.skipped_local is not None and not occurrence.excluded:
            yield TimelineMark(occurrence.at, "no-such-local-time", late_by=late_by)
        elif not occurrence.excluded and verdict != "no-such-local-time":
            yield TimelineMark(occurrence.at, verdict, reason, late_by=late_by)


def _excluded(schedule: Schedule, after: datetime, until: datetime, anchor: datetime) -> Iterator[TimelineMark]:
    for at in schedule.excluded_instants(after, until, anchor=anchor):
        yield TimelineMark(at, "excluded", str(schedule.exclusion(at)))


def _late(at: datetime, decided: datetime) -> float:
    return max(0.0, (decided - at).total_seconds())


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
            regime = next((known for known in newest_first[span.definition] if known.since < span.until), None)
            if regime is None or not past.has_seen(span.definition):
                continue
            verdict = cast("NotFired", span.reason)
            # After a deletion, the span begins before the definition.
            start = max(span.start, regime.since) + INSTANT
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
            for number, start, end in self._overlaps(stretch):
                if stretch.schedule.may_skip(start - INSTANT, end - INSTANT):  # only around clock changes
                    self._counts[number]["no-such-local-time"] += _skipped(stretch.schedule, start, end, stretch.anchor)
            if stretch.schedule.days is None:
                continue
            for number, start, end in self._overlaps(stretch):
                count = stretch.schedule.count_excluded(start - INSTANT, end - INSTANT, anchor=stretch.anchor)
                self._counts[number]["excluded"] += count

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


def _skipped(schedule: Schedule, start: datetime, end: datetime, anchor: datetime) -> int:
    count = 0
    while start < end:
        stop = min(end, start + _HOUR)
        if schedule.may_skip(start - INSTANT, stop - INSTANT):
            occurrences = schedule.occurrences(start - INSTANT, stop - INSTANT, anchor=anchor)
            count += sum(occurrence.skipped_local is not None for occurrence in occurrences)
        start = stop
    return count
