"""The marks of a timeline, one for each instant."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Final

from ...domain import ids
from ...domain.events import Due, Passed, Recorded
from ...domain.replay import INSTANT, Decision, Past, verdict_of
from ...domain.schedule import Occurrence, Schedule
from ...ports import ExecutionRow
from ..calculations import Effort
from .model import MarkDecision, TimelineMark, Window

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
        after = max(fact.start, regime.fact.time, window.since - INSTANT)
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
