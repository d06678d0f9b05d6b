"""The reads of a timeline, from the ledger and the history."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final, Literal, TypeAlias

from pydantic import ConfigDict

from ... import subjects
from ...domain.definition import JobDefinition
from ...domain.definition_changes import changed_fields
from ...domain.events import Defined, DefinitionFact, Recorded
from ...domain.ledger import PUNCTUALITY, JobNotFound
from ...domain.log_events import LeaderChange
from ...domain.replay import Past, gaps
from ...ports import EventLog, ExecutionRow, History, StoredLog
from ...ports.queries import CountQuery, ExecutionQuery
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
    kind = message.type  # type: ignore[attr-defined] # each kind of them has it
    by = None if message.by is None else message.by.full_name
    return TimelineVersion(fact.sequence, fact.time, by, message.reason, kind)


async def read_revisions(log: EventLog, job: str) -> list[JobRevision]:
    """Return all revisions of a job, newest first."""
    return revisions_of(await read_past(log, job))


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
