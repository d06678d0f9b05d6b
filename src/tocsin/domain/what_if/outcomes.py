"""The outcome of an execution, recorded or replayed."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from operator import attrgetter
from typing import Final, Literal, TypeAlias

from ..events import Cancelled, Failed, Skipped, TriggerKind
from .recorded import Run

Status: TypeAlias = Literal["waiting", "running", "completed", "failed", "cancelled", "skipped"]

SUPERSEDED: Final = "superseded"
"""The reason of a cancellation under `cancel_previous`."""
REQUESTED: Final = "requested"
"""The reason of any other cancellation."""


@dataclass(slots=True)
class Outcome:
    """One execution at the end of the window.

    Attributes:
        job: its job.
        execution_id: its id.
        trigger: its cause.
        scheduled_time: the instant, or the time of its trigger (UTC).
        shard: the shard on which it runs, if its job is divided.
        requested_at: when the ticker decided on the instant, or the trigger was planned.
        status: `waiting` until it is admitted, then `running`, then its end.
        reason: why it was skipped, cancelled or failed.
        found_lock_held: another execution held its lock when it needed the lock.
        admitted_at: when it got its lock, or did not need one.
        started_at: when a worker started it.
        ended_at: when it ended.
        is_estimated: its duration was not recorded.
    """

    job: str
    execution_id: str
    trigger: TriggerKind
    scheduled_time: datetime
    shard: str | None
    requested_at: datetime
    status: Status = "waiting"
    reason: str | None = None
    found_lock_held: bool = False
    admitted_at: datetime | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    is_estimated: bool = False

    @property
    def is_over(self) -> bool:
        return self.status not in {"waiting", "running"}

    @property
    def is_superseded(self) -> bool:
        """Whether `cancel_previous` cancelled it."""
        return self.status == "cancelled" and self.reason == SUPERSEDED

    @property
    def lock_wait(self) -> float:
        """The seconds for which it waited for its lock; 0: the lock was free."""
        if not self.found_lock_held or self.admitted_at is None:
            return 0.0
        return (self.admitted_at - self.requested_at).total_seconds()

    @property
    def worker_wait(self) -> float:
        """The seconds from its admission until a worker started it."""
        if self.admitted_at is None or self.started_at is None:
            return 0.0
        return (self.started_at - self.admitted_at).total_seconds()


def outcome_of(job: str, run: Run, requested_at: datetime) -> Outcome | None:
    """Return the recorded outcome of an execution; None: its request is not known."""
    request, held_from = run.request, run.held_from
    if request is None:
        return None
    is_admitted = held_from is not None and (run.ended is None or run.ended >= held_from)
    outcome = Outcome(
        job,
        run.execution_id,
        request.trigger,
        request.scheduled_time,
        run.shard,
        requested_at,
        "running" if is_admitted else "waiting",
        found_lock_held=run.queued is not None or bool(run.cancellations) or _is_skipped_by_lock(run),
        admitted_at=held_from.time if held_from is not None and is_admitted else None,
        started_at=run.started_at,
    )
    if run.ended is not None:
        outcome.ended_at = run.ended.time
        outcome.status, outcome.reason = end_of(run)
    return outcome


def end_of(run: Run) -> tuple[Status, str | None]:
    """Return the status and the reason of an execution that has ended."""
    match run.end:
        case Skipped() as end:
            return "skipped", end.reason
        case Cancelled():
            return "cancelled", REQUESTED if run.superseded_by is None else SUPERSEDED
        case Failed() as end:
            return "failed", end.reason
        case _:
            return "completed", None


def overlapping(outcomes: Iterable[Outcome]) -> Iterator[Outcome]:
    """Yield the executions that found another execution of their job and shard active."""
    busy_until: dict[tuple[str, str | None], datetime | None] = {}
    for outcome in sorted(outcomes, key=attrgetter("requested_at")):
        key = outcome.job, outcome.shard
        if outcome.admitted_at is None:
            if outcome.found_lock_held:
                yield outcome
            continue
        if outcome.found_lock_held or _is_busy(busy_until, key, outcome.admitted_at):
            yield outcome
        last = busy_until.get(key, outcome.admitted_at)
        ended_at = None if outcome.ended_at is None else outcome.ended_at
        busy_until[key] = None if last is None or ended_at is None else max(last, ended_at)


def _is_busy(
    busy_until: Mapping[tuple[str, str | None], datetime | None], key: tuple[str, str | None], at: datetime
) -> bool:
    until = busy_until.get(key, at)
    return until is None or until > at


def _is_skipped_by_lock(run: Run) -> bool:
    return isinstance(run.end, Skipped) and run.end.active_execution_id is not None
