"""The next instant and the state of every job, calculated once for each ledger."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from ...domain.ledger import Ledger
from ..calculations import Effort
from .job import Job, JobStatus


@dataclass(frozen=True, slots=True)
class JobInstant:
    """The state of a job, and its first instant that is not decided yet."""

    ledger: Ledger
    status: JobStatus
    next: datetime | None
    """None: the job is paused or disabled, or has no further instant."""


class NextInstants:
    """Calculates the next instants of jobs once for each of their ledgers."""

    def __init__(self) -> None:
        self._known: dict[str, JobInstant] = {}

    def of(self, jobs: Sequence[Job], effort: Effort) -> Iterator[tuple[Job, JobInstant]]:
        """Yield each job with its next instant.

        It ends early if the effort is spent. What was calculated by then is kept, so that the next call goes further.
        """
        known = self._known
        for job in jobs:
            instant = known.get(job.name)
            if instant is None or instant.ledger is not job.ledger:
                if effort.is_spent():
                    return
                instant = known[job.name] = _instant(job)
            yield job, instant
        if len(known) > len(jobs):  # of deleted jobs
            self._known = {job.name: known[job.name] for job in jobs if job.name in known}


def _instant(job: Job) -> JobInstant:
    state = job.ledger
    since = job.ledger.regimes[-1].since
    decided = since if state.watermark is None else max(since, state.watermark)
    return JobInstant(state, job.status, job.next_fire_time(decided))
