"""Summaries of the history, each from a bounded number of rows."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, NamedTuple, Protocol

from ..domain.events import JobState
from ..domain.execution_record import LastRun, Recoveries, Status
from .queries import DeadLetterQuery

ENDED: Final[tuple[Status, ...]] = ("completed", "failed", "skipped", "cancelled")
"""The statuses of executions that are over."""
MAX_ERROR: Final = 500
"""Characters of an error in a short row."""
MAX_STREAK: Final = 10_000
"""Failures of a job that are counted."""


class End(NamedTuple):
    """The minute in which an execution ended, and its definition."""

    minute: datetime
    job_name: str | None = None
    """None: the ends of all jobs are counted together."""
    definition: int | None = None
    """As in `ExecutionRow`."""


@dataclass(frozen=True, slots=True)
class EndCounts:
    """The number of executions that ended, from `since` on."""

    since: datetime
    """The instant from which all ends are counted: later than requested if there were too many."""
    counts: Mapping[Status, Mapping[End, int]]


@dataclass(frozen=True, slots=True)
class ExecutionHead:
    """An execution in short. The fields are as in `ExecutionRow`, but `error` is cut off."""

    job_name: str
    execution_id: str
    trigger: str
    status: str
    scheduled_time: datetime
    started_at: datetime | None
    completed_at: datetime | None
    duration_ms: int | None
    definition: int | None
    error: str | None


@dataclass(frozen=True, slots=True)
class Streak:
    """The failures of a job after its last success, by scheduled time and id."""

    first: ExecutionHead
    last: ExecutionHead
    count: int
    """At most `MAX_STREAK`."""


class HandOver(NamedTuple):
    """The properties that executions of a group share."""

    job_name: str
    definition: int | None
    """As in `ExecutionRow`."""
    status: Status
    was_handed_over: bool
    """Whether a worker had the execution."""
    is_recovering: bool
    """Whether it was lost, and no worker has had it since."""


class HandOverCount(NamedTuple):
    """The number of executions of a group, and of their recoveries."""

    executions: int
    recoveries: Recoveries


@dataclass(frozen=True, slots=True)
class HandOvers:
    """The executions whose scheduled time is at or after `since`, in groups."""

    since: datetime
    """Later than requested if there were too many."""
    groups: Mapping[HandOver, HandOverCount]


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterGroup:
    """Dead letters of a job whose last errors have one pattern."""

    job_name: str
    pattern: str
    """See `domain.error_pattern`."""
    count: int
    first: datetime
    """The earliest last attempt."""
    last: datetime
    """The latest last attempt."""
    example: str
    """The id of the newest dead letter."""
    definition: int | None = None
    """With `by_definition`: their definition, as in `DeadLetterRow`."""
    first_attempt: datetime | None = None
    """With `by_definition`, if they have no definition: the time of their first attempt."""


@dataclass(frozen=True, slots=True)
class LetterGroups:
    """Groups of dead letters, the largest first."""

    groups: Sequence[LetterGroup]
    is_complete: bool
    """false: there are more groups, or more dead letters than the history can group at once."""


@dataclass(frozen=True, slots=True)
class JobRuns:
    """The counters of a job: ended and running executions, and the last run."""

    ends: Mapping[Status, int] = field(default_factory=dict)
    """The executions that ended or were skipped, by status. They outlive the rows; a status without one is absent."""
    running: int = 0
    """The executions of which a worker has started a step."""
    last: LastRun | None = None
    """None: none has ended."""

    @property
    def run_count(self) -> int:
        """Return the number of executions that ended or were skipped."""
        return sum(self.ends.values())

    @property
    def error_count(self) -> int:
        """Return the number of executions that failed."""
        return self.ends.get("failed", 0)

    @property
    def skip_count(self) -> int:
        """Return the number of executions that were skipped."""
        return self.ends.get("skipped", 0)


@dataclass(frozen=True, slots=True)
class QueueCounts:
    """The number of executions whose first step is in a queue."""

    states: Mapping[JobState, int]
    """By their state as jobs of the Open Job Spec, without states that none is in."""
    ended: Mapping[JobState, int]
    """Of those that are over, the number that ended at or after the requested instant."""


class HistorySummaries(Protocol):
    """The summaries of a history."""

    async def runs(self, jobs: Sequence[str]) -> Mapping[str, JobRuns] | None:
        """Return the counters of registered jobs; None: see `History.totals`.

        One request to the database serves hundreds of jobs.
        """

    async def of_queue(self, queue: str, since: datetime) -> QueueCounts:
        """Count the executions of a queue, all at one moment; `since`: see `QueueCounts.ended`."""

    async def ends(
        self, since: datetime, *, limit: int, by_job: bool, namespaces: Collection[str] | None = None
    ) -> EndCounts:
        """Count the ends at or after an instant by minute.

        With `by_job` they are also counted by job and definition. At most the newest `limit` ends of each status are read. `namespaces`: those of
        the jobs; None: all jobs. Executions of others do not count for a limit, here and in the other summaries.
        """

    async def oldest(
        self, status: Status, *, limit: int, namespaces: Collection[str] | None = None
    ) -> Sequence[ExecutionHead]:
        """Return the executions with a status that were scheduled first, oldest first."""

    async def newest_of(self, jobs: Sequence[str], *, limit: int) -> Mapping[str, Sequence[ExecutionHead]]:
        """Return the `limit` executions of each job that were scheduled last, newest first."""

    async def failed_jobs(
        self, *, failures: int, limit: int, namespaces: Collection[str] | None = None
    ) -> Sequence[str]:
        """Return the jobs of the newest `failures` failed executions, the last to fail first."""

    async def hand_overs(
        self, since: datetime, *, limit: int, job: str | None = None, namespaces: Collection[str] | None = None
    ) -> HandOvers:
        """Count the executions that were scheduled last, at most `limit`, in groups.

        `job`: the only job that counts. `namespaces`: as in `ends`.
        """

    async def streaks(self, jobs: Sequence[str]) -> Mapping[str, Streak]:
        """Return the failures of each job after its last success, however old it is.

        Jobs without such a failure are absent.
        """

    async def letter_groups(self, query: DeadLetterQuery, *, limit: int, by_definition: bool = False) -> LetterGroups:
        """Return the `limit` largest groups of the dead letters of a query.

        The order, the limit and the cursor of the query are ignored. With `by_definition`, dead letters of one group ran under one definition, and
        those without a definition have the same first attempt.
        """
