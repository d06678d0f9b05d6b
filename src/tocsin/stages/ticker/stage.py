"""Ticker: puts into the ledger what became of each instant that has come. Only the leader does.

follows   the whole ledger
folds     each job's ledger
appends   due, passed
"""

import asyncio
from datetime import datetime, timedelta
from typing import Final

import structlog

from ...domain import ledger
from ...domain.events import Due, LedgerFact, Message, Passed, Recorded
from ...domain.ledger import Ledger
from ...domain.schedule import ScheduleError
from ...engine.clock_guard import ClockGuard
from ...engine.due_queue import DueQueue
from ...engine.leader_election import LeaderElection
from ...engine.leadership_events import RECORDED
from ...engine.ledger_reader import LedgerReader
from ...engine.stage import Access, Stage
from ...engine.state_cache import UNTOLD
from ...ports import Clock, EventLog, LogUnavailable, OutdatedState
from ...subjects import TICKER_LEASE, Bucket, Stream, filter_for, subject_of
from . import missed_instants
from .circuit_breaker import CircuitBreaker

AT_ONCE: Final = 128
TRIES: Final = 5
STANDBY: Final = 0.2
"""Seconds between two looks of a candidate at whether it leads."""
UNDECIDABLE: Final = timedelta(seconds=30)
"""After how long a job is looked at again that could not be decided for a defect."""
_FACTS: Final = tuple(filter_for(f"ledger.{f}") for f in ("defined", "paused", "resumed", "deleted", "due", "passed"))

ACCESS: Final = Access(
    appends=(Due, Passed, *RECORDED),
    reads=(Stream.LEDGER,),
    follows=(Stream.LEDGER,),
    writes=((Bucket.LEADER, TICKER_LEASE),),
)

_log = structlog.get_logger("tocsin.ticker")


class Ticker:
    """Knows every job's ledger, and asks it what became of time."""

    def __init__(self, log: EventLog, leadership: LeaderElection, clock: Clock) -> None:
        self._log = log
        self._leadership = leadership
        self._clock = clock
        self._reader = LedgerReader(log)
        self._ledgers: dict[str, tuple[Ledger, int]] = {}
        self._agenda = DueQueue()
        self._breaker = CircuitBreaker(clock)
        self._time = ClockGuard(log, clock)
        self._caught_up = False

    async def follow(self) -> None:
        """Keep every ledger folded, leading or not, so that taking over costs no reading."""
        async for batch in self._log.follow(Stream.LEDGER, *_FACTS, after=None):
            for recorded in batch.messages:
                self.learn(recorded)
            self._caught_up = self._caught_up or batch.caught_up

    def learn(self, recorded: Recorded[Message]) -> None:
        """Take one fact of the ledger in."""
        fact = recorded.message
        if not isinstance(fact, LedgerFact):
            return
        state, sequence = self._ledgers.get(fact.job, (ledger.initial, 0))
        if recorded.sequence <= sequence:
            return
        state = ledger.without_definitions(ledger.evolve(state, recorded))
        self._ledgers[fact.job] = state, recorded.sequence
        self._agenda.put(fact.job, self._when(state, recorded.time))

    def _when(self, state: Ledger, learned: datetime) -> datetime | None:
        """When to look at a job of which something was learned: when it is due, or at once where that is not plain."""
        if len(state.regimes) != 1 or ledger.missing_fact(state) is not None:
            return learned
        try:
            return ledger.next_instant(state, state.regimes[0].since)
        except ScheduleError:
            return learned

    async def run(self) -> None:
        """Look once a second, at its beginning (CRON-24), and as soon as we lead: what is due has waited for that."""
        while True:
            now = self._clock.now()
            if self._leadership.is_leading and self._caught_up and await self._time.is_credible(now):
                await self.run_once(now)
            rest = self._clock.now().microsecond / 1e6
            await self._clock.sleep(1.001 - rest if self._leadership.is_leading else STANDBY)

    async def run_once(self, now: datetime) -> None:
        """Decide on every instant up to `now` (UTC)."""
        jobs = list(self._agenda.take(now))
        for i in range(0, len(jobs), AT_ONCE):
            await asyncio.gather(*(self._decide(job, now) for job in jobs[i : i + AT_ONCE]))

    async def _decide(self, job: str, now: datetime) -> None:
        is_stale = False
        for _ in range(TRIES):
            if not self._leadership.is_leading:
                break
            try:
                if is_stale:
                    self._know(job, *await self._reader.load(job))
                upcoming = await self._append(job, now)
            except OutdatedState:
                is_stale = True
            except LogUnavailable as error:
                _log.warning("not decided yet", action="log-unavailable", job=job, error=str(error))
                break
            except Exception as error:  # noqa: BLE001 - a job that cannot be decided must not stop the others
                _log.error("not decided", action="undecidable", job=job, exc_info=error)
                self._agenda.put(job, now + UNDECIDABLE)
                return
            else:
                self._agenda.put(job, upcoming)
                return
        self._agenda.put(job, now + timedelta(seconds=1))

    async def _append(self, job: str, now: datetime) -> datetime | None:
        """Store what became of the instants up to `now`; when there will be something to decide next."""
        state, sequence = self._ledgers[job]
        if ledger.missing_fact(state) is not None:
            state, sequence = self._know(job, *await self._reader.load(job))
            if ledger.missing_fact(state) is not None:
                raise LogUnavailable("the log's replica that answered lacks a fact on the definition")
        while True:
            facts = ledger.decide_instants(state, now, allowance=self._breaker.left(job))
            for fact in facts:
                sequence = await self._log.append(fact, expect=sequence)
                state = ledger.evolve(state, Recorded(fact, subject_of(fact), sequence, UNTOLD))
                self._know(job, state, sequence)
                if isinstance(fact, Due):
                    self._breaker.count(job)
                else:
                    missed_instants.tell(fact)
            upcoming = ledger.next_instant(state, state.watermark or now)
            if not facts or upcoming is None or upcoming > now:
                newest, learned = self._ledgers[job]
                return upcoming if learned == sequence else ledger.next_instant(newest, now)

    def _know(self, job: str, state: Ledger, sequence: int) -> tuple[Ledger, int]:
        """Remember a ledger, unless a newer one was learned since it was asked for; what is known now."""
        if sequence >= self._ledgers[job][1]:
            self._ledgers[job] = ledger.without_definitions(state), sequence
        return self._ledgers[job]


def ticker(log: EventLog, leadership: LeaderElection, clock: Clock) -> Stage:
    """One ticker and its candidature."""
    it = Ticker(log, leadership, clock)
    return Stage("ticker", loops=(leadership.run, it.follow, it.run), access=ACCESS)
