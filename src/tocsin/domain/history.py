"""The history: what has become of each execution, and what failed for good, as rows (hip-62, Execution History).

A record is the fold of an execution's facts, in the order of the log. Unlike `execution.evolve`, which serves decisions, it
keeps times and errors, and it makes the best of a log with gaps: a fact whose predecessors nobody could read still gives a
record. A status only moves forward, `pending` to `running` to one of the ends, for executions and steps alike; what was
over stays over.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final, Literal, TypeAlias

from pydantic import JsonValue

from .events import (
    Admitted,
    Advanced,
    Attempt,
    Cancelled,
    Completed,
    DeadLettered,
    Dispatched,
    ExecutionFact,
    Exhausted,
    Failed,
    Failure,
    Message,
    Recorded,
    Refused,
    Requested,
    Resolved,
    RetryScheduled,
    Skipped,
    Started,
    Terminal,
)

Status: TypeAlias = Literal["pending", "running", "completed", "failed", "cancelled", "skipped"]

UNTOLD: Final = "unknown"
"""The trigger of an execution none of whose readable facts names it."""

_MILLISECOND: Final = timedelta(milliseconds=1)
_OPEN: Final = frozenset({"pending", "running"})

# --- state -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step: when its first attempt started, when its last one ended, and how the last one that failed did."""

    status: Status = "pending"
    attempt: int = 0
    started_at: datetime | None = None
    ended_at: datetime | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class ExecutionRecord:
    """One execution.

    `started_at` is never absent (hip-62 asks for it): until a step starts it is when the execution was admitted, and until
    then when it was first heard of. `attempt` is the highest of any step, `worker` the last to claim one, and `error` tells
    the last failure ("Type: message"), which a later attempt may have made good.
    """

    job: str
    execution_id: str
    trigger: str
    scheduled_time: datetime
    started_at: datetime
    completed_at: datetime | None = None
    status: Status = "pending"
    attempt: int = 1
    worker: str | None = None
    error: str | None = None
    steps: Mapping[str, StepRecord] = field(default_factory=dict)

    @property
    def has_started(self) -> bool:
        """An executor claimed a step of it."""
        return any(step.started_at is not None for step in self.steps.values())

    @property
    def duration_ms(self) -> int | None:
        """Milliseconds from the first start to the end; `None` where one of them has not happened."""
        if self.completed_at is None or not self.has_started:
            return None
        return max(0, (self.completed_at - self.started_at) // _MILLISECOND)


# --- evolve ----------------------------------------------------------------------------------------------------------


def fold(known: Mapping[str, ExecutionRecord], messages: Iterable[Recorded[Message]]) -> dict[str, ExecutionRecord]:
    """The records, by execution, of all executions that `messages` (oldest first) change; `known`: as they were."""
    records: dict[str, ExecutionRecord] = {}
    for recorded in messages:
        fact = recorded.message
        if isinstance(fact, ExecutionFact):
            before = records.get(fact.execution_id) or known.get(fact.execution_id)
            after = evolve(before, recorded)
            if after is not None and after is not before:
                records[fact.execution_id] = after
    return records


def evolve(  # noqa: PLR0911 - one line a fact is what a fold is
    record: ExecutionRecord | None, recorded: Recorded[Message]
) -> ExecutionRecord | None:
    """The record after one more fact. Total: what tells nothing of an execution changes nothing."""
    fact, at = recorded.message, recorded.time
    if not isinstance(fact, ExecutionFact):
        return record
    known = record or _heard(fact, at)
    match fact:
        case Requested():
            return _requested(known, fact, at)
        case Dispatched():
            return _with_step(_told(known, fact), fact.step, fact.attempt)
        case Started():
            return _started(known, fact, at)
        case RetryScheduled():
            return _failed_attempt(_running(known), fact, "running", None)
        case Advanced():
            return _with_step(_running(known), fact.step, fact.attempt, "completed", ended_at=at)
        case Exhausted():
            return _failed_attempt(_running(known), fact, "failed", at)
        case Skipped() | Completed() | Failed() | Cancelled():
            return _over(_told(known, fact), fact, at)
        case _:
            return record


def _heard(fact: ExecutionFact, at: datetime) -> ExecutionRecord:
    """What can be said of an execution at its first readable fact."""
    return ExecutionRecord(fact.job, fact.execution_id, trigger=UNTOLD, scheduled_time=at, started_at=at)


def _told(record: ExecutionRecord, fact: Requested | Dispatched | Skipped | Terminal) -> ExecutionRecord:
    if record.trigger != UNTOLD:
        return record
    return replace(record, trigger=fact.trigger, scheduled_time=fact.scheduled_time)


def _requested(record: ExecutionRecord, fact: Requested, at: datetime) -> ExecutionRecord:
    is_admission = isinstance(fact, Admitted) and not record.has_started
    steps = {step.name: record.steps.get(step.name) or StepRecord() for step in fact.plan.steps}
    return replace(
        record,
        trigger=fact.trigger,
        scheduled_time=fact.scheduled_time,
        started_at=at if is_admission else record.started_at,
        steps={**steps, **record.steps},
    )


def _running(record: ExecutionRecord) -> ExecutionRecord:
    return replace(record, status="running") if record.status == "pending" else record


def _started(record: ExecutionRecord, fact: Started, at: datetime) -> ExecutionRecord:
    step = record.steps.get(fact.step) or StepRecord()
    return replace(
        _with_step(_running(record), fact.step, fact.attempt, "running", started_at=step.started_at or at),
        started_at=record.started_at if record.has_started else at,
        worker=fact.worker,
    )


def _failed_attempt(
    record: ExecutionRecord, fact: RetryScheduled | Exhausted, status: Status, ended_at: datetime | None
) -> ExecutionRecord:
    error = line(fact.error)
    return replace(_with_step(record, fact.step, fact.attempt, status, ended_at=ended_at, error=error), error=error)


def _over(record: ExecutionRecord, fact: Skipped | Completed | Failed | Cancelled, at: datetime) -> ExecutionRecord:
    """The end: whatever step is not over ends with the execution."""
    if record.status not in _OPEN:
        return record
    error = line(fact.error) if isinstance(fact, Failed) and fact.error else None
    if isinstance(fact, Completed | Failed) and fact.step is not None:
        is_done = isinstance(fact, Completed) or fact.step_completed
        status: Status = "completed" if is_done else "failed"
        failure = None if is_done else error
        record = _with_step(record, fact.step, fact.attempt or 1, status, ended_at=at, error=failure)
    left: Status = "cancelled" if isinstance(fact, Failed) else fact.type
    steps = {
        name: replace(step, status=left, ended_at=at) if step.status in _OPEN else step
        for name, step in record.steps.items()
    }
    attempt = max((step.attempt for step in steps.values()), default=0)  # 0: what was skipped was never tried
    return replace(record, status=fact.type, completed_at=at, attempt=attempt, error=error or record.error, steps=steps)


def _with_step(
    record: ExecutionRecord,
    name: str,
    attempt: int,
    status: Status | None = None,
    *,
    started_at: datetime | None = None,
    ended_at: datetime | None = None,
    error: str | None = None,
) -> ExecutionRecord:
    """A step that has got this far; what is not told stays, and what is over stays over."""
    step = record.steps.get(name) or StepRecord()
    if step.status in _OPEN:
        step = StepRecord(
            status=status or step.status,
            attempt=max(step.attempt, attempt),
            started_at=started_at or step.started_at,
            ended_at=ended_at,
            error=error or step.error,
        )
    return replace(record, attempt=max(record.attempt, attempt), steps={**record.steps, name: step})


def line(error: Failure) -> str:
    """A failure in one line, without its traceback."""
    return f"{error.type}: {error.message}" if error.message else error.type


# --- dead letters ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DeadLetterRecord:
    """One dead letter (hip-62, Dead Letter Handling): an execution that failed for good, or a message nobody could use.

    The latter has no execution and no attempts; its `input` is the message as it came, with where it lies in the log.
    """

    id: str
    job: str
    execution_id: str | None
    attempts: tuple[Attempt, ...]
    last_error: str | None
    input: Mapping[str, JsonValue]
    first_attempt: datetime
    last_attempt: datetime


def dead_letters(messages: Iterable[Recorded[Message]]) -> dict[str, DeadLetterRecord]:
    """The dead letters among messages, by id."""
    letters = (_dead_letter(recorded) for recorded in messages)
    return {letter.id: letter for letter in letters if letter is not None}


def resolved(messages: Iterable[Recorded[Message]]) -> set[str]:
    """The dead letters, by id, about which messages say that nothing is left to be done."""
    return {recorded.message.id for recorded in messages if isinstance(recorded.message, Resolved)}


def _dead_letter(recorded: Recorded[Message]) -> DeadLetterRecord | None:
    match recorded.message:
        case DeadLettered() as fact:
            return DeadLetterRecord(
                id=fact.id,
                job=fact.job,
                execution_id=fact.execution_id,
                attempts=fact.attempts,
                last_error=line(fact.last_error) if fact.last_error else None,
                input=fact.input,
                first_attempt=fact.first_attempt,
                last_attempt=fact.last_attempt,
            )
        case Refused() as fact:
            return DeadLetterRecord(
                id=fact.id,
                job=fact.job,
                execution_id=None,
                attempts=(),
                last_error=fact.reason,
                input=fact.model_dump(include={"durable", "subject", "sequence", "body"}),
                first_attempt=recorded.time,
                last_attempt=recorded.time,
            )
        case _:
            return None
