"""Counts of executions that reached a worker or were lost before.

Counts come from events (cloacina, CronExecutionStats, RecoveryStats): an execution without events is not counted, and
an open execution is neither a success nor a loss. An execution that was skipped, or cancelled before a worker had it,
does not count at all.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from .events import Advanced, Exhausted, Failed, Message, Recorded, RetryScheduled, Started
from .recovery import ABANDONED, TIMED_OUT

Happening: TypeAlias = Literal[
    "planned", "admitted", "started", "advanced", "recovered", "completed", "failed", "cancelled", "skipped"
]


@dataclass(frozen=True, slots=True)
class ExecutionStats:
    """The hand-off of executions to workers.

    `success_rate` is a percentage of the executions that reached a worker or were lost.
    """

    total_executions: int
    """Executions that reached a worker, were lost, or are pending."""
    successful_executions: int
    """Executions that a worker claimed or reported on."""
    lost_executions: int
    """Executions that failed without a worker, or were lost and have not reached one since."""
    pending_executions: int
    success_rate: float | None
    """None: there is no execution to compute it from."""


@dataclass(frozen=True, slots=True)
class RecoveryStats:
    """The outcomes of recoveries; an unfinished recovery counts as an attempt only."""

    total_recovery_attempts: int
    successful_recoveries: int
    """Recoveries after which a worker had the execution."""
    failed_recoveries: int
    """Recoveries after which the execution was lost again or failed."""
    abandoned_recoveries: int
    """Executions that were lost for good."""
    recovery_success_rate: float | None


@dataclass(slots=True)
class _Seen:
    """The counted properties of one execution."""

    began: bool = False
    handed: bool = False
    recovering: bool = False
    end: Happening | None = None


@dataclass(slots=True)
class Tally:
    """A counter of events in log order; it keeps a few flags for each execution."""

    _executions: dict[str, _Seen] = field(default_factory=dict)
    _attempts: int = 0
    _successes: int = 0
    _failures: int = 0
    _abandoned: int = 0

    def record(self, execution: str, what: Happening) -> None:
        """Count an event of an execution."""
        record = self._executions.setdefault(execution, _Seen())
        match what:
            case "planned" | "admitted":
                record.began = True
            case "recovered":
                self._attempts += 1
                self._failures += record.recovering
                record.recovering = True
            case "started" | "advanced" | "completed":
                record.handed = True
                self._successes += record.recovering
                record.recovering = False
            case "failed":
                self._failures += record.recovering
                record.recovering = False
            case "cancelled" | "skipped":
                record.recovering = False
        if what in {"completed", "failed", "cancelled", "skipped"}:
            record.end = what

    def failed(self, execution: str, fact: Failed, facts: Iterable[Recorded[Message]] = ()) -> None:
        """Count a failed execution.

        `facts` are all its events, for an execution without a claim.
        """
        self._abandoned += fact.reason == ABANDONED
        record = self._executions.setdefault(execution, _Seen())
        record.handed = record.handed or any(_is_answered(recorded.message) for recorded in facts) or _is_answered(fact)

    def was_handed(self, execution: str) -> bool:
        """Return whether a worker is known to have had an execution."""
        record = self._executions.get(execution)
        return record is not None and record.handed

    def executions(self) -> ExecutionStats:
        """Return the counts of executions whose beginning was counted."""
        records = [record for record in self._executions.values() if record.began]
        successful = sum(record.handed for record in records)
        lost = sum(not record.handed and (record.end == "failed" or record.recovering) for record in records)
        pending = sum(not record.handed and record.end is None and not record.recovering for record in records)
        return ExecutionStats(
            total_executions=successful + lost + pending,
            successful_executions=successful,
            lost_executions=lost,
            pending_executions=pending,
            success_rate=_percentage(successful, lost),
        )

    def recoveries(self) -> RecoveryStats:
        """Return the counts of recoveries, no matter when the executions began."""
        return RecoveryStats(
            total_recovery_attempts=self._attempts,
            successful_recoveries=self._successes,
            failed_recoveries=self._failures,
            abandoned_recoveries=self._abandoned,
            recovery_success_rate=_percentage(self._successes, self._failures),
        )


def _is_answered(fact: Message) -> bool:
    """Return whether an event proves that a worker had the execution.

    MQ executors claim nothing, but they report.
    """
    match fact:
        case Started() | Advanced(adopted_from=None):
            return True
        case RetryScheduled() | Exhausted():
            return fact.error.type != TIMED_OUT
        case Failed(step=str()):
            return fact.step_completed or fact.error is None or fact.error.type != TIMED_OUT
        case _:
            return False


def _percentage(good: int, bad: int) -> float | None:
    return 100.0 * good / (good + bad) if good + bad else None
