"""The state and the next instant of every job, calculated once for each ledger.

They are counted by audience, so that each caller gets exact numbers without a look at each job.
"""

from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from operator import attrgetter
from typing import Final, NamedTuple

from typing_extensions import override

from ...domain.access import Owned, audience_of
from .job import Job, JobStatus
from .job_follower import JobFollower

FEW: Final = 64
"""Changes of a sorted list that are made one by one; for more, the list is sorted again."""
_AT: Final = attrgetter("at")


class JobInstant(NamedTuple):
    """An instant of a job."""

    at: datetime
    job: str


class SortedInstants:
    """Instants in the order of time."""

    def __init__(self) -> None:
        self._sorted: list[JobInstant] = []
        self._removed: set[JobInstant] = set()
        self._added: list[JobInstant] = []
        """Instants that are not in the list yet; they are added after `_removed` is taken off."""

    def add(self, instant: JobInstant) -> None:
        self._added.append(instant)

    def remove(self, instant: JobInstant) -> None:
        if self._added:
            self._settle()
        self._removed.add(instant)

    def before(self, until: datetime) -> Sequence[JobInstant]:
        self._settle()
        return self._sorted[: bisect_left(self._sorted, until, key=_AT)]

    def between(self, after: datetime, until: datetime) -> Sequence[JobInstant]:
        """Return the instants in (after, until]."""
        self._settle()
        return self._sorted[bisect_right(self._sorted, after, key=_AT) : bisect_right(self._sorted, until, key=_AT)]

    def _settle(self) -> None:
        removed, added = self._removed, self._added
        if len(removed) + len(added) > FEW:
            self._sorted = [instant for instant in self._sorted if instant not in removed] + added
            self._sorted.sort()
        else:
            for instant in removed:
                del self._sorted[bisect_left(self._sorted, instant)]
            for instant in added:
                insort(self._sorted, instant)
        self._removed, self._added = set(), []


@dataclass(slots=True)
class JobsOfAudience:
    """The jobs that the same identities may see."""

    example: Job
    """One of the jobs, which decides for all whether a caller sees them."""
    states: Counter[JobStatus] = field(default_factory=Counter)
    instants: SortedInstants = field(default_factory=SortedInstants)
    """The first instant of each job that is not decided yet."""


class NextInstants(JobFollower):
    """Keeps the state of every job, and its first instant that is not decided yet."""

    def __init__(self) -> None:
        super().__init__()
        self._known: dict[str, tuple[Job, JobStatus, datetime | None]] = {}
        self._audiences: dict[Hashable, JobsOfAudience] = {}

    def seen(self, sees: Callable[[Owned], bool]) -> Iterator[JobsOfAudience]:
        """Yield the jobs that a caller sees. Call it within `following`."""
        return (audience for audience in self._audiences.values() if sees(audience.example))

    def in_state(self, state: JobStatus) -> list[Job]:
        """Return the jobs in a state, in no order. Call it within `following`."""
        return [job for job, status, _ in self._known.values() if status == state]

    def status_of(self, job: Job) -> JobStatus:
        known = self._known.get(job.name)
        return job.status if known is None or known[0] is not job else known[1]

    @override
    def _add(self, job: Job) -> None:
        status, at = job.status, job.next_undecided()
        audience = self._audiences.setdefault(audience_of(job), JobsOfAudience(job))
        audience.states[status] += 1
        if at is not None:
            audience.instants.add(JobInstant(at, job.name))
        self._known[job.name] = job, status, at

    @override
    def _remove(self, job: Job) -> None:
        _, status, at = self._known.pop(job.name)
        audience = self._audiences[key := audience_of(job)]
        audience.states[status] -= 1
        if at is not None:
            audience.instants.remove(JobInstant(at, job.name))
        if not audience.states.total():
            del self._audiences[key]

    @override
    def _clear(self) -> None:
        self._known, self._audiences = {}, {}
