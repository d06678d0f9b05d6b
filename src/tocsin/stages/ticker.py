"""Ticker: stores the decision on each instant when it comes. Only the leader decides.

Every candidate follows the whole ledger and keeps each job's ledger folded, so that a new leader starts at once.
"""

import asyncio
from collections import Counter, defaultdict
from datetime import datetime, timedelta
from typing import Final

from .. import telemetry
from ..domain import ledger
from ..domain.events import MISSED_REASONS, Due, LedgerFact, Message, Passed, Recorded
from ..domain.ledger import Ledger, Lookahead
from ..domain.schedule import ScheduleError
from ..engine.clock_guard import ClockGuard
from ..engine.due_queue import DueQueue
from ..engine.leader_election import TERM_EVENTS, TICKER_SIGNS, LeaderElection
from ..engine.ledger_reader import FACTS, LedgerReader
from ..engine.stage import Access, Stage
from ..engine.state_cache import UNKNOWN_TIME
from ..ports import Clock, EventLog, LogUnavailable, OutdatedState
from ..subjects import TICKER_LEASE, Bucket, Stream, subject_of

AT_ONCE: Final = 128
TRIES: Final = 5
STANDBY_INTERVAL_S: Final = 0.2
"""How often a candidate checks whether it leads."""
RETRY_UNDECIDABLE: Final = timedelta(seconds=30)
"""How long the ticker leaves a job alone after an unexpected error."""
MAX_FIRED_PER_MINUTE: Final = 600
"""Ten times the instants of a schedule of every second."""
_MINUTE_S: Final = 60.0

_log = telemetry.get_logger("tocsin.ticker")
_missed_instants: Final = telemetry.meter().create_counter(
    "tocsin_instants_missed", unit="{instant}", description="Scheduled instants that passed without firing, unforeseen."
)


class CircuitBreaker:
    """Limits how often each job fires in a minute.

    It counts by a monotonic clock, so that a wall clock that runs away cannot cause a flood.
    """

    def __init__(self, clock: Clock, *, per_minute: int = MAX_FIRED_PER_MINUTE) -> None:
        self._clock = clock
        self._per_minute = per_minute
        self._minute = 0
        self._fired: Counter[str] = Counter()

    def left(self, job: str) -> int:
        """Return how often a job may still fire in this minute."""
        minute = int(self._clock.monotonic() // _MINUTE_S)
        if minute != self._minute:
            self._minute = minute
            self._fired.clear()
        return max(0, self._per_minute - self._fired[job])

    def count(self, job: str) -> None:
        """Count that a job fired."""
        self._fired[job] += 1


class Ticker:
    """Holds the ledger of every job, and decides on its instants."""

    def __init__(self, log: EventLog, leadership: LeaderElection, clock: Clock) -> None:
        self._log = log
        self._leadership = leadership
        self._clock = clock
        self._reader = LedgerReader(log)
        self._ledgers: dict[str, tuple[Ledger, int]] = {}
        self._lookaheads = defaultdict[str, Lookahead](Lookahead)
        self._agenda = DueQueue()
        self._breaker = CircuitBreaker(clock)
        self._time = ClockGuard(log, clock)
        self._caught_up = False

    async def follow(self) -> None:
        """Keep every ledger folded, whether leading or not, so that a new leader reads nothing."""
        async for batch in self._log.follow(Stream.LEDGER, *FACTS, after=None):
            for recorded in batch.messages:
                self.learn(recorded)
            self._caught_up = self._caught_up or batch.caught_up

    def learn(self, recorded: Recorded[Message]) -> None:
        """Fold an event of a ledger."""
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
        """Return when to decide on a job whose ledger changed.

        That is when its next instant is due, or now if that is unclear.
        """
        if len(state.regimes) != 1 or ledger.missing_fact(state) is not None:
            return learned
        try:
            return ledger.next_instant(state, state.regimes[0].since, lookahead=self._lookaheads[state.job])
        except ScheduleError:
            return learned

    async def lead(self) -> None:
        """Hold the leader lease, or try to."""
        await self._leadership.run()

    async def run(self) -> None:
        """Decide at the beginning of every second (CRON-24), and as soon as this ticker leads."""
        while True:
            now = self._clock.now()
            if self._leadership.is_leading and self._caught_up and await self._time.is_credible(now):
                await self.run_once(now)
            rest = self._clock.now().microsecond / 1e6
            await self._clock.sleep(1.001 - rest if self._leadership.is_leading else STANDBY_INTERVAL_S)

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
                    self._remember(job, *await self._reader.load(job))
                upcoming = await self._append(job, now)
            except OutdatedState:
                is_stale = True
            except LogUnavailable as error:
                _log.warning(
                    "decision delayed; waiting for JetStream", action="log-unavailable", job=job, error=str(error)
                )
                break
            except Exception as error:  # noqa: BLE001 - a job that cannot be decided must not stop the others
                _log.error("decision failed; retrying later", action="undecidable", job=job, exc_info=error)
                self._agenda.put(job, now + RETRY_UNDECIDABLE)
                return
            else:
                self._agenda.put(job, upcoming)
                return
        self._agenda.put(job, now + timedelta(seconds=1))

    async def _append(self, job: str, now: datetime) -> datetime | None:
        """Store the decisions up to `now`; return when the next decision is due."""
        (state, sequence), lookahead = self._ledgers[job], self._lookaheads[job]
        if ledger.missing_fact(state) is not None:
            state, sequence = self._remember(job, *await self._reader.load(job))
            if ledger.missing_fact(state) is not None:
                raise LogUnavailable(f"The ledger of {job} is incomplete: a lagging replica answered. Read it again.")
        while True:
            facts = ledger.decide_instants(state, now, allowance=self._breaker.left(job), lookahead=lookahead)
            for fact in facts:
                sequence = await self._log.append(fact, expect=sequence)
                state = ledger.evolve(state, Recorded(fact, subject_of(fact), sequence, UNKNOWN_TIME))
                self._remember(job, state, sequence)
                if isinstance(fact, Due):
                    self._breaker.count(job)
                else:
                    _report_missed(fact)
            upcoming = ledger.next_instant(state, state.watermark or now, lookahead=lookahead)
            if not facts or upcoming is None or upcoming > now:
                newest, learned = self._ledgers[job]
                if learned == sequence:
                    return upcoming
                return ledger.next_instant(newest, now, lookahead=lookahead)

    def _remember(self, job: str, state: Ledger, sequence: int) -> tuple[Ledger, int]:
        """Cache a ledger unless a newer state is cached; return the newest state."""
        if sequence >= self._ledgers[job][1]:
            self._ledgers[job] = ledger.without_definitions(state), sequence
        return self._ledgers[job]


def _report_missed(passed: Passed) -> None:
    """Log and count instants that passed without firing although no operator wished it."""
    if passed.reason not in MISSED_REASONS:
        return
    _missed_instants.add(passed.count, {"job": passed.job, "reason": passed.reason})
    is_throttled = passed.reason == "throttled"
    log = _log.error if is_throttled else _log.warning
    log(
        "job throttled: it fires too often" if is_throttled else "instants missed",
        action=passed.reason,
        job=passed.job,
        count=passed.count,
        start=passed.start.isoformat(),
        until=passed.until.isoformat(),
    )


TICKER: Final = Stage(
    name="ticker",
    purpose="decides on each instant when it comes; one leads",
    consumes="the clock, the ledgers",
    decides="`due` or `passed`",
    access=Access(
        appends=(Due, Passed, *TERM_EVENTS),
        reads=(Stream.LEDGER,),
        follows=(Stream.LEDGER,),
        writes=((Bucket.LEADER, TICKER_LEASE),),
    ),
    start=lambda context: Ticker(context.log, context.elect(TICKER_LEASE, signs=TICKER_SIGNS), context.clock),
    loops=(Ticker.lead, Ticker.follow, Ticker.run),
)
