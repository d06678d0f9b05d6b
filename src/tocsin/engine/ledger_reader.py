"""Ledgers as they are now, for whoever decides on jobs: the stages and the registry.

Those who ask in the same moment share one read; nothing is remembered. A definition never changes under its sequence, so
definitions are remembered.
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Final, cast

from .. import subjects
from ..domain import ledger
from ..domain.definition import JobDefinition
from ..domain.events import Defined, Message, Recorded
from ..domain.ledger import Ledger, Regime
from ..ports import Batch, EventLog, LogUnavailable, StaleRead
from ..subjects import Stream

CAPACITY: Final = 10_000
SEVERAL: Final = 4
"""From so many on it pays to read them at once: one definition alone is found faster by its sequence."""
FACTS: Final = tuple(
    subjects.filter_for(f"ledger.{fact}") for fact in ("defined", "paused", "resumed", "deleted", "due", "passed")
)
"""Filters over the facts of every job's ledger."""


class LedgerReader:
    """Reads ledgers whole, going back for facts that newer ones of their kind hide."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._asked: dict[str, asyncio.Task[tuple[Ledger, int, int]]] = {}
        self._definitions: OrderedDict[int, JobDefinition] = OrderedDict()

    async def load(self, job: str) -> tuple[Ledger, int]:
        """A job's ledger and the last sequence in its scope, no older than this call."""
        state, last, _ = await self._load(job)
        return state, last

    async def _load(self, job: str) -> tuple[Ledger, int, int]:
        """The same, and the sequence of the stream up to which no fact of the job is missing."""
        task = self._asked.get(job)
        if task is None:
            task = self._asked[job] = asyncio.create_task(self._read(job))
        return await asyncio.shield(task)

    async def load_all(self) -> dict[str, tuple[Ledger, int]]:
        """Every job's ledger, deleted ones too, and the last sequence in its scope: one pass over the newest facts."""
        facts: dict[str, dict[int, Recorded[Message]]] = {}
        follower = cast("AsyncGenerator[Batch, None]", self._log.follow(Stream.LEDGER, *FACTS, after=None))
        async with aclosing(follower):
            async for batch in follower:
                for recorded in batch.messages:
                    facts.setdefault(subjects.job_of(recorded.subject), {})[recorded.sequence] = recorded
                if batch.caught_up:
                    break
        return {job: (await complete(self._log, known), max(known)) for job, known in facts.items()}

    async def in_force(self, job: str, *, at: int | None = None) -> tuple[JobDefinition, int] | None:
        """A job's definition and its sequence in the ledger; None: there is no such job.

        With `at` as it was when the ledger's message of that sequence was stored, so that what is asked for once is
        answered alike whenever that is handled, and however often.

        Raises:
            StaleRead: a replica that lags was asked.
            LogUnavailable: the same, of an older fact.
        """
        if job == subjects.ANY:
            return None
        state, last, upto = await self._load(job)
        if (at is None or at > upto) and await self._log.tail(subjects.ledger(job)) != last:
            raise StaleRead.of(subjects.ledger(job))
        regime = state.current
        while regime is not None and at is not None and regime.fact > at:
            regime = await self._regime(regime.previous) if regime.previous else None
        if regime is None or not regime.definition:
            return None
        definition = state.definition if regime is state.current else None
        return definition or await self.definition(regime.definition), regime.definition

    async def definition(self, sequence: int) -> JobDefinition:
        """The definition that is stored under a sequence of the ledger.

        Raises:
            LogUnavailable: a replica that lags was asked.
        """
        known = self._definitions.get(sequence)
        if known is None:
            recorded = await self._log.get(Stream.LEDGER, sequence)
            if recorded is None or not isinstance(recorded.message, Defined):
                raise LogUnavailable(f"the definition at sequence {sequence} of the ledger is not there (yet)")
            known = self._remember(sequence, recorded.message)
        return known

    async def recall(self, wanted: Mapping[int, str]) -> None:
        """Read several definitions, of these jobs, at once: those that are still the newest of their job, as most are."""
        unknown = {sequence: job for sequence, job in wanted.items() if sequence not in self._definitions}
        if len(unknown) < SEVERAL:
            return
        newest = await self._log.load_each(*map(subjects.definition, unknown.values()))
        for facts in newest.facts:
            for recorded in facts:
                if isinstance(recorded.message, Defined):
                    self._remember(recorded.sequence, recorded.message)

    def _remember(self, sequence: int, fact: Defined) -> JobDefinition:
        self._definitions[sequence] = fact.definition
        if len(self._definitions) > CAPACITY:
            self._definitions.popitem(last=False)
        return fact.definition

    async def _regime(self, fact: int) -> Regime | None:
        recorded = await self._log.get(Stream.LEDGER, fact)
        if recorded is None:
            raise LogUnavailable(f"the fact at sequence {fact} of the ledger is not there (yet)")
        return ledger.evolve(ledger.initial, recorded).current

    async def _read(self, job: str) -> tuple[Ledger, int, int]:
        await asyncio.sleep(0)
        # From here on the answer may be older than a question: whoever asks now is given a read of their own.
        self._asked.pop(job, None)
        loaded = await self._log.load_each(subjects.ledger(job))
        facts = {recorded.sequence: recorded for recorded in loaded.facts[0]}
        last = max(facts, default=0)
        return await complete(self._log, facts), last, max(last, loaded.upto)


async def complete(log: EventLog, facts: dict[int, Recorded[Message]]) -> Ledger:
    """Fold the newest facts of a ledger, fetching older ones for as long as undecided time needs them."""
    state = ledger.fold(facts[sequence] for sequence in sorted(facts))
    while (wanted := ledger.missing_fact(state)) is not None and wanted not in facts:
        recorded = await log.get(Stream.LEDGER, wanted)
        if recorded is None:
            break
        facts[wanted] = recorded
        state = ledger.fold(facts[sequence] for sequence in sorted(facts))
    return state
