"""The list of all registered jobs, which costs what has changed since the last list."""

import asyncio
from bisect import bisect_left
from collections.abc import Mapping
from operator import attrgetter
from typing import Final

from ...domain.ledger import Ledger
from ...engine.ledger_reader import LedgerReader
from .job import Job

YIELD_EVERY: Final = 200
"""Jobs of a list after which other tasks run."""
MAX_CHANGED: Final = 1_000
"""Jobs that are changed in the last list; with more, the list is made again."""


class RegisteredJobs:
    """Lists the jobs from their ledgers.

    A job whose ledger did not change is the same object as in the last list.
    """

    def __init__(self, ledgers: LedgerReader) -> None:
        self._ledgers = ledgers
        self._states: Mapping[str, tuple[Ledger, int]] = {}
        """The ledgers that the last list was made from."""
        self._jobs: tuple[Job, ...] = ()
        self.by_name: dict[str, Job] = {}
        """The jobs of the last list."""
        self._turn = asyncio.Lock()

    async def jobs(self) -> tuple[Job, ...]:
        """Return every registered job, sorted by name, no older than this call."""
        states = await self._ledgers.load_all()
        async with self._turn:  # calls that read the same ledgers share a list, and so the objects in it
            last = self._states
            if states is last:
                return self._jobs
            changed = [name for name, state in states.items() if last.get(name) is not state]
            new = sum(name not in last for name in changed)
            if len(changed) > MAX_CHANGED or len(states) != len(last) + new:
                return await self._list(states)
            self._states, self._jobs = states, self._change({name: Job.of(states[name][0]) for name in changed})
            return self._jobs

    def _change(self, changed: Mapping[str, Job | None]) -> tuple[Job, ...]:
        """Change some jobs of the last list; None: the job was deleted."""
        listed = list(self._jobs)
        for name, job in changed.items():
            place = bisect_left(listed, name, key=attrgetter("name"))
            before = self.by_name.pop(name, None)
            listed[place : place + (before is not None)] = [] if job is None else [job]
            if job is not None:
                self.by_name[name] = job
        return tuple(listed)

    async def _list(self, states: Mapping[str, tuple[Ledger, int]]) -> tuple[Job, ...]:
        known, jobs = self.by_name, dict[str, Job]()
        for number, (name, (state, _)) in enumerate(sorted(states.items()), 1):
            before = known.get(name)
            job = before if before is not None and before.ledger is state else Job.of(state)
            if job is not None:
                jobs[name] = job
            if number % YIELD_EVERY == 0:
                await asyncio.sleep(0)  # other tasks run
        self._states, self._jobs, self.by_name = states, tuple(jobs.values()), jobs
        return self._jobs
