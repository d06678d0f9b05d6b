"""Ticker: stores the decision on each instant when it comes. Only the leader decides.

Every candidate follows the whole ledger and keeps each job's ledger folded, so that a new leader starts at once.
"""

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from .. import telemetry
from ..domain import ledger
from ..domain.events import Deleted, Due, LedgerFact, Message, Passed, Recorded, ShardsDefined
from ..domain.ledger import Ledger, Ledgers, Lookahead
from ..domain.schedule import ScheduleError, timezone_database
from ..engine import timezone_refresh
from ..engine.due_queue import CircuitBreaker, DueQueue
from ..engine.fold import LEDGER, UNKNOWN_TIME
from ..engine.heartbeat import Heartbeat
from ..engine.kinds import NEWEST_SHARD_MAP
from ..engine.leader_election import LeaderElection, lease_access
from ..engine.leadership_events import TERM_EVENTS, TICKER_SIGNS
from ..engine.ledger_reader import FACTS, LedgerReader, decode_timetables, jobs_of
from ..engine.ledger_snapshot import LedgerSnapshots
from ..engine.stage import Access, Deadline, DeadlineRule, Stage
from ..engine.step import Events, States, Step, done
from ..engine.ticker_watch import report_missed
from ..ports import Append, Clock, EventLog, LogUnavailable, OutdatedState, Projections, Written
from ..subjects import TICKER_LEASE, TIMEZONE_REPORT, Bucket, Stream, filter_for, subject_of

AT_ONCE: Final = 256
"""Jobs whose events are stored in one write; more would delay the first of them."""
TRIES: Final = 5
SOON: Final = timedelta(seconds=1)
"""When a job is decided on again that other writers kept changing, or that could not be stored."""
STANDBY_INTERVAL_S: Final = 0.2
"""How often a candidate checks whether it leads."""
RETRY_UNDECIDABLE: Final = timedelta(seconds=30)
"""How long the ticker leaves a job alone after an unexpected error."""

SHARD_MAPS: Final = filter_for("shards.shards-defined")

_log = telemetry.get_logger("tocsin.ticker")


@dataclass(eq=False, slots=True)
class _Turn:
    """A due job on its way through the waves of a tick."""

    job: str
    state: Ledger = ledger.initial
    sequence: int = 0
    """The last sequence that `state` includes."""
    facts: list[Due | Passed | Deleted] = field(default_factory=list)
    """Events that are decided and not stored."""
    is_open: bool = True
    is_stale: bool = False
    has_begun: bool = False
    is_delayed: bool = False
    """The log did not store its decision."""
    conflicts: int = 0

    @property
    def next_facts(self) -> tuple[Due | Passed | Deleted, ...]:
        """The events to store next.

        At first this is one, so that a job with many events does not delay other jobs.
        """
        return tuple(self.facts[: AT_ONCE if self.has_begun else 1])


class Ticker:
    """Holds the ledger of every job, and decides on its instants."""

    def __init__(
        self,
        log: EventLog,
        leadership: LeaderElection,
        clock: Clock,
        projections: Projections | None = None,
        snapshots: LedgerSnapshots | None = None,
        heartbeat: Heartbeat | None = None,
    ) -> None:
        """`projections` receives the reports of moved instants; None: they are only logged.

        `snapshots` holds the ledgers that earlier tickers folded; None: this ticker folds all events. `heartbeat` reports clean
        passes to a monitor outside.
        """
        self._log = log
        self._projections = projections
        self._database = timezone_database()
        self._leadership = leadership
        self._clock = clock
        self._reader = LedgerReader(log)
        self._ledgers = Ledgers()
        self._lookahead = Lookahead()
        self._agenda = DueQueue()
        self._breaker = CircuitBreaker(clock)
        self._caught_up = False
        self._shard_map = 0
        """The version of the newest shard map; 0: no map."""
        self._doubtful: set[str] = set()
        """Jobs whose ledgers may lack an event that a foreign message hides."""
        self._snapshots = snapshots
        self._heartbeat = heartbeat

    async def follow(self) -> None:
        """Keep every ledger folded, whether leading or not, so that a new leader reads nothing."""
        restored = None if self._snapshots is None else await self._snapshots.load()
        if restored is not None:
            self._ledgers = restored.ledgers
        after = None if restored is None else restored.position.upto
        if restored is not None:
            await self._catch_up_with_shard_map()
        async for batch in self._log.follow(Stream.LEDGER, *FACTS, SHARD_MAPS, after=after, decode=decode_timetables):
            for recorded in batch.messages:
                self.learn(recorded)
            for job in jobs_of(batch.foreign):
                await self._doubt(job)
            if self._snapshots is not None:
                self._snapshots.follow(batch)
            if batch.caught_up and not self._caught_up:
                await self._schedule_all()
                self._caught_up = True

    async def _catch_up_with_shard_map(self) -> None:
        """Learn the newest shard map, which may be older than the snapshot.

        It waits until the log answers.
        """
        async with aclosing(self._log.follow(Stream.LEDGER, SHARD_MAPS, after=None)) as follower:
            async for batch in follower:
                for recorded in batch.messages:
                    self.learn(recorded)
                if batch.caught_up:
                    return

    async def keep_snapshots(self) -> None:
        """Write snapshots of the ledgers, as long as this ticker leads."""
        if self._snapshots is not None:
            await self._snapshots.keep(lambda: self._ledgers, self._may_write_snapshot)

    def _may_write_snapshot(self) -> bool:
        return self._caught_up and self._leadership.is_leading and not self._doubtful

    async def _doubt(self, job: str) -> None:
        """Read the whole ledger of a job that has a foreign message.

        If that fails, the next decision on the job reads it.
        """
        self._doubtful.add(job)
        turn, now = _Turn(job), self._clock.now()
        await self._read_again(turn, now)
        if turn.is_open and self._caught_up:
            self._agenda.put(job, self._when(job, now))

    async def _schedule_all(self) -> None:
        """Put every job into the agenda.

        This waits until all ledgers are folded, since a ledger may have several events, and each changes the next instant.
        """
        for number, job in enumerate(list(self._ledgers)):
            self._agenda.put(job, self._when(job, UNKNOWN_TIME))
            if not number % AT_ONCE:
                await asyncio.sleep(0)

    def learn(self, recorded: Recorded[Message]) -> None:
        """Fold an event of a ledger."""
        fact = recorded.message
        if isinstance(fact, ShardsDefined):
            self._shard_map = max(self._shard_map, recorded.sequence)
        if not isinstance(fact, LedgerFact):
            return
        state, sequence = self._ledgers[fact.job]
        if recorded.sequence <= sequence:
            return
        self._ledgers.put(fact.job, ledger.evolve(state, recorded), recorded.sequence)
        if self._caught_up:
            self._agenda.put(fact.job, self._when(fact.job, recorded.time))

    def _when(self, job: str, fallback: datetime) -> datetime | None:
        """Return when to decide on a job whose ledger changed.

        That is when its next instant is due, or at `fallback` if that is unclear.
        """
        try:
            return self._ledgers.next_instant(job, self._lookahead)
        except (LookupError, ScheduleError):
            return fallback

    async def keep_timezones(self) -> None:
        """Notice new time-zone data of this process until cancelled."""
        while True:
            await self._clock.sleep(STANDBY_INTERVAL_S)
            try:
                await self.take_over_timezones()
            except Exception as error:  # noqa: BLE001 - a report that fails must not stop the ticker
                _log.error("report of moved instants failed", action="timezones-not-reported", exc_info=error)

    async def take_over_timezones(self) -> None:
        """Schedule every job by new time-zone data, and report the instants that moved."""
        before, self._database = self._database, timezone_database()
        if before is self._database or not self._caught_up:
            return
        await self._schedule_all()
        jobs = ((job, timetable) for job in list(self._ledgers) if (timetable := self._ledgers[job][0].timetable))
        report = await timezone_refresh.report_of(jobs, before, self._database, self._clock.now())
        if self._leadership.is_leading:
            await timezone_refresh.publish(report, self._projections)

    async def keep_heartbeat(self) -> None:
        """Send signs of life to a monitor outside, as long as this ticker leads."""
        if self._heartbeat is None:
            await asyncio.Event().wait()  # a loop of a stage ends only when it is cancelled
        else:
            await self._heartbeat.run(lambda: self._leadership.is_leading)

    async def lead(self) -> None:
        """Hold the leader lease, or try to."""
        await self._leadership.run()

    async def run(self) -> None:
        """Decide at the beginning of every second (CRON-24), and as soon as this ticker leads.

        Seconds are those of the log's clock.
        """
        while True:
            now, start = await self._leadership.time(), self._clock.monotonic()
            if now is None:
                await self._clock.sleep(STANDBY_INTERVAL_S)
                continue
            if self._caught_up:
                await self.run_once(now)
            now += timedelta(seconds=self._clock.monotonic() - start)
            await self._clock.sleep(1.001 - now.microsecond / 1e6)

    async def run_once(self, now: datetime) -> None:
        """Decide on every instant up to `now` (UTC).

        A wave stores the next event of up to `AT_ONCE` jobs in one write. A job that has more events, or whose ledger
        has changed, follows in a later wave, after the first event of every other job.
        """
        turns = [_Turn(job, is_stale=job in self._doubtful) for job in self._agenda.take(now)]
        queue = deque(turns)
        while queue:
            wave = [queue.popleft() for _ in range(min(AT_ONCE, len(queue)))]
            await self._wave(wave, now)
            queue.extend(turn for turn in wave if turn.is_open)
        if self._heartbeat is not None:
            self._heartbeat.pass_ended(is_clean=not any(turn.is_delayed for turn in turns))

    async def _wave(self, wave: Sequence[_Turn], now: datetime) -> None:
        """Decide on jobs, and store the next events of each."""
        await asyncio.gather(*(self._read_again(turn, now) for turn in wave if turn.is_stale))
        if not self._leadership.is_leading:
            for turn in wave:
                self._end(turn, now + SOON)
            return
        for turn in wave:
            if turn.is_open and not turn.facts:
                self._decide(turn, now)
        decisive_turns = [turn for turn in wave if turn.facts]
        if not decisive_turns:
            return
        try:
            results = await self._store(decisive_turns)
        except Exception as error:  # noqa: BLE001 - the jobs must stay in the agenda
            results = [Written((), error) for _ in decisive_turns]
        for turn, result in zip(decisive_turns, results, strict=True):
            try:
                self._settle(turn, result, now)
            except Exception as error:  # noqa: BLE001 - a job that cannot be decided must not stop the others
                self._fail(turn, error, now)

    async def _read_again(self, turn: _Turn, now: datetime) -> None:
        try:
            state, _ = self._remember(turn.job, *await self._reader.load(turn.job))
        except Exception as error:  # noqa: BLE001 - a job that cannot be read must not stop the others
            self._fail(turn, error, now)
            return
        turn.is_stale = False
        if ledger.missing_fact(state) is not None:
            reason = f"The ledger of {turn.job} is incomplete: a lagging replica answered. Read it again."
            self._fail(turn, LogUnavailable(reason), now)
            return
        self._doubtful.discard(turn.job)

    def _decide(self, turn: _Turn, now: datetime) -> None:
        """Decide on a job's instants up to `now`; without any, end its turn."""
        try:
            job, lookahead = turn.job, self._lookahead
            turn.state, turn.sequence = self._ledgers[job]
            if ledger.missing_fact(turn.state) is not None:
                turn.is_stale = True
                return
            allowance = self._breaker.left(job)
            turn.facts = [
                *ledger.decide_instants(
                    turn.state, now, allowance=allowance, lookahead=lookahead, shards=self._shard_map
                )
            ]
            turn.facts = turn.facts or [*ledger.complete(turn.state)]
            if not turn.facts:
                # Nothing is undecided up to `now`, also under earlier definitions.
                self._end(turn, ledger.next_instant(turn.state, now, lookahead=lookahead))
        except Exception as error:  # noqa: BLE001 - a job that cannot be decided must not stop the others
            self._fail(turn, error, now)

    async def _store(self, turns: Sequence[_Turn]) -> list[Written]:
        """Append the next events of each job in one write."""
        return await self._log.write([Append(turn.next_facts, expect=turn.sequence) for turn in turns])

    def _settle(self, turn: _Turn, result: Written, now: datetime) -> None:
        """Fold what was stored; end the turn of a job without further instants."""
        job, lookahead = turn.job, self._lookahead
        for fact, sequence in zip(turn.next_facts, result.sequences, strict=False):
            turn.state = ledger.evolve(turn.state, Recorded(fact, subject_of(fact), sequence, UNKNOWN_TIME))
            turn.sequence = sequence
            self._remember(job, turn.state, sequence)
            if isinstance(fact, Due):
                self._breaker.count(job)
            elif isinstance(fact, Passed):
                report_missed(fact)
        turn.facts = turn.facts[len(result.sequences) :]
        turn.has_begun = True
        if result.error is not None:
            self._fail(turn, result.error, now)
            return
        if turn.facts:
            return
        instant = ledger.next_instant(turn.state, turn.state.watermark or now, lookahead=lookahead)
        if instant is None or instant > now:
            newest, newest_sequence = self._ledgers[job]
            if newest_sequence != turn.sequence:
                instant = ledger.next_instant(newest, now, lookahead=lookahead)
            self._end(turn, instant)

    def _fail(self, turn: _Turn, error: Exception, now: datetime) -> None:
        """Decide again after a conflict; after another error, leave the job alone for a while."""
        turn.facts = []
        match error:
            case OutdatedState():
                turn.is_stale = True
                turn.conflicts += 1
                if turn.conflicts >= TRIES:
                    self._end(turn, now + SOON)
            case LogUnavailable():
                turn.is_delayed = True
                _log.warning(
                    "decision delayed; waiting for JetStream", action="log-unavailable", job=turn.job, error=str(error)
                )
                self._end(turn, now + SOON)
            case _:
                _log.error("decision failed; retrying later", action="undecidable", job=turn.job, exc_info=error)
                self._end(turn, now + RETRY_UNDECIDABLE)

    def _end(self, turn: _Turn, instant: datetime | None) -> None:
        """End the turn of a job, whose next decision is due at `instant`."""
        if turn.is_open:
            turn.is_open = False
            self._agenda.put(turn.job, instant)

    def _remember(self, job: str, state: Ledger, sequence: int) -> tuple[Ledger, int]:
        """Cache a ledger unless a newer state is cached; return the newest state."""
        if sequence >= self._ledgers.sequence(job):
            self._ledgers.put(job, state, sequence)
        return self._ledgers[job]


TICKER: Final = Stage(
    name="ticker",
    purpose="decides on each instant when it comes; one leads",
    consumes="the clock, the ledgers",
    decides="`due` or `passed`; `deleted` if `on_completion` is `drop`",
    access=Access(
        appends=(Due, Passed, Deleted, *TERM_EVENTS),
        reads=(Stream.LEDGER,),
        follows=(Stream.LEDGER,),
        writes=(*lease_access(TICKER_LEASE), (Bucket.TIMEZONES, TIMEZONE_REPORT), (Bucket.SNAPSHOTS, ">")),
    ),
    start=lambda context: Ticker(
        context.log,
        context.elect(TICKER_LEASE, signs=TICKER_SIGNS),
        context.clock,
        context.projections,
        LedgerSnapshots(context.log, context.projections, context.clock, version=context.version),
        context.heartbeat,
    ),
    loops=(
        *(Ticker.lead, Ticker.follow, Ticker.run, Ticker.keep_timezones, Ticker.keep_snapshots),
        Ticker.keep_heartbeat,
    ),
)


class Instants:
    """The decisions of the ticker on the log of commits."""

    def __init__(self) -> None:
        self._lookahead = Lookahead()

    def next_of(self, state: Ledger) -> Iterator[Deadline]:
        """Return when the next instant of a job needs a decision."""
        if (current := state.current) is None:
            return
        at = ledger.next_instant(state, state.watermark or state.regimes[0].since, lookahead=self._lookahead)
        if at == current.since and next(ledger.undecided_occurrences(state, at), None) is None:
            at = ledger.next_instant(state, at, lookahead=self._lookahead)
        if at is not None:
            yield Deadline(at)

    def on_instant(self, scope: str, deadline: Deadline, states: States, now: datetime) -> Step:  # noqa: ARG002 - of all up to now
        """Decide on the instants of a job up to now."""
        ref = LEDGER(scope)
        state, (version, _) = states(ref), states(NEWEST_SHARD_MAP(None))
        facts = ledger.decide_instants(state, now, lookahead=self._lookahead, shards=version)
        return done(Events(ref, tuple(_first_of(facts) or ledger.complete(state))))


def _first_of(facts: Sequence[Due | Passed]) -> Sequence[Due | Passed]:
    """Return as many decisions as one call may yield, but all on one instant."""
    number = len(facts)
    while number > AT_ONCE or (0 < number < len(facts) and _instant(facts[number - 1]) == _instant(facts[number])):
        number -= 1
    return facts[:number]


def _instant(fact: Due | Passed) -> datetime:
    return fact.scheduled_time if isinstance(fact, Due) else fact.until


TICKER_OF_COMMITS: Final = Stage(
    name=TICKER.name,
    purpose=TICKER.purpose,
    consumes=TICKER.consumes,
    decides=TICKER.decides,
    access=Access(appends=(Due, Passed, Deleted)),
    start=lambda _: Instants(),
    deadlines=(DeadlineRule(LEDGER, Instants.next_of, Instants.on_instant),),
)
"""It replaces `TICKER` together with the log."""
