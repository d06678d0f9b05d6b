"""Following of the jobs while no request does."""

from collections.abc import Sequence
from functools import partial
from typing import Final

from ... import telemetry
from ...ports import Clock
from ..calculations import Calculations
from .job import Job
from .job_follower import JobFollower
from .registry import Registry

INTERVAL_S: Final = 5.0

_log = telemetry.get_logger("tocsin.jobs")


class JobWatch:
    """Keeps the list of jobs, and what is kept of every job, up to date."""

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
        """Follow the jobs until cancelled. After a failure the next request reads what is missing."""
        while True:
            try:
                await self.run_once()
            except Exception as error:  # noqa: BLE001 - requests read what is missing, and the failure may be over soon
                self.has_read = True
                _log.warning("jobs not read ahead of requests", action="jobs-not-read", error=repr(error))
            await self._clock.sleep(INTERVAL_S)

    async def run_once(self) -> None:
        """Follow all changes of jobs that are stored."""
        first = jobs = await self._registry.jobs()
        self.has_read = True
        if jobs is self._jobs:
            return
        for follower in self._followers:
            while not await self._calculations.run(partial(follower.follow, jobs)):
                # The next calculation goes further. A request may have followed a newer list, whose work is lost otherwise.
                jobs = await self._registry.jobs()
        self._jobs = first  # not all followers have seen a newer list
