"""Filters of a list of jobs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from operator import attrgetter

from pydantic import JsonValue

from ...domain.definition import JobDefinition
from ...domain.execution_record import Status
from ...domain.identity import typed
from ...ports import History
from ...ports.summaries import JobRuns
from ..calculations import Effort
from .job import Job, JobStatus
from .next_instants import NextInstants
from .search_keys import SearchKeys


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
        return self.running > 0

    @classmethod
    def of(cls, runs: JobRuns) -> "RunCounters":
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


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFilter:
    """The conditions of a list of jobs. A field that is None filters nothing."""

    search: str | None = None
    """Text in the name, the description or a tag, in any case."""
    state: JobStatus | None = None
    queue: str | None = None
    """The queue of at least one step."""
    tag: str | None = None
    owner: str | None = None

    def candidates(
        self, jobs: Sequence[Job], keys: SearchKeys, instants: NextInstants, effort: Effort
    ) -> Sequence[Job]:
        """Return the jobs that may meet the conditions, from what is kept of them.

        `jobs` and the result are sorted by name.
        """
        texts = [text.casefold() for text in (self.search, self.tag) if text is not None]
        if texts or self.queue is not None or self.owner is not None:
            owner = None if self.owner is None else typed(self.owner)
            with keys.following(jobs, effort) as is_complete:
                if is_complete:
                    return keys.candidates(texts, self.queue, owner)
        elif self.state is not None:
            with instants.following(jobs, effort) as is_complete:
                if is_complete:
                    return sorted(instants.in_state(self.state), key=attrgetter("name"))
        return jobs

    def includes(self, job: Job, status_of: Callable[[Job], JobStatus]) -> bool:
        """Return whether a job meets all conditions. Cheap conditions are tested first."""
        definition = job.definition
        return (
            (self.tag is None or self.tag in definition.tags)
            and (self.owner is None or job.owner == typed(self.owner))
            and (self.queue is None or self.queue in definition.step_queues())
            and (self.search is None or _mentions(definition, self.search.casefold()))
            and (self.state is None or status_of(job) == self.state)
        )


def _mentions(definition: JobDefinition, text: str) -> bool:
    return (
        text in definition.name
        or (definition.description is not None and text in definition.description.casefold())
        or any(text in tag.casefold() for tag in definition.tags)
    )
