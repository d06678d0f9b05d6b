"""The state of a job and the counters of its runs, at one moment."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from ..services.jobs import Job, JobStatus, LastResult, RunCounters
from .errors import CountersUnknown

_COUNTS: Final = ("last_run", "last_duration_ms", "last_result", "run_count", "error_count", "skip_count", "is_running")


@dataclass(frozen=True, slots=True)
class JobSnapshot:
    """A job and the counters of its runs.

    The counters are recorded a moment after the events.
    """

    name: str
    """The name of the job."""
    schedule: str | None
    """The schedule as it is written; None: the job runs on demand."""
    state: JobStatus
    """`active`, `paused`, `disabled` or `on demand`."""
    next_run: datetime | None
    """The next undecided instant of the schedule; None: the job does not fire by a schedule."""
    last_run: datetime | None
    """The time at which an execution ended or was skipped last; None: unknown, or never."""
    last_duration_ms: int | None
    """The duration of the last run; None: no worker started it."""
    last_result: LastResult | None
    """How the last run ended. Its `result` is None in `get_all_status`, and after the history has deleted the execution."""
    run_count: int
    """The executions that ended or were skipped, also those whose rows expired."""
    error_count: int
    """The executions that failed."""
    skip_count: int
    """The executions that were skipped."""
    is_running: bool
    """An execution runs now."""
    is_paused: bool
    """The job is paused."""

    @classmethod
    def of(cls, job: Job, runs: RunCounters | None) -> "JobSnapshot":
        """Return the snapshot of a job with its counters."""
        if runs is None:
            raise CountersUnknown(job.name)
        return cls(
            name=job.name,
            schedule=job.definition.schedule,
            state=job.status,
            next_run=job.next_undecided(),
            is_paused=job.ledger.is_paused,
            **{counter: getattr(runs, counter) for counter in _COUNTS},
        )


def snapshots_of(jobs: tuple[Job, ...], runs: Mapping[str, RunCounters]) -> tuple[JobSnapshot, ...]:
    """Return snapshots of jobs; a job that was registered meanwhile has no runs yet."""
    if jobs and not runs:
        raise CountersUnknown(jobs[0].name)
    return tuple(JobSnapshot.of(job, runs.get(job.name, RunCounters())) for job in jobs)
