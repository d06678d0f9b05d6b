"""The outcomes of a simulation, for the assertions of a test."""

from collections.abc import Sequence
from datetime import datetime, tzinfo
from typing import Any

from ..domain.execution_record import ExecutionRecord
from ..domain.ledger import JobNotFound
from .record import Record, Skip


class Outcomes:
    """The executions, instants, skips and results of a simulation."""

    zone: tzinfo
    """The time zone of the returned times."""
    _record: Record

    def executions(self, job: str | None = None) -> Sequence[ExecutionRecord]:
        """Return the executions of a job, or of all jobs, by scheduled time.

        Raises:
            JobNotFound: the job never existed.
        """
        self._record.read()
        self._require(job)
        found = [each for each in self._record.executions.values() if job is None or each.job == job]
        return sorted(found, key=lambda each: each.scheduled_time)

    def execution(self, execution_id: str) -> ExecutionRecord:
        """Return one execution.

        Raises:
            KeyError: no execution has this id.
        """
        self._record.read()
        return self._record.executions[execution_id]

    def instants(self, job: str) -> list[datetime]:
        """Return the instants of the schedule at which a job ran.

        They are in the time zone of the simulation.

        Raises:
            JobNotFound: the job never existed.
        """
        ran = [each for each in self.executions(job) if each.trigger == "cron" and each.status != "skipped"]
        return [each.scheduled_time.astimezone(self.zone) for each in ran]

    def skips(self, job: str) -> list[Skip]:
        """Return the instants at which a job did not run, with their reasons.

        Raises:
            JobNotFound: the job never existed.
        """
        passed = {
            at: passed.reason for passed in self._record.passed if passed.job == job for at in passed.scheduled_times
        }
        skipped = {each.scheduled_time: each.reason or "" for each in self.executions(job) if each.status == "skipped"}
        reasons = {**skipped, **passed, **self._record.passed_together(job)}
        return [Skip(at.astimezone(self.zone), reasons[at]) for at in sorted(reasons)]

    def results(self, job: str) -> list[Any]:
        """Return the results of the completed executions of a job, each as `run.result()` returns it.

        Raises:
            JobNotFound: the job never existed.
        """
        completed = [each.execution_id for each in self.executions(job) if each.status == "completed"]
        return [self._record.outcome(id_).value() for id_ in completed]

    def _require(self, job: str | None) -> None:
        if job is not None and not self._record.knows(job):
            raise JobNotFound(job)
