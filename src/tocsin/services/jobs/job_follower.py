"""Memory of every job between requests, which follows the jobs that change."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Lock

from ...domain.schedule import timezone_database
from ..calculations import Effort
from .job import Job


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
