"""Counts of executions that reached a worker or were lost before.

The counts of cloacina (CronExecutionStats, RecoveryStats): an open execution is neither a success nor a loss. An execution
that was skipped, or cancelled before a worker had it, does not count at all.
"""

from dataclasses import dataclass

from .execution_record import Recoveries


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

    @classmethod
    def of(cls, successful: int, lost: int, pending: int) -> "ExecutionStats":
        """Return the counts with their sum and rate."""
        return cls(successful + lost + pending, successful, lost, pending, _percentage(successful, lost))


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

    @classmethod
    def of(cls, sums: Recoveries) -> "RecoveryStats":
        return cls(*sums, _percentage(sums.successful, sums.failed))


def _percentage(good: int, bad: int) -> float | None:
    return 100.0 * good / (good + bad) if good + bad else None
