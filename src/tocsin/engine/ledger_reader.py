"""Reads of ledgers for the registry and the event listener.

The ledgers of all jobs are kept once they were read, and each further read brings them up to date, so that a list of jobs costs what
has changed.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import Final

from .. import subjects
from ..domain import ledger
from ..domain.events import Message, Recorded
from ..domain.ledger import Ledger
from ..ports import EventLog
from ..subjects import Stream

MAX_BEHIND: Final = 10_000
"""Messages by which kept ledgers may be behind. Beyond it, reading the newest events of all ledgers costs less."""
FOLDED_AT_ONCE: Final = 100
"""Ledgers folded before other tasks run."""
FACTS: Final = tuple(
    subjects.filter_for(f"ledger.{fact}") for fact in ("defined", "paused", "resumed", "deleted", "due", "passed")
)
"""Filters over the events of every job's ledger."""
_EVERY_LEDGER: Final = subjects.ledger(subjects.ANY)


class LedgerReader:
    """Reads whole ledgers, with the older events that newer events of the same type hide."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._all: dict[str, tuple[Ledger, int]] = {}
        """Every job's ledger and last sequence, as of the event `_newest`."""
        self._newest: Recorded[Message] | None = None
        self._all_lock = asyncio.Lock()
        self._all_read: asyncio.Task[Mapping[str, tuple[Ledger, int]]] | None = None

    async def load(self, job: str) -> tuple[Ledger, int]:
        """Return a job's ledger and last sequence."""
        [(state, last)] = await self.load_each([job])
        return state, last

    async def load_each(self, jobs: Sequence[str]) -> list[tuple[Ledger, int]]:
        """Return the ledgers of jobs, each with its last sequence."""
        loaded = await self._log.load_each(*map(subjects.ledger, jobs)) if jobs else None
        ledgers = list[tuple[Ledger, int]]()
        for job, of_job in zip(jobs, loaded.facts if loaded else (), strict=True):
            events = {recorded.sequence: recorded for recorded in of_job}
            ledgers.append((await complete(self._log, job, events), max(events, default=0)))
        return ledgers

    async def load_all(self) -> Mapping[str, tuple[Ledger, int]]:
        """Return every job's ledger and last sequence, including deleted jobs, no older than this call.

        Concurrent calls share one read. While nothing changes, each call returns the same mapping.
        """
        if self._all_read is None:
            self._all_read = asyncio.create_task(self._read_all())
        return await asyncio.shield(self._all_read)

    async def _read_all(self) -> Mapping[str, tuple[Ledger, int]]:
        async with self._all_lock:
            # From here on the answer may be older than a new call, so a new call starts a read of its own.
            self._all_read = None
            tail = await self._log.tail(_EVERY_LEDGER)
            known = await self._kept_upto()
            if tail == known:
                return self._all
            is_continued = 0 < known < tail <= known + MAX_BEHIND
            events: dict[str, dict[int, Recorded[Message]]] = {}
            newest = self._newest if is_continued else None
            after = known if is_continued else None
            async with aclosing(self._log.follow(Stream.LEDGER, *FACTS, after=after)) as follower:
                async for batch in follower:
                    for recorded in batch.messages:
                        events.setdefault(subjects.job_of(recorded.subject), {})[recorded.sequence] = recorded
                        if newest is None or recorded.sequence > newest.sequence:
                            newest = recorded
                    if batch.caught_up:
                        break
            ledgers = dict(self._all) if is_continued else {}
            for number, (job, of_job) in enumerate(events.items(), 1):
                ledgers[job] = await self._folded(job, of_job, ledgers.get(job))
                if number % FOLDED_AT_ONCE == 0:
                    await asyncio.sleep(0)
            self._all, self._newest = ledgers, newest
            return ledgers

    async def _kept_upto(self) -> int:
        """Return the sequence up to which ledgers are kept.

        0: there are none, or they are of a log that was deleted.
        """
        if self._newest is None:
            return 0
        stored = await self._log.get(self._newest.subject, self._newest.sequence)
        is_same = stored is not None and (stored.subject, stored.time) == (self._newest.subject, self._newest.time)
        return self._newest.sequence if is_same else 0

    async def _folded(
        self, job: str, events: dict[int, Recorded[Message]], before: tuple[Ledger, int] | None
    ) -> tuple[Ledger, int]:
        """Return a ledger with further events; None: `events` are its newest events."""
        if before is None:
            return await complete(self._log, job, events), max(events)
        state, last = before
        for sequence in sorted(events):
            if sequence > last:
                state, last = ledger.evolve(state, events[sequence]), sequence
        return (state, last) if ledger.missing_fact(state) is None else await self.load(job)


async def complete(log: EventLog, job: str, events: dict[int, Recorded[Message]]) -> Ledger:
    """Fold the newest events of a job's ledger and the older events that they require."""
    state = ledger.fold(events[key] for key in sorted(events))
    while (sequence := ledger.missing_fact(state)) is not None and sequence not in events:
        recorded = await log.get(subjects.ledger(job), sequence)
        if recorded is None:
            break
        events[sequence] = recorded
        state = ledger.fold(events[key] for key in sorted(events))
    return state
