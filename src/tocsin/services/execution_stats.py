"""Count how well executions reach their workers."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from operator import add
from typing import Final

from pydantic import ConfigDict

from ..domain.execution_record import Recoveries
from ..ports.summaries import HistorySummaries
from .overview import SeesRun


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


def _percentage(good: int, bad: int) -> float | None:
    return 100.0 * good / (good + bad) if good + bad else None


MAX_COUNTED: Final = 200_000
"""The executions that are counted, those that were scheduled last."""


@dataclass(frozen=True, slots=True)
class Statistics:
    """Counts of executions that were scheduled from `since` to `until` (UTC), and recoveries."""

    __pydantic_config__ = ConfigDict(use_attribute_docstrings=True)

    since: datetime
    """Later than requested if there are too many executions."""
    until: datetime
    executions: ExecutionStats
    recoveries: RecoveryStats


async def statistics(
    summaries: HistorySummaries,
    *,
    since: datetime,
    now: datetime,
    job: str | None = None,
    sees: SeesRun | None = None,
    namespaces: Collection[str] | None = None,
) -> Statistics:
    """Count the executions that were scheduled since an instant (UTC), and their recoveries.

    `sees` decides which executions count, and `namespaces` are those to which the caller is bound; None: all.
    """
    found = await summaries.hand_overs(since, limit=MAX_COUNTED, job=job, namespaces=namespaces)
    successful = lost = pending = 0
    recoveries = Recoveries()
    for group, (count, of_group) in found.groups.items():
        if sees is not None and not await sees(group.job_name, group.definition, group.status, since):
            continue
        recoveries = Recoveries(*map(add, recoveries, of_group))
        if group.was_handed_over:
            successful += count
        elif group.is_recovering or group.status == "failed":
            lost += count
        elif group.status in {"pending", "running"}:
            pending += count
    total, rate = successful + lost + pending, _percentage(successful, lost)
    counts = ExecutionStats(total, successful, lost, pending, rate)
    of_recoveries = RecoveryStats(*recoveries, _percentage(recoveries.successful, recoveries.failed))
    return Statistics(found.since, now, counts, of_recoveries)
