"""The marks of a timeline, one for each instant."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import datetime

from ...domain import ids
from ...domain.events import Due, Passed, Recorded
from ...domain.schedule import Schedule
from ...ports import ExecutionRow
from ..calculations import Effort
from ..explain.judgement import INSTANT
from .model import Decision, Mark, Window
from .regimes import Ledger

CRON = "cron"
"""The trigger of the executions of instants."""


def marks_of(
    ledger: Ledger, rows: Sequence[ExecutionRow], window: Window, effort: Effort, *, most: int
) -> tuple[list[Mark], bool]:
    """Return at most `most` marks of a window by time, and whether they are all.

    `rows`: the executions that are scheduled in the window, as far as the caller sees them.
    """
    marks, is_complete = list[Mark](), True
    for mark in _marks(ledger, rows, window):
        if len(marks) == most or effort.is_spent():
            is_complete = False
            break
        marks.append(mark)
    return sorted(marks, key=lambda mark: (mark.at, mark.decision, mark.status or "")), is_complete


def _marks(ledger: Ledger, rows: Sequence[ExecutionRow], window: Window) -> Iterator[Mark]:
    runs: defaultdict[datetime, list[ExecutionRow]] = defaultdict(list)
    announced: dict[datetime, list[ExecutionRow]] = {}
    for row in rows:
        if row.trigger != CRON:
            yield Mark(row.scheduled_time, "trigger", row.trigger, row.execution_id, row.status)
        elif row.execution_id == ids.passed_id(row.job_name, row.scheduled_time):
            announced[row.scheduled_time] = [row]
        else:
            runs[row.scheduled_time].append(row)
    for mark in _decided(ledger, runs, window):
        if mark.status is None:  # it is the mark of the instant, which an execution announced as skipped
            announced.pop(mark.at, None)
        yield mark
    for at, of_instant in (*runs.items(), *announced.items()):  # the ledger's event is out of reach
        yield from _runs(at, of_instant, late_by=None, reason=None)
    yield from _undecided(ledger, window)


def _decided(ledger: Ledger, runs: dict[datetime, list[ExecutionRow]], window: Window) -> Iterator[Mark]:
    """Yield the marks of the ledger's events, and take their executions out of `runs`."""
    for decision in ledger.evidence.decisions:
        match decision.message:
            case Due(scheduled_time=at) if window.since <= at < window.until:
                yield from _fired(ledger, decision, at, runs.pop(at, ()))
            case Passed() as fact if fact.until >= window.since and fact.start < window.until:
                yield from _passed(ledger, decision, fact, window)
            case _:
                pass


def _fired(
    ledger: Ledger, decision: Recorded[Due | Passed], at: datetime, runs: Sequence[ExecutionRow]
) -> Iterator[Mark]:
    fact = decision.message
    regime = ledger.regime_at(at, decision)
    if regime is None or not ledger.is_seen(regime) or not isinstance(fact, Due):
        return
    late_by, reason = max(0.0, (decision.time - at).total_seconds()), "catch_up" if fact.catch_up else None
    if runs:
        yield from _runs(at, runs, late_by=late_by, reason=reason)
    else:
        yield Mark(at, "fired", reason, ids.occurrence_id(fact.job, at), None, late_by)
    if fact.dst_skip:
        yield Mark(at, "no-such-local-time")


def _runs(at: datetime, runs: Sequence[ExecutionRow], *, late_by: float | None, reason: str | None) -> Iterator[Mark]:
    by_status: defaultdict[str, list[ExecutionRow]] = defaultdict(list)
    for row in runs:
        by_status[row.status].append(row)
    for status, same in by_status.items():
        first = same[0]
        shown: object = status
        yield Mark(at, shown, first.reason or reason, first.execution_id, status, late_by, len(same))  # type: ignore[arg-type] # a status is a decision


def _passed(ledger: Ledger, decision: Recorded[Due | Passed], fact: Passed, window: Window) -> Iterator[Mark]:
    regime = ledger.regime_at(fact.until, decision)
    if regime is None or not ledger.is_seen(regime):
        return
    late_by = max(0.0, (decision.time - fact.until).total_seconds())
    verdict, reason = _verdict(fact, is_paused=regime.paused), None
    if fact.reason == "paused":
        reason = ledger.reason_of(regime)
    fires, schedule = 0, regime.schedule
    if schedule is not None:
        # After a deletion, `start` lies before the definition.
        after = max(fact.start, regime.fact.time, window.since - INSTANT)
        until = min(fact.until, window.until - INSTANT)
        for occurrence in schedule.occurrences(after, until, anchor=ledger.anchor(regime, schedule, fact.until)):
            fires += 1
            if occurrence.excluded:
                continue
            late = max(0.0, (decision.time - occurrence.at).total_seconds())
            if occurrence.skipped_local is not None:
                yield Mark(occurrence.at, "no-such-local-time", late_by=late)
            elif fact.reason != "dst_skip":
                yield Mark(occurrence.at, verdict, reason, late_by=late)
        yield from _excluded(schedule, after, until, ledger.anchor(regime, schedule, fact.until))
    if not fires and fact.count and fact.until < window.until:  # newer zone data names none of them
        yield Mark(fact.until, verdict, reason, late_by=late_by, count=fact.count)


def _excluded(schedule: Schedule, after: datetime, until: datetime, anchor: datetime) -> Iterator[Mark]:
    for at in schedule.excluded_instants(after, until, anchor=anchor):
        yield Mark(at, "excluded", str(schedule.exclusion(at)))


def _verdict(fact: Passed, *, is_paused: bool) -> Decision:
    match fact.reason:
        case "paused":
            return "paused" if is_paused else "disabled"
        case "dst_skip":
            return "no-such-local-time"
        case reason:
            return reason


def _undecided(ledger: Ledger, window: Window) -> Iterator[Mark]:
    """Yield the instants without a stored decision, due or future."""
    for stretch in ledger.stretches(window):
        if stretch.decision is None or stretch.decision in {"paused", "disabled"}:
            continue
        for occurrence in stretch.schedule.occurrences(
            stretch.start - INSTANT, stretch.end - INSTANT, anchor=stretch.anchor
        ):
            late = (ledger.evidence.now - occurrence.at).total_seconds()
            if occurrence.excluded:
                continue
            if occurrence.skipped_local is not None:
                yield Mark(occurrence.at, "no-such-local-time")
            else:
                is_due = stretch.decision == "undecided"
                yield Mark(occurrence.at, stretch.decision, stretch.reason, late_by=late if is_due else None)
        yield from _excluded(stretch.schedule, stretch.start - INSTANT, stretch.end - INSTANT, stretch.anchor)
