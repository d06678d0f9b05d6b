"""The history of a past, as the recorder would keep it."""

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from tests.services.explain.past import Past
from tocsin.domain import ids
from tocsin.domain.definition import JobDefinition
from tocsin.domain.events import MISSED_REASONS, Due, Passed
from tocsin.domain.execution_counts import counted_status
from tocsin.domain.execution_plan import skipped_instants
from tocsin.ports import ExecutionCount, ExecutionRow, PassedSpan
from tocsin.services.calculations import Effort
from tocsin.services.timeline import TimelineMark, Window
from tocsin.services.timeline.marks import Buckets, marks_of

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
STATUSES = ("completed", "failed", "skipped", "running")
EFFORT_S = 60.0
ANY_JOB = JobDefinition(name="job", function="f")


def row(at: datetime, status: str, **more: object) -> ExecutionRow:
    """An execution."""
    fields: dict[str, object] = {
        "job_name": "job",
        "execution_id": ids.occurrence_id("job", at),
        "trigger": "cron",
        "status": status,
        "scheduled_time": at,
        "started_at": None,
        "completed_at": None,
        "duration_ms": None,
        "attempt": 1,
        "worker": None,
        "error": None,
        "dag_state": {},
        "definition": 1,
    }
    return ExecutionRow(**(fields | more))  # type: ignore[arg-type]


def rows_of(past: Past) -> list[ExecutionRow]:
    """An execution for each instant that fired, and a skip for each that is announced."""
    facts = [recorded.message for recorded in past.facts]
    fired = [fact for fact in facts if isinstance(fact, Due)]
    announced = [skip for fact in facts if isinstance(fact, Due | Passed) for skip in skipped_instants(fact, ANY_JOB)]
    return [
        row(fact.scheduled_time, STATUSES[n % len(STATUSES)], definition=fact.definition)
        for n, fact in enumerate(fired)
    ] + [
        row(
            skip.scheduled_time,
            "skipped",
            definition=skip.definition,
            execution_id=skip.execution_id,
            reason=skip.reason,
        )
        for skip in announced
    ]


def counts_of(rows: Sequence[ExecutionRow], width: timedelta) -> list[ExecutionCount]:
    """The counts of executions."""
    counts = Counter(
        (
            EPOCH + (row.scheduled_time - EPOCH) // width * width,
            row.definition,
            row.trigger,
            counted_status(row.status, row.reason),
        )
        for row in rows
    )
    return [ExecutionCount(*key, total) for key, total in counts.items()]


def passed_of(past: Past) -> list[PassedSpan]:
    """The spans of instants that passed without a pause."""
    facts = [recorded.message for recorded in past.facts if isinstance(recorded.message, Passed)]
    return [
        PassedSpan(fact.start, fact.until, fact.reason, fact.count, fact.definition)
        for fact in facts
        if fact.reason in MISSED_REASONS and fact.count
    ]


def marks(past: Past, window: Window, rows: Sequence[ExecutionRow] | None = None) -> list[TimelineMark]:
    """Every mark."""
    shown = [
        each for each in (rows_of(past) if rows is None else rows) if window.since <= each.scheduled_time < window.until
    ]
    listed, is_complete = marks_of(past.evidence, shown, window, Effort(EFFORT_S), most=100_000)
    assert is_complete
    return listed


def buckets(past: Past, window: Window, width: timedelta) -> Buckets:
    """The buckets of one width."""
    spans = window.spans(width)
    covered, ledger, counted = window.covered(spans), past.evidence, Buckets(spans, Effort(EFFORT_S))
    counted.add_executions(counts_of(rows_of(past), width), ledger)
    counted.add_passed(passed_of(past), ledger)
    counted.add_stretches(ledger.stretches(covered.since, covered.until))
    return counted
