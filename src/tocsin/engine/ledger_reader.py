"""Reads of ledgers for the stages and the registry.

Concurrent calls for the same job share one read, and ledgers are not cached. Definitions are cached, because the definition
at a sequence never changes.
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Final, cast

from .. import subjects
from ..domain import ledger
from ..domain.definition import JobDefinition
from ..domain.events import Defined, Message, Recorded
from ..domain.ledger import Ledger, Regime
from ..ports import Batch, EventLog, StaleRead
from ..subjects import Stream

CAPACITY: Final = 10_000
FACTS: Final = tuple(
    subjects.filter_for(f"ledger.{fact}") for fact in ("defined", "paused", "resumed", "deleted", "due", "passed")
)
"""Filters over the events of every job's ledger."""


class LedgerReader:
    """Reads whole ledgers, with the older events that newer events of the same type hide."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._reads: dict[str, asyncio.Task[tuple[Ledger, int, int]]] = {}
        self._definitions: OrderedDict[tuple[str, int], JobDefinition] = OrderedDict()
        """Definitions by job and sequence: partitions count their sequences separately."""

    async def load(self, job: str) -> tuple[Ledger, int]:
        """Return a job's ledger and last sequence, no older than this call."""
        state, last, _ = await self._load(job)
        return state, last

    async def _load(self, job: str) -> tuple[Ledger, int, int]:
        """Return also the sequence of the stream up to which the ledger is complete."""
        task = self._reads.get(job)
        if task is None:
            task = self._reads[job] = asyncio.create_task(self._read(job))
        return await asyncio.shield(task)

    async def load_all(self) -> dict[str, tuple[Ledger, int]]:
        """Return every job's ledger and last sequence, including deleted jobs.

        The newest events of all ledgers are read in one pass.
        """
        events: dict[str, dict[int, Recorded[Message]]] = {}
        follower = cast("AsyncGenerator[Batch, None]", self._log.follow(Stream.LEDGER, *FACTS, after=None))
        async with aclosing(follower):
            async for batch in follower:
                for recorded in batch.messages:
                    events.setdefault(subjects.job_of(recorded.subject), {})[recorded.sequence] = recorded
                if batch.caught_up:
                    break
        return {job: (await complete(self._log, job, known), max(known)) for job, known in events.items()}

    async def in_force(self, job: str, *, at: int | None = None) -> tuple[JobDefinition, int] | None:
        """Return a job's definition and its sequence; None: the job does not exist.

        With `at`, return the definition that was in force when the ledger's message at that sequence was stored. So a
        request gets the same definition on every delivery.

        Raises:
            StaleRead: a lagging replica was read.
        """
        if job == subjects.ANY:
            return None
        state, last, upto = await self._load(job)
        if (at is None or at > upto) and await self._log.tail(subjects.ledger(job)) != last:
            raise StaleRead.of(subjects.ledger(job))
        regime = state.current
        while regime is not None and at is not None and regime.fact > at:
            regime = await self._regime(job, regime.previous) if regime.previous else None
        if regime is None or not regime.definition:
            return None
        definition = state.definition if regime is state.current else None
        return definition or await self.definition(job, regime.definition), regime.definition

    async def in_force_each(
        self, keys: Sequence[tuple[str, int | None]]
    ) -> dict[tuple[str, int | None], tuple[JobDefinition, int] | None]:
        """Return what `in_force` returns for each (job, sequence); each job's ledger is read once."""
        jobs: dict[str, list[int | None]] = {}
        for job, at in keys:
            jobs.setdefault(job, []).append(at)
        results = await asyncio.gather(*(self._in_force_of(job, positions) for job, positions in jobs.items()))
        return {key: value for of_job in results for key, value in of_job.items()}

    async def _in_force_of(
        self, job: str, positions: Sequence[int | None]
    ) -> dict[tuple[str, int | None], tuple[JobDefinition, int] | None]:
        newest = None if None in positions else max(at for at in positions if at is not None)
        current = await self.in_force(job, at=newest)
        in_force: dict[tuple[str, int | None], tuple[JobDefinition, int] | None] = {}
        for at in positions:
            # A definition that was in force later was in force here too, if it was stored before.
            is_same = at == newest or (current is not None and at is not None and current[1] < at)
            in_force[job, at] = current if is_same else await self.in_force(job, at=at)
        return in_force

    async def definition(self, job: str, sequence: int) -> JobDefinition:
        """Return the definition of a job that was stored at a sequence of the ledger.

        Raises:
            StaleRead: a lagging replica was read.
        """
        definition = self._definitions.get((job, sequence))
        if definition is None:
            recorded = await self._log.get(subjects.ledger(job), sequence)
            if recorded is None or not isinstance(recorded.message, Defined):
                raise StaleRead.of(f"{subjects.ledger(job)} at sequence {sequence}")
            definition = self._remember(sequence, recorded.message)
        return definition

    def _remember(self, sequence: int, event: Defined) -> JobDefinition:
        self._definitions[event.job, sequence] = event.definition
        if len(self._definitions) > CAPACITY:
            self._definitions.popitem(last=False)
        return event.definition

    async def _regime(self, job: str, sequence: int) -> Regime | None:
        recorded = await self._log.get(subjects.ledger(job), sequence)
        if recorded is None:
            raise StaleRead.of(f"{subjects.ledger(job)} at sequence {sequence}")
        return ledger.evolve(ledger.initial, recorded).current

    async def _read(self, job: str) -> tuple[Ledger, int, int]:
        await asyncio.sleep(0)
        # From here on the answer may be older than a new call, so a new call starts a read of its own.
        self._reads.pop(job, None)
        facts = await self._log.load_each(subjects.ledger(job))
        events = {recorded.sequence: recorded for recorded in facts.facts[0]}
        last = max(events, default=0)
        return await complete(self._log, job, events), last, max(last, facts.upto)


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
