"""The counters of a job's runs, as every interface shows them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from pydantic import JsonValue

from ...domain.execution_record import Status
from ...ports import History
from ...ports.summaries import JobRuns


@dataclass(frozen=True, slots=True)
class LastResult:
    """The end of the last run."""

    execution_id: str
    status: Status
    error: str | None = None
    """The beginning of its last error, also if a later attempt succeeded."""
    reason: str | None = None
    """The reason for a skip or a cancellation."""
    result: JsonValue = None
    """Its result, as long as the history has the execution. Lists leave it out."""


@dataclass(frozen=True, slots=True)
class RunCounters:
    """The counters of a job's runs. They are recorded a moment after the events."""

    run_count: int = 0
    """The executions that ended or were skipped, also those whose rows expired."""
    error_count: int = 0
    """The executions that failed."""
    skip_count: int = 0
    """The executions that were skipped."""
    running: int = 0
    """The executions that run now."""
    last_run: datetime | None = None
    """The time at which an execution ended or was skipped last."""
    last_duration_ms: int | None = None
    """The duration of the last run; null: no worker started it."""
    last_result: LastResult | None = None

    @property
    def is_running(self) -> bool:
        """Return whether an execution runs now."""
        return self.running > 0

    @classmethod
    def of(cls, runs: JobRuns) -> "RunCounters":
        """Return the counters that the history keeps."""
        counts = cls(runs.run_count, runs.error_count, runs.skip_count, runs.running)
        if (last := runs.last) is None:
            return counts
        result = LastResult(last.execution_id, last.status, last.error, last.reason)
        return replace(counts, last_run=last.ended_at, last_duration_ms=last.duration_ms, last_result=result)


async def read_runs(history: History, jobs: Sequence[str]) -> dict[str, RunCounters] | None:
    """Return the counters of registered jobs; None: the history is incomplete until it is rebuilt."""
    runs = await history.summaries.runs(jobs)
    return None if runs is None else {job: RunCounters.of(of_job) for job, of_job in runs.items()}


async def with_result(history: History, counters: RunCounters) -> RunCounters:
    """Return the counters with the result of the last run, if the history has it."""
    last = counters.last_result
    row = None if last is None else await history.execution(last.execution_id)
    if last is None or row is None:
        return counters
    return replace(counters, last_result=replace(last, result=row.result))
