"""Reads of ledgers for the stages and the registry.

Concurrent calls for the same job share one read, and single ledgers are not cached. Definitions are cached, because the
definition at a sequence never changes. The ledgers of all jobs are kept once they were read, and each further read brings them
up to date, so that a list of jobs costs what has changed.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import Final

from .. import subjects
from ..domain import ledger
from ..domain.definition import JobDefinition
from ..domain.events import Defined, Message, Recorded
from ..domain.ledger import Ledger, Regime
from ..ports import EventLog, LaggingReplica, StaleRead
from ..subjects import Stream

CAPACITY: Final = 10_000
MAX_BEHIND: Final = 10_000
"""Messages by which kept ledgers may be behind. Beyond it, reading the newest events of all ledgers costs less."""
FOLDED_AT_ONCE: Final = 100
"""Ledgers folded before other tasks run."""
READ_AT_ONCE: Final = 192
"""Ledgers of a long list read together."""
FACTS: Final = tuple(
    subjects.filter_for(f"ledger.{fact}") for fact in ("defined", "paused", "resumed", "deleted", "due", "passed")
)
"""Filters over the events of every job's ledger."""
_EVERY_LEDGER: Final = subjects.ledger(subjects.ANY)


class LedgerReader:
    """Reads whole ledgers, with the older events that newer events of the same type hide."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._reads: dict[str, asyncio.Task[tuple[Ledger, int, int]]] = {}
        self._definitions: OrderedDict[tuple[str, int], JobDefinition] = OrderedDict()
        """Definitions by job and sequence: partitions count their sequences separately."""
        self._all: dict[str, tuple[Ledger, int]] = {}
        """Every job's ledger and last sequence, as of the event `_newest`."""
        self._newest: Recorded[Message] | None = None
        self._all_lock = asyncio.Lock()
        self._all_read: asyncio.Task[Mapping[str, tuple[Ledger, int]]] | None = None

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

    async def load_each(self, jobs: Sequence[str]) -> tuple[dict[str, Ledger], Sequence[str]]:
        """Return the ledgers of jobs, and the jobs whose ledger must be read again.

        A ledger that a lagging replica returned may lack events stored before this call. The end of the stream is requested
        from its leader once. Only the jobs of a reply that does not reach this end are compared with the leader's ledgers.

        Raises:
            LaggingReplica: the reply for a part of a long list came from replicas that are behind.
        """
        ledgers, behind = dict[str, Ledger](), list[str]()
        if not jobs:
            return ledgers, behind
        end = await self._log.end(Stream.LEDGER)
        for first in range(0, len(jobs), READ_AT_ONCE):
            portion = jobs[first : first + READ_AT_ONCE]
            try:
                events, upto = await self._events_of(portion)
            except LaggingReplica:  # of the pages of a long reply one came from a replica that is behind
                if len(jobs) > READ_AT_ONCE:
                    raise  # single reads of so many would take too long
                return ledgers, portion
            behind += await self._outdated(events, upto, end)
            states = await asyncio.gather(*(complete(self._log, job, of_job) for job, of_job in events.items()))
            ledgers.update(zip(events, states, strict=True))
        return ledgers, behind

    async def _events_of(self, jobs: Iterable[str]) -> tuple[dict[str, dict[int, Recorded[Message]]], int]:
        """Return the newest events of jobs, and the sequence that the reply covers."""
        scopes = {job: subjects.ledger(job) for job in jobs}
        loaded = await self._log.load_each(*scopes.values())
        facts = zip(scopes, loaded.facts, strict=True)
        return {job: {recorded.sequence: recorded for recorded in of_job} for job, of_job in facts}, loaded.upto

    async def _outdated(
        self, events: Mapping[str, Mapping[int, Recorded[Message]]], upto: int, end: int
    ) -> Sequence[str]:
        """Return the jobs that lack an event which the stream's leader has.

        `upto`: the sequence of the stream that the reply with the events covers; `end`: the end of the stream before it.
        """
        short = [job for job, of_job in events.items() if max(upto, *of_job, 0) < end]
        tails = await self._log.tails(*map(subjects.ledger, short)) if short else []
        return [job for job, tail in zip(short, tails, strict=True) if tail != max(events[job], default=0)]

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

    async def in_force_now(self, jobs: Sequence[str]) -> dict[str, tuple[JobDefinition, int] | None]:
        """Return the definition of each job that is in force, and its sequence.

        None: the job does not exist.
        Every event counts that was stored before this call, also where a replica lags: the ledger's end is requested from
        its leader together with the events. Ledgers whose reply does not reach that end are compared with the leader's.
        """
        in_force = dict[str, tuple[JobDefinition, int] | None].fromkeys(jobs)
        named = [job for job in jobs if job != subjects.ANY]
        if not named:
            return in_force
        end, (events, upto) = await asyncio.gather(self._log.end(Stream.LEDGER), self._events_of(named))
        outdated = set(await self._outdated(events, upto, end))
        for job in events.keys() - outdated:
            in_force[job] = await self._in_force(job, await complete(self._log, job, events[job]))
        again = await self.in_force_each([(job, end) for job in outdated])
        return in_force | {job: definition for (job, _), definition in again.items()}

    async def _in_force(self, job: str, state: Ledger) -> tuple[JobDefinition, int] | None:
        """Return the definition in a ledger's state.

        The same definition is the same object, because plans are made once for each object.
        """
        regime = state.current
        if regime is None or not regime.definition:
            return None
        sequence, newest = regime.definition, state.definition
        known = self._definitions.get((job, sequence))
        if newest is not None and known != newest:
            known = self._remember(job, sequence, newest)
        return known or await self.definition(job, sequence), sequence

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
            definition = self._remember(job, sequence, recorded.message.definition)
        return definition

    def _remember(self, job: str, sequence: int, definition: JobDefinition) -> JobDefinition:
        self._definitions[job, sequence] = definition
        if len(self._definitions) > CAPACITY:
            self._definitions.popitem(last=False)
        return definition

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
