"""The reads of a timeline, of durations and of days."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from math import ceil, gcd
from typing import Final, Literal, TypeAlias

from pydantic import ConfigDict

from ... import subjects
from ...domain.definition import JobDefinition
from ...domain.definition_changes import changed_fields
from ...domain.events import Defined, DefinitionFact, Recorded
from ...domain.execution_counts import PERIOD, period_of, start_of
from ...domain.ledger import PUNCTUALITY, JobNotFound
from ...domain.log_events import LeaderChange
from ...domain.replay import Past, gaps
from ...domain.schedule import ScheduleError
from ...domain.schedule.clock_changes import instants_of, local_time, shifted
from ...domain.schedule.timezones import validate_timezone
from ...ports import EventLog, ExecutionRow, History, StoredLog
from ...ports.queries import CountQuery, ExecutionQuery, InvalidQuery
from ..calculations import Calculator, Effort, in_place
from ..operations.errors import NotFound
from ..past_reader import SeesDefinitions, read_decisions, read_leaders, read_past
from .marks import Buckets, Span, TimelineBucket, TimelineMark, Window, marks_of

VersionKind: TypeAlias = Literal["defined", "paused", "resumed", "deleted"]


@dataclass(frozen=True, slots=True)
class TimelineVersion:
    """A change to the definition."""

    sequence: int
    """The sequence of its event."""
    at: datetime
    by: str | None
    reason: str | None
    kind: VersionKind


@dataclass(frozen=True, slots=True)
class JobRevision(TimelineVersion):
    """A change to the definition of a job."""

    sequence: int
    """The sequence of its event."""
    changed: tuple[str, ...]
    """The fields that differ from the definition before, dotted if nested."""
    is_current: bool
    """Whether this definition is in force."""


def versions_of(past: Past, window: Window) -> list[TimelineVersion]:
    """Return the changes that the caller sees in a window, and the last before it."""
    seen = [regime for regime in past.regimes if past.is_seen(regime) and regime.since < window.until]
    first = next((n for n, regime in enumerate(seen) if regime.until is None or regime.until > window.since), 0)
    return [replace(_version(regime.fact), at=regime.since) for regime in seen[first:]]


def revisions_of(past: Past, *, before: int | None = None, limit: int | None = None) -> list[JobRevision]:
    """Return the revisions that the caller sees before a sequence, newest first."""
    current = past.regimes[-1].sequence
    revisions = list[JobRevision]()
    last: JobDefinition | None = None
    for regime in past.regimes:
        if not past.is_seen(regime):
            last = None
            continue
        version, after = _version(regime.fact), regime.definition
        is_edit = version.kind == "defined" and last is not None and after is not None
        changed = tuple(diff.field for diff in changed_fields(last, after)) if is_edit and last and after else ()
        revisions.append(JobRevision(**asdict(version), changed=changed, is_current=version.sequence == current))
        last = after
    shown = [revision for revision in reversed(revisions) if before is None or revision.sequence < before]
    return shown[:limit]


def _version(fact: Recorded[DefinitionFact]) -> TimelineVersion:
    message = fact.message
    kind = message.type  # type: ignore[attr-defined] # each kind has it
    by = None if message.by is None else message.by.full_name
    return TimelineVersion(fact.sequence, fact.time, by, message.reason, kind)


async def read_definition(log: EventLog, job: str, revision: int) -> JobDefinition:
    """Return the definition of a revision.

    Raises:
        NotFound: the revision defines nothing.
    """
    recorded = await log.get(subjects.ledger(job), revision)
    fact = None if recorded is None else recorded.message
    if not isinstance(fact, Defined) or fact.job != job:
        raise no_definition(job, revision)
    return fact.definition


def no_definition(job: str, revision: int) -> NotFound:
    """Return the error of a revision without a definition."""
    return NotFound(f"job {job!r} has no definition {revision}. `tocsin jobs history {job}` lists its revisions")


MAX_MARKS: Final = 500
"""Marks of one answer; more are counted in buckets."""
MAX_READ: Final = 2_000
"""Executions that are read to find those that the caller sees; beyond it, they are counted in buckets."""
MAX_VERSIONS: Final = 500
MAX_GAPS: Final = 500
MAX_PASSED: Final = 10_000
"""Spans of missed instants that are read; each holds up to 1,000 instants."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """The time of a job: `marks` if its instants are few, otherwise `buckets`."""

    __pydantic_config__ = ConfigDict(use_attribute_docstrings=True, json_schema_serialization_defaults_required=True)

    since: datetime
    until: datetime
    timezone: str
    """The zone of the newest definition."""
    versions: tuple[TimelineVersion, ...]
    """The changes to the definition in this time, and the last change before it."""
    gaps: tuple[Span, ...]
    """The times without a leading ticker that made instants late."""
    truncated: bool
    """Whether some instants, changes or gaps are missing: they were too many, or the history has expired them."""
    marks: tuple[TimelineMark, ...] | None = None
    """Every instant, by time. null: there are too many."""
    buckets: tuple[TimelineBucket, ...] | None = None
    """Counts in spans of equal width, which cover the time without a gap. null: `marks` has every instant."""


@dataclass(frozen=True, slots=True)
class TimelineReader:
    """Reads the time of a job.

    `retention`: how long the history keeps executions of jobs that do not set it.
    """

    log: EventLog
    stored: StoredLog
    history: History
    calculate: Calculator = in_place
    retention: timedelta = field(kw_only=True)

    async def past(self, job: str, sees: SeesDefinitions | None = None) -> Past:
        """Return the definitions of a job and its newest decisions.

        Raises:
            JobNotFound: no event mentions the job, or the caller sees none of its definitions.
        """
        past = await read_past(self.log, job)
        past = past if sees is None else replace(past, seen=frozenset(sees(past.definitions)))
        if not any(past.is_seen(regime) for regime in past.regimes):
            raise JobNotFound(job)
        return past

    async def timeline(self, job: str, window: Window, sees: SeesDefinitions | None = None) -> Timeline:
        """Return the marks of a window, or buckets if they are too many.

        Raises:
            ScheduleError: its schedule is no longer valid.
        """
        past = await self.past(job, sees)
        leaders = await read_leaders(past, self.log, window.since)
        buckets, executed = await self._buckets(past, window)
        versions, absences = versions_of(past, window), gaps_of(leaders, window, past.now)
        timeline = Timeline(
            window.since,
            window.until,
            past.timezone,
            tuple(versions[-MAX_VERSIONS:]),
            tuple(absences[-MAX_GAPS:]),
            len(versions) > MAX_VERSIONS or len(absences) > MAX_GAPS,
        )
        if buckets.total <= MAX_MARKS:
            marks, is_complete = await self._marks(past, window, executed)
            if is_complete:
                return replace(timeline, marks=tuple(marks))
        is_cut = not buckets.is_complete or self._forgets(past, window)
        return replace(timeline, buckets=tuple(buckets.result()), truncated=timeline.truncated or is_cut)

    async def _buckets(self, past: Past, window: Window) -> tuple[Buckets, Window | None]:
        """Return buckets, and the part of the window with executions that the caller sees.

        None: it sees none.
        """
        job, width = past.job, window.width
        spans = window.spans(width)
        covered = window.covered(spans)
        counts = await self.history.counts(CountQuery(job=job, since=covered.since, until=covered.until, width=width))
        passed = await self.history.passed(job, covered.since, covered.until, limit=MAX_PASSED)

        def counted(effort: Effort) -> Buckets:
            buckets = Buckets(spans, effort)
            buckets.add_executions(counts, past)
            buckets.add_passed(passed, past)
            buckets.add_stretches(past.stretches(covered.since, covered.until))
            return buckets

        buckets = await self.calculate(counted)
        buckets.is_complete &= len(passed) < MAX_PASSED
        starts = [count.start for count in counts if past.has_seen(count.definition)]
        if not starts:
            return buckets, None
        since, until = max(window.since, min(starts)), min(window.until, max(starts) + width)
        return buckets, replace(window, since=since, until=until)

    async def _marks(self, past: Past, window: Window, executed: Window | None) -> tuple[list[TimelineMark], bool]:
        job = past.job
        decisions = await read_decisions(self.stored, job, window.since, window.until, most=2 * MAX_MARKS)
        past = past.with_decisions(decisions)
        # Executions of hidden definitions may be many, and each would be read only to be left out.
        rows = () if executed is None else await self._rows(past, executed)
        if rows is None:
            return [], False
        return await self.calculate(lambda effort: marks_of(past, rows, window, effort, most=MAX_MARKS))

    async def _rows(self, past: Past, window: Window) -> Sequence[ExecutionRow] | None:
        """Return the executions of a window that the caller sees.

        None: too many others are among them. They are at most one more than `MAX_MARKS`.
        """
        query = ExecutionQuery(job=past.job, since=window.since, until=window.until, limit=MAX_MARKS)
        rows, read = list[ExecutionRow](), 0
        while True:
            page = await self.history.executions(query)
            rows += [row for row in page.rows if past.has_seen(row.definition)]
            if page.cursor is None or len(rows) > MAX_MARKS:
                return rows[: MAX_MARKS + 1]
            read += len(page.rows)
            if read >= MAX_READ:
                return None
            query = replace(query, cursor=page.cursor)

    def _forgets(self, past: Past, window: Window) -> bool:
        seen = [regime for regime in past.regimes if past.is_seen(regime)]
        own = next((regime.definition.retention for regime in reversed(seen) if regime.definition is not None), None)
        kept_since = past.now - (self.retention if own is None else timedelta(seconds=own))
        return max(window.since, seen[0].since) < kept_since


def gaps_of(leadership: Iterable[LeaderChange], window: Window, now: datetime) -> list[Span]:
    """Return the times without a leader in a window, oldest first.

    Times that are too short to make an instant late are left out.
    """
    ended = ((gap.start, gap.end or now) for gap in gaps(leadership) if gap.start is not None)
    clipped = ((max(start, window.since), min(end, window.until)) for start, end in ended if end - start > PUNCTUALITY)
    return [Span(start, end) for start, end in clipped if start < end]


MAX_DURATIONS: Final = 20_000
"""Durations that are read for an answer; of more executions, it is a sample."""
MAX_SLICES: Final = 400
"""The most spans of a sample; of each span, the sample has the first executions."""
_ENDED: Final = frozenset({"completed", "failed", "cancelled"})
MAX_CALENDAR_DAYS: Final = 400
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
    if window.until - window.since > MAX_CALENDAR_DAYS * _DAY:
        raise InvalidQuery("until", window.until.isoformat(), f"must be at most {MAX_CALENDAR_DAYS} days after `since`")
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
    """Return the widest span with multiples since 1970 that include all edges.

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
    is_sampled = sum(counts.values()) > MAX_DURATIONS
    busy = [span for span in spans if counts[span.start]]
    slices = max(1, MAX_SLICES // len(busy)) if is_sampled else 1
    limit = MAX_DURATIONS // (slices * len(busy)) if is_sampled else MAX_DURATIONS
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
