"""The reads of a timeline: definitions and decisions from the ledger, executions from the history."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from ...domain.ledger import JobNotFound
from ...ports import EventLog, ExecutionRow, History, StoredLog
from ...ports.queries import CountQuery, ExecutionQuery
from ..calculations import Calculator, Effort, in_place
from ..explain.reader import SeesDefinitions, read_decisions, read_evidence, read_leaders, with_decisions
from .buckets import Buckets
from .marks import marks_of
from .model import Mark, Span, TimelineBucket, TimelineVersion, Window
from .regimes import Ledger, gaps_of, seen_everything

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
    """The instants of a job in a time: either `marks` or `buckets` is there.

    `truncated`: part of the time is missing, because there is too much of it or the history no longer has it.
    """

    since: datetime
    until: datetime
    timezone: str
    versions: tuple[TimelineVersion, ...]
    gaps: tuple[Span, ...]
    marks: tuple[Mark, ...] | None = None
    buckets: tuple[TimelineBucket, ...] | None = None
    truncated: bool = False


class TimelineReader:
    """Reads the time of a job."""

    def __init__(
        self,
        log: EventLog,
        stored: StoredLog,
        history: History,
        calculate: Calculator = in_place,
        *,
        retention: timedelta,
    ) -> None:
        """`retention`: how long the history keeps executions of jobs that do not set it."""
        self._log = log
        self._stored = stored
        self._history = history
        self._calculate = calculate
        self._retention = retention

    async def ledger(self, job: str, sees: SeesDefinitions = seen_everything) -> Ledger:
        """Return the definitions of a job and its newest decisions.

        Raises:
            JobNotFound: no event mentions the job, or the caller sees none of its definitions.
        """
        evidence = await read_evidence(self._log, job)
        ledger = Ledger(evidence, sees(evidence.definitions))
        if not any(ledger.is_seen(regime) for regime in ledger.all):
            raise JobNotFound(job)
        return ledger

    async def timeline(self, job: str, window: Window, sees: SeesDefinitions = seen_everything) -> Timeline:
        """Return the marks of a window, or buckets if they are too many.

        Raises:
            JobNotFound: no event mentions the job, or the caller sees none of its definitions.
            ScheduleError: its schedule is no longer valid.
        """
        ledger = await self.ledger(job, sees)
        leaders = await read_leaders(self._log, ledger.evidence.definitions, window.since)
        buckets, executed = await self._buckets(ledger, window)
        versions, gaps = ledger.versions(window), gaps_of(leaders, window, ledger.evidence.now)
        timeline = Timeline(
            window.since,
            window.until,
            ledger.timezone,
            tuple(versions[-MAX_VERSIONS:]),
            tuple(gaps[-MAX_GAPS:]),
            truncated=len(versions) > MAX_VERSIONS or len(gaps) > MAX_GAPS,
        )
        if buckets.total <= MAX_MARKS:
            marks, is_complete = await self._marks(ledger, window, executed)
            if is_complete:
                return replace(timeline, marks=tuple(marks))
        is_cut = not buckets.is_complete or self._forgets(ledger, window)
        return replace(timeline, buckets=tuple(buckets.result()), truncated=timeline.truncated or is_cut)

    async def _buckets(self, ledger: Ledger, window: Window) -> tuple[Buckets, Window | None]:
        """Return buckets, and the part of the window with executions that the caller sees.

        None: it sees none.
        """
        job, width = ledger.evidence.job, window.width
        spans = window.spans(width)
        covered = window.covered(spans)
        counts = await self._history.counts(CountQuery(job=job, since=covered.since, until=covered.until, width=width))
        passed = await self._history.passed(job, covered.since, covered.until, limit=MAX_PASSED)

        def counted(effort: Effort) -> Buckets:
            buckets = Buckets(spans, effort)
            buckets.add_executions(counts, ledger)
            buckets.add_passed(passed, ledger)
            buckets.add_stretches(ledger.stretches(covered))
            return buckets

        buckets = await self._calculate(counted)
        buckets.is_complete &= len(passed) < MAX_PASSED
        starts = [count.start for count in counts if ledger.has_seen(count.definition)]
        if not starts:
            return buckets, None
        since, until = max(window.since, min(starts)), min(window.until, max(starts) + width)
        return buckets, replace(window, since=since, until=until)

    async def _marks(self, ledger: Ledger, window: Window, executed: Window | None) -> tuple[list[Mark], bool]:
        job = ledger.evidence.job
        decisions = await read_decisions(self._stored, job, window.since, window.until, most=2 * MAX_MARKS)
        ledger = Ledger(with_decisions(ledger.evidence, decisions), ledger.seen)
        # Executions of hidden definitions may be many, and each would be read only to be left out.
        rows = () if executed is None else await self._rows(ledger, executed)
        if rows is None:
            return [], False
        return await self._calculate(lambda effort: marks_of(ledger, rows, window, effort, most=MAX_MARKS))

    async def _rows(self, ledger: Ledger, window: Window) -> Sequence[ExecutionRow] | None:
        """Return the executions of a window that the caller sees.

        None: too many others are among them. They are at most one more than `MAX_MARKS`.
        """
        query = ExecutionQuery(job=ledger.evidence.job, since=window.since, until=window.until, limit=MAX_MARKS)
        rows, read = list[ExecutionRow](), 0
        while True:
            page = await self._history.executions(query)
            rows += [row for row in page.rows if ledger.has_seen(row.definition)]
            if page.cursor is None or len(rows) > MAX_MARKS:
                return rows[: MAX_MARKS + 1]
            read += len(page.rows)
            if read >= MAX_READ:
                return None
            query = replace(query, cursor=page.cursor)

    def _forgets(self, ledger: Ledger, window: Window) -> bool:
        seen = [regime for regime in ledger.all if ledger.is_seen(regime)]
        own = next((regime.definition.retention for regime in reversed(seen) if regime.definition is not None), None)
        kept_since = ledger.evidence.now - (self._retention if own is None else timedelta(seconds=own))
        return max(window.since, seen[0].fact.time) < kept_since
