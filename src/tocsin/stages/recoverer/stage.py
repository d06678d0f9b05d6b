"""Recoverer: ends what takes too long, hands on anew what was lost, and so frees every lock (cloacina, Recovery).

follows   that executions begin and end, without their bodies
folds     an execution that stays open, when there may be something to be done
publishes a report of failure for an attempt that is past its deadline: the retrier decides on it as on any other
appends   recovered, on which the lock keeper and the DAG advancer decide anew; failed, with its reason

Only the holder of a lease acts, to save work: every append is guarded by what it was decided on, and so is each report.
"""

import asyncio
from datetime import datetime, timedelta
from typing import Final

import structlog

from ...domain import recovery
from ...domain.events import Failed, Lost, Recovered, Report
from ...domain.recovery import Findings, JobStatus, Policy, RecoveryDecision
from ...engine.clock_guard import ClockGuard
from ...engine.leader_election import LeaderElection
from ...engine.leadership_events import RECORDED
from ...engine.ledger_reader import LedgerReader
from ...engine.stage import Access, Stage
from ...ports import Clock, EventLog, LogUnavailable, OutdatedState, Projections
from ...subjects import RECOVERER_LEASE, Bucket, Stream
from .deadlines import Deadlines
from .loss_detection import Evidence
from .open_executions import CURSOR, OpenExecutions

AT_ONCE: Final = 64
FIRST_LOOK: Final = timedelta(seconds=5)
"""How long an execution has before it costs a read. A shorter `execution_timeout` is noticed after as long."""
SOON: Final = timedelta(seconds=1)
"""After how long one is looked at again that somebody else was at, or of which there is more to be done."""
UNDECIDABLE: Final = timedelta(seconds=30)
SAVED_EVERY: Final = 30.0

ACCESS: Final = Access(
    appends=(Recovered, Failed, Report, *RECORDED),
    reads=(Stream.LOG, Stream.LEDGER),
    follows=(Stream.LOG,),
    asks_about=(Stream.LOG,),
    writes=((Bucket.LEADER, RECOVERER_LEASE), (Bucket.CURSORS, CURSOR)),
)

_log = structlog.get_logger("tocsin.recoverer")


class Recoverer:
    """Looks at executions that stay open."""

    def __init__(
        self,
        log: EventLog,
        projections: Projections,
        leadership: LeaderElection,
        clock: Clock,
        key: bytes,
        *,
        policy: Policy,
        outside: frozenset[str],
        interval: float,
    ) -> None:
        self._log = log
        self._leadership = leadership
        self._clock = clock
        self._policy = policy
        self._outside = outside
        self._interval = interval
        self._ledgers = LedgerReader(log)
        self._deadlines = Deadlines(log, key, policy)
        self._time = ClockGuard(log, clock)
        self._saved_at = float("-inf")
        self.open = OpenExecutions(log, projections, first_look=min(FIRST_LOOK, policy.grace, policy.threshold))

    async def run(self) -> None:
        """Look, for as long as it leads."""
        while True:
            now = self._clock.now()
            if self._leadership.is_leading and self.open.is_complete and await self._time.is_credible(now):
                await self.run_once(now)
            await self._clock.sleep(self._interval)

    async def run_once(self, now: datetime) -> None:
        """Look at every execution whose time has come at `now` (UTC)."""
        evidence = Evidence(self._log)
        scopes = list(self.open.take(now))
        for i in range(0, len(scopes), AT_ONCE):
            await asyncio.gather(*(self._look(scope, now, evidence) for scope in scopes[i : i + AT_ONCE]))
        if self._clock.monotonic() - self._saved_at >= SAVED_EVERY:
            self._saved_at = self._clock.monotonic()
            await self.open.save()

    async def _look(self, scope: str, now: datetime, evidence: Evidence) -> None:
        try:
            again = await self._decide(scope, now, evidence)
        except OutdatedState:
            again = now + SOON
        except LogUnavailable as error:
            _log.warning("not looked at", action="log-unavailable", scope=scope, error=str(error))
            again = now + SOON
        except Exception as error:  # noqa: BLE001 - an execution that cannot be decided must not stop the others
            _log.error("not looked at", action="undecidable", scope=scope, exc_info=error)
            again = now + UNDECIDABLE
        if again is not None:
            self.open.look_again(scope, again)

    async def _decide(self, scope: str, now: datetime, evidence: Evidence) -> datetime | None:
        """Do what there is to be done about an execution; when to look again, if ever."""
        facts = await self._log.load(scope)
        if not facts and await self._log.tail(scope):
            return now + SOON  # a replica that lags was read
        found = recovery.examine(facts, now=now, policy=self._policy, outside=self._outside)
        if found is None:
            self.open.forget(scope)
            return None
        if decided := recovery.expire(found) or await self._recover(found, now, evidence):
            for fact in decided:
                await self._log.append(fact, expect=found.sequence)
                _log.warning(fact.type, action=fact.type, job=fact.job, execution_id=fact.execution_id)
            return now + SOON
        for overdue in found.overdue:
            await self._deadlines.end(overdue, found.state, now, evidence)
        return found.next_look

    async def _recover(self, found: Findings, now: datetime, evidence: Evidence) -> list[RecoveryDecision]:
        lost: list[Lost] = [one.lost for one in found.stalled if await evidence.is_lost(one, found.state)]
        if not lost:
            return []
        job = await self._job(found.state.request.job)
        return recovery.recover(found, lost, now=now, policy=self._policy, job=job)

    async def _job(self, name: str) -> JobStatus:
        ledger, _ = await self._ledgers.load(name)
        if ledger.definition is None:
            return "gone"
        return "paused" if ledger.is_paused or not ledger.definition.enabled else "active"


def recoverer(
    log: EventLog,
    projections: Projections,
    leadership: LeaderElection,
    clock: Clock,
    key: bytes,
    *,
    policy: Policy,
    outside: frozenset[str],
    interval: float = 1.0,
) -> Stage:
    """One recoverer and its candidature. `outside` are the queues that are handed over; `interval` is seconds."""
    it = Recoverer(log, projections, leadership, clock, key, policy=policy, outside=outside, interval=interval)
    return Stage("recoverer", loops=(leadership.run, it.open.follow, it.run), access=ACCESS)
