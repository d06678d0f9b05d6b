"""Memory of every job between requests, which follows the jobs that change.

The states and next instants of jobs are counted by audience, so that each caller gets exact numbers without a look at
each job.
"""

from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from operator import attrgetter
from threading import Lock
from typing import Final, NamedTuple

from typing_extensions import override

from ... import telemetry
from ...domain.access import Owned, audience_of
from ...domain.schedule import timezone_database
from ...ports import Clock
from ..calculations import Calculations, Effort
from .job import Job, JobStatus
from .registry import Registry


class JobFollower(ABC):
    """Keeps something of every job. Calculations in several threads may share it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._jobs: Sequence[Job] = ()
        """The jobs that it follows, sorted by name."""
        self._missing: dict[str, Job] = {}
        """Those of them that are not added yet, the last first."""
        self._timezones = timezone_database()

    @abstractmethod
    def _add(self, job: Job) -> None:
        """Keep what is needed of a job."""

    @abstractmethod
    def _remove(self, job: Job) -> None:
        """Forget a job that was added."""

    @abstractmethod
    def _clear(self) -> None:
        """Forget all jobs."""

    @contextmanager
    def following(self, jobs: Sequence[Job], effort: Effort) -> Iterator[bool]:
        """Follow a list of jobs, and read the memory of them in the block.

        The list is sorted by name. It yields False if the effort is spent before all jobs are added. The next call then goes further.
        """
        with self._lock:
            if self._timezones is not timezone_database():
                self._timezones = timezone_database()
                self._begin_again(jobs)
            else:
                self._follow(jobs)
            yield self._add_missing(effort)

    def follow(self, jobs: Sequence[Job], effort: Effort) -> bool:
        """Follow a list of jobs.

        Return False if the effort is spent before all jobs are added.
        """
        with self.following(jobs, effort) as is_complete:
            return is_complete

    def _follow(self, jobs: Sequence[Job]) -> None:
        removed, added = changes(self._jobs, jobs)
        if 2 * len(removed) > len(self._jobs):
            self._begin_again(jobs)
            return
        for job in removed:
            if self._missing.pop(job.name, None) is None:
                self._remove(job)
        self._missing |= {job.name: job for job in reversed(added)}
        self._jobs = jobs

    def _begin_again(self, jobs: Sequence[Job]) -> None:
        self._clear()
        self._jobs, self._missing = jobs, {job.name: job for job in reversed(jobs)}

    def _add_missing(self, effort: Effort) -> bool:
        while self._missing:
            if effort.is_spent():
                return False
            name, job = self._missing.popitem()
            try:
                self._add(job)
            except Exception:
                self._missing[name] = job  # else its removal would fail, and so each later call
                raise
        return True


def changes(before: Sequence[Job], after: Sequence[Job]) -> tuple[Sequence[Job], Sequence[Job]]:
    """Return the jobs of the first list only, and those of the second only.

    A changed job is in both, because it is another object. The lists are sorted by name.
    """
    if before is after:
        return (), ()
    if len(before) == len(after):
        pairs = [(old, new) for old, new in zip(before, after, strict=True) if old is not new]
        if all(old.name == new.name for old, new in pairs):
            return [old for old, _ in pairs], [new for _, new in pairs]
    old, new = {id(job): job for job in before}, {id(job): job for job in after}
    return [old[key] for key in old.keys() - new.keys()], [new[key] for key in new.keys() - old.keys()]


INTERVAL_S: Final = 5.0

_log = telemetry.get_logger("tocsin.jobs")


class JobWatch:
    """Keeps the list of jobs, and the records of every job, up to date."""

    def __init__(
        self, registry: Registry, followers: Sequence[JobFollower], calculations: Calculations, clock: Clock
    ) -> None:
        self._registry = registry
        self._followers = followers
        self._calculations = calculations
        self._clock = clock
        self._jobs: Sequence[Job] | None = None
        self.has_read = False
        """Whether all jobs have been read since the start, or could not be."""

    async def run(self) -> None:
        """Follow the jobs until cancelled. After a failure the next request reads the missing jobs."""
        while True:
            try:
                await self.run_once()
            except Exception as error:  # noqa: BLE001 - requests read what is missing, and the failure may be over soon
                self.has_read = True
                _log.warning("jobs not read ahead of requests", action="jobs-not-read", error=repr(error))
            await self._clock.sleep(INTERVAL_S)

    async def run_once(self) -> None:
        first = jobs = await self._registry.jobs()
        self.has_read = True
        if jobs is self._jobs:
            return
        for follower in self._followers:
            while not await self._calculations.run(partial(follower.follow, jobs)):
                # The next calculation goes further. A request may have followed a newer list, whose work is lost otherwise.
                jobs = await self._registry.jobs()
        self._jobs = first  # not all followers have seen a newer list


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
