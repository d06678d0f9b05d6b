"""Filters of a list of jobs, and the fields of every job that they compare.

Jobs are kept in blocks by name, and a block knows the common fields of its jobs. So a filter looks only at the jobs of few blocks.
With 100,000 jobs, to reach each job in memory takes longer than all comparisons.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from operator import attrgetter
from typing import Final, NamedTuple

from pydantic import JsonValue
from typing_extensions import override

from ...domain.definition import JobDefinition
from ...domain.execution_record import Status
from ...domain.identity import typed
from ...ports import History
from ...ports.summaries import JobRuns
from ..calculations import Effort
from .job import Job, JobStatus
from .job_follower import JobFollower, NextInstants

MAX_TEXT: Final = 1_000
"""Characters that are kept of a job. A job with a longer text is always a candidate."""
BLOCK_JOBS: Final = 256
"""A block with more jobs is divided."""


class _Keys(NamedTuple):
    text: str | None
    """The name, the description and the tags, case-folded."""
    queues: tuple[str, ...]
    owner: str | None
    job: Job


class _Block:
    """The jobs in one range of names, and their common texts, queues and owners.

    A removed job may still be a part of these: then the block is looked at in vain.
    """

    __slots__ = ("_has_long", "_is_known", "_is_sorted", "_owners", "_queues", "_text", "jobs")

    def __init__(self) -> None:
        self.jobs: dict[str, _Keys] = {}
        self._is_known = False
        self._is_sorted = True

    def add(self, name: str, keys: _Keys) -> None:
        self._is_sorted = self._is_sorted and (not self.jobs or name > next(reversed(self.jobs)))
        self.jobs[name] = keys
        self._is_known = self._is_known and self._covers(keys)

    def by_name(self) -> Iterable[_Keys]:
        if not self._is_sorted:
            self.jobs = dict(sorted(self.jobs.items()))
            self._is_sorted = True
        return self.jobs.values()

    def divide(self) -> tuple[str, "_Block"]:
        """Take out the second half of the jobs; return its first name, and its block."""
        names = sorted(self.jobs)
        half = _Block()
        half.jobs = {name: self.jobs.pop(name) for name in names[len(names) // 2 :]}
        self._is_known = False
        return names[len(names) // 2], half

    def may_have(self, texts: Sequence[str], queue: str | None, owner: str | None) -> bool:
        """Return whether a job may have some texts, a queue and an owner."""
        if not self._is_known:
            self._know()
        return (
            (self._has_long or all(wanted in self._text for wanted in texts))
            and (queue is None or queue in self._queues)
            and (owner is None or owner in self._owners)
        )

    def _covers(self, keys: _Keys) -> bool:
        has_text = self._has_long or (keys.text is not None and keys.text in self._text)
        return has_text and self._queues.issuperset(keys.queues) and keys.owner in self._owners

    def _know(self) -> None:
        texts = [keys.text for keys in self.jobs.values()]
        self._has_long = None in texts
        self._text = "\n".join(text for text in texts if text is not None)
        self._queues = {queue for keys in self.jobs.values() for queue in keys.queues}
        self._owners = {keys.owner for keys in self.jobs.values()}
        self._is_known = True


class SearchKeys(JobFollower):
    """Keeps the fields of every job that filters compare."""

    def __init__(self) -> None:
        super().__init__()
        self._firsts = [""]
        """The name at which each block begins."""
        self._blocks = [_Block()]

    def candidates(self, texts: Sequence[str], queue: str | None, owner: str | None) -> list[Job]:
        """Return the jobs that may have some texts, a queue and an owner.

        They are sorted by name. The texts are case-folded. Call it within `following`.
        """
        found: list[Job] = []
        for block in self.looked_at(texts, queue, owner):
            keys = block.by_name()
            for wanted in texts:
                keys = [each for each in keys if each.text is None or wanted in each.text]
            if queue is not None:
                keys = [each for each in keys if queue in each.queues]
            if owner is not None:
                keys = [each for each in keys if owner == each.owner]
            found += [each.job for each in keys]
        return found

    def looked_at(self, texts: Sequence[str], queue: str | None, owner: str | None) -> list["_Block"]:
        """Return the blocks that `candidates` looks at."""
        return [block for block in self._blocks if block.may_have(texts, queue, owner)]

    @override
    def _add(self, job: Job) -> None:
        definition = job.definition
        text = "\n".join((definition.name, definition.description or "", *definition.tags)).casefold()
        keys = _Keys(text if len(text) <= MAX_TEXT else None, definition.step_queues(), job.owner, job)
        number = self._number(job.name)
        block = self._blocks[number]
        block.add(job.name, keys)
        if len(block.jobs) > BLOCK_JOBS:
            first, half = block.divide()
            self._firsts.insert(number + 1, first)
            self._blocks.insert(number + 1, half)

    @override
    def _remove(self, job: Job) -> None:
        number = self._number(job.name)
        block = self._blocks[number]
        del block.jobs[job.name]
        if number and not block.jobs:
            del self._firsts[number], self._blocks[number]

    @override
    def _clear(self) -> None:
        self._firsts, self._blocks = [""], [_Block()]

    def _number(self, name: str) -> int:
        return bisect_right(self._firsts, name) - 1


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
        """Return the jobs that may meet the conditions, from the fields that are kept.

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
