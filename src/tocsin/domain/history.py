"""The history of executions and dead letters, as rows (hip-62, Execution History).

A record is the fold of an execution's events in log order. Unlike `execution.evolve`, which serves decisions, it keeps
times and errors, and it tolerates gaps: an event whose predecessors are unreadable still gives a record. A status only
moves forward, from `pending` to `running` to an end, for executions and steps alike; an end is final.

Every event of every execution passes through here. A fold therefore changes its own copy in place, because a new record
for each event would cost more than all other work of the recorder. For the same reason, events are recognized by their
type: a chain of `isinstance` takes longer.
"""

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, Final, TypeAlias, cast

from .events import (
    Admitted,
    Advanced,
    Cancelled,
    Completed,
    Dispatched,
    ExecutionFact,
    Exhausted,
    Failed,
    Failure,
    Message,
    Planned,
    Recorded,
    Recovered,
    Released,
    Requested,
    RetryScheduled,
    Skipped,
    Started,
    Terminal,
)
from .execution import ABANDONED, TIMED_OUT
from .execution_record import OPEN, UNKNOWN_TRIGGER, ExecutionRecord, Recoveries, Status, StepRecord


def executions_of(messages: Iterable[Recorded[Message]]) -> dict[str, bool]:
    """Return the executions that messages may change, and whether each probably begins here."""
    found: dict[str, bool] = {}
    for recorded in messages:
        fact: Any = recorded.message
        kind = type(fact)
        if kind in _EVOLVE and fact.execution_id not in found:
            admits = kind is Admitted or (kind is Dispatched and fact.admits is not None)
            # The admission of an execution that waited for its lock has a fencing token.
            found[fact.execution_id] = kind is Planned or (admits and fact.fence is None)
    return found


def fold(
    old_records: Mapping[str, ExecutionRecord], messages: Iterable[Recorded[Message]], *, opens: bool = True
) -> dict[str, ExecutionRecord]:
    """Return the records that `messages` (oldest first) change, by execution.

    `old_records` holds the records before these messages; without `opens`, no others are made. The record of an id is that of the
    job that has it first: a caller may bring the id of another job's execution, whose record must not change by it.
    """
    records: dict[str, ExecutionRecord] = {}
    for recorded in messages:
        fact: Any = recorded.message
        if (change := _EVOLVE.get(type(fact))) is None:
            continue
        if (record := records.get(fact.execution_id)) is None:
            before = old_records.get(fact.execution_id)
            if before is None and not opens:
                continue
            record = _heard(fact, recorded.time) if before is None else _copy(before)
        if record.job == fact.job:
            records[fact.execution_id] = record
            change(record, fact, recorded.time)
    return records


def evolve(record: ExecutionRecord | None, recorded: Recorded[Message]) -> ExecutionRecord | None:
    """Change the record by an event, and return it.

    Messages that do not concern an execution change nothing, nor do those of another job's execution of the same id.
    """
    if (change := _EVOLVE.get(type(recorded.message))) is None:
        return record
    fact = cast("ExecutionFact", recorded.message)
    if record is None:
        record = _heard(fact, recorded.time)
    elif record.job != fact.job:
        return record
    change(record, fact, recorded.time)
    return record


def _heard(fact: ExecutionFact, at: datetime) -> ExecutionRecord:
    return ExecutionRecord(fact.job, fact.execution_id, trigger=UNKNOWN_TRIGGER, scheduled_time=at, started_at=at)


def _copy(record: Any) -> ExecutionRecord:  # noqa: ANN401 - the stubs of msgspec lack `__copy__`
    copied: ExecutionRecord = record.__copy__()
    copied.steps = {name: step.__copy__() for name, step in record.steps.items()}
    return copied


def _requested(record: ExecutionRecord, fact: Requested | Dispatched, at: datetime) -> None:
    """Note the request; of a task that admits, `admits` has a part."""
    request: Any = fact.admits if type(fact) is Dispatched else fact
    plan, steps, is_admitted = request.plan, record.steps, type(fact) is not Planned
    if is_admitted and not record.has_started:
        record.started_at = at
    record.trigger, record.scheduled_time = fact.trigger, fact.scheduled_time
    record.replay_of, record.tags, record.definition = fact.replay_of, plan.tags, plan.definition
    record.shard, record.occurrence_id = plan.shard, plan.occurrence
    record.start_delay_ms = None if plan.start_delay is None else round(plan.start_delay * 1_000)
    record.queue = plan.steps[0].queue if plan.steps else None
    if request.by is not None:
        record.created_by = request.by.identity
    # In the order of the plan, followed by steps that the plan does not name.
    record.steps = {step.name: steps.get(step.name) or StepRecord() for step in plan.steps} | steps
    if is_admitted and plan.start_at is not None:
        for planned in plan.steps:
            step = record.steps[planned.name]
            if not planned.depends_on and step.status == "pending" and not step.attempt:
                step.phase = "scheduled"


def _told(record: ExecutionRecord, fact: Dispatched | Skipped | Terminal) -> None:
    if record.trigger == UNKNOWN_TRIGGER:
        record.trigger, record.scheduled_time = fact.trigger, fact.scheduled_time


def _dispatched(record: ExecutionRecord, fact: Dispatched, at: datetime) -> None:
    if fact.admits is not None:
        _requested(record, fact, at)
    _told(record, fact)
    if (step := _open_step(record, fact.step, fact.attempt)) is not None:
        step.phase = None


def _started(record: ExecutionRecord, fact: Started, at: datetime) -> None:
    if not record.has_started:
        record.started_at = at
    record.worker, record.agent = fact.worker, fact.agent
    _handed_over(record)
    if (step := _running_step(record, fact.step, fact.attempt)) is not None:
        step.status = "running"
        step.started_at = step.started_at or at
        step.worker = fact.worker
        step.phase = "active"


def _released(record: ExecutionRecord, fact: Released, _: datetime) -> None:
    step = record.steps.get(fact.step)
    if step is not None and step.phase == "active" and step.attempt == fact.attempt:
        step.phase = None


def _handed_over(record: ExecutionRecord, error: Failure | None = None) -> None:
    """Note that a worker has the execution, unless `error` is a time limit.

    MQ executors claim nothing, but they report.
    """
    if error is None or error.type != TIMED_OUT:
        if record.is_recovering:
            record.recoveries = record.recoveries._replace(successful=record.recoveries.successful + 1)
        record.was_handed_over = True


def _recovered(record: ExecutionRecord, _fact: Recovered, _: datetime) -> None:
    if record.status in OPEN:
        tried, successful, failed, abandoned = record.recoveries
        record.recoveries = Recoveries(tried + 1, successful, failed + record.is_recovering, abandoned)


def _retried(record: ExecutionRecord, fact: RetryScheduled, _: datetime) -> None:
    _handed_over(record, fact.error)
    if (step := _running_step(record, fact.step, fact.attempt)) is not None:
        step.status, step.error, step.phase = "running", fact.error.summary, "retryable"
    _failure(record, fact.error)


def _exhausted(record: ExecutionRecord, fact: Exhausted, at: datetime) -> None:
    _handed_over(record, fact.error)
    if (step := _running_step(record, fact.step, fact.attempt)) is not None:
        _end(step, "failed", at)
        step.error = fact.error.summary
    _failure(record, fact.error)


def _advanced(record: ExecutionRecord, fact: Advanced, at: datetime) -> None:
    if fact.adopted_from is None:
        _handed_over(record)
    if (step := _running_step(record, fact.step, fact.attempt)) is not None:
        _end(step, "completed", at)
        step.result = fact.result


def _completed(record: ExecutionRecord, fact: Completed, at: datetime) -> None:
    if _ends(record, fact):
        _handed_over(record)
        record.result = fact.result
        if fact.step is not None and (step := _open_step(record, fact.step, fact.attempt or 1)) is not None:
            _end(step, "completed", at)
            step.result = fact.result
        for name in fact.cancelled_steps:
            if (step := _open_step(record, name, 0)) is not None:
                _end(step, "cancelled", at)
        _over(record, fact.type, at)


def _failed(record: ExecutionRecord, fact: Failed, at: datetime) -> None:
    if _ends(record, fact):
        tried, successful, failed, abandoned = record.recoveries
        is_lost = fact.reason == ABANDONED
        record.recoveries = Recoveries(tried, successful, failed + record.is_recovering, abandoned + is_lost)
        record.was_handed_over |= fact.step is not None and (
            fact.step_completed or fact.error is None or fact.error.type != TIMED_OUT
        )
        record.result = fact.result
        if fact.first_error is not None:
            _failure(record, fact.first_error)
        if fact.step is not None and (step := _open_step(record, fact.step, fact.attempt or 1)) is not None:
            _end(step, "completed" if fact.step_completed else "failed", at)
            step.result = fact.result
            if fact.error is not None and not fact.step_completed:
                step.error = fact.error.summary
        _over(record, fact.type, at, step_status="cancelled")


def _called_off(record: ExecutionRecord, fact: Skipped | Cancelled, at: datetime) -> None:
    if _ends(record, fact):
        record.reason = fact.reason
        if isinstance(fact, Skipped):
            if fact.refusal is not None:
                _failure(record, Failure(type=fact.refusal.code, message=fact.refusal.message))
            elif record.definition is None:
                record.definition = fact.definition
        _over(record, fact.type, at)


def _ends(record: ExecutionRecord, fact: Skipped | Terminal) -> bool:
    _told(record, fact)
    return record.status in OPEN


def _over(record: ExecutionRecord, status: Status, at: datetime, *, step_status: Status | None = None) -> None:
    """End the execution; its open steps get the status `step_status`."""
    record.status, record.completed_at = status, at
    record.attempt = 0  # no attempt was made
    for step in record.steps.values():
        record.attempt = max(record.attempt, step.attempt)
        if step.status in OPEN:
            _end(step, step_status or status, at)


def _end(step: StepRecord, status: Status, at: datetime) -> None:
    step.status, step.ended_at, step.phase = status, at, None


def _failure(record: ExecutionRecord, error: Failure) -> None:
    record.error, record.error_type, record.traceback = error.summary, error.type, error.traceback


def _running_step(record: ExecutionRecord, name: str, attempt: int) -> StepRecord | None:
    if record.status == "pending":
        record.status = "running"
    return _open_step(record, name, attempt)


def _open_step(record: ExecutionRecord, name: str, attempt: int) -> StepRecord | None:
    """Return an open step that has reached this attempt; None: the step is over."""
    record.attempt = max(record.attempt, attempt)
    step = record.steps.get(name)
    if step is None:
        step = record.steps[name] = StepRecord()
    if step.status not in OPEN:
        return None
    step.attempt = max(step.attempt, attempt)
    return step


_Change: TypeAlias = Callable[[ExecutionRecord, Any, datetime], None]

_EVOLVE: Final[Mapping[Any, _Change]] = {
    Planned: _requested,
    Admitted: _requested,
    Skipped: _called_off,
    Dispatched: _dispatched,
    Started: _started,
    Released: _released,
    Recovered: _recovered,
    RetryScheduled: _retried,
    Advanced: _advanced,
    Exhausted: _exhausted,
    Completed: _completed,
    Failed: _failed,
    Cancelled: _called_off,
}
"""The effect of each event type; other types are ignored."""


def rows_affected(result: object) -> int | None:
    """Return the number of rows that the result of a run names."""
    rows = result.get("rows_affected") if isinstance(result, dict) else None
    return rows if isinstance(rows, int) and not isinstance(rows, bool) else None
