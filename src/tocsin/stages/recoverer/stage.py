"""Recoverer: ends attempts that take too long, and resumes executions that were lost (cloacina, Recovery).

It follows the beginnings and ends of executions without their bodies, and folds an execution that stays open. An attempt
that is past its deadline gets a report of failure, on which the retrier decides as on any other. A lost message leads to
`recovered`, on which the lock keeper and the DAG advancer decide again, or to `failed` with a reason.

Only the holder of the lease acts. That only saves work: every append is guarded by the state it was decided on.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from ... import telemetry
from ...domain import recovery
from ...domain.events import Failed, Lost, Message, Recorded, Recovered, Report, Requested
from ...domain.recovery import Findings, JobStatus, Policy, RecoveryDecision
from ...engine.leader_election import LeaderElection, lease_access
from ...engine.leadership_events import TERM_EVENTS
from ...engine.ledger_reader import LedgerReader
from ...engine.stage import Access, Stage, StageContext
from ...ports import Append, Clock, EventLog, LogUnavailable, OutdatedState, Projections, Write, Written
from ...settings import Settings
from ...subjects import RECOVERER_LEASE, Bucket, Stream
from .attempt_deadlines import Change, Deadlines
from .open_executions import CURSOR, Evidence, Known, OpenExecutions

AT_ONCE: Final = 16
PORTION: Final = 64
"""The number of executions that are due after which the recoverer rests, if more are."""
REST_S: Final = 0.1
"""The time of such a rest, in which the other stages of the process have it to themselves."""
EVIDENCE_AGE_S: Final = 10.0
"""How long the portions of a backlog share the evidence. Older evidence proves no loss that newer evidence would not prove."""
FIRST_LOOK: Final = timedelta(seconds=5)
"""How long an execution may run before the first read. A shorter `execution_timeout` is noticed after that."""
READ_WHOLE_INTERVAL: Final = timedelta(hours=1)
"""How often an execution is read whole if no news of it come."""
SOON: Final = timedelta(seconds=1)
"""When an execution is examined again that another writer changed, or that needs another decision."""
RETRY_UNDECIDABLE: Final = timedelta(seconds=30)

_log = telemetry.get_logger("tocsin.recoverer")


@dataclass(frozen=True, slots=True)
class Decision:
    """The result of an examination.

    Attributes:
        next_look: when the execution is examined again; None: it is over.
        changes: what to store.
        known: what holds without a new event; None: the execution must be read again.
    """

    next_look: datetime | None
    changes: tuple[Change, ...] = ()
    known: Known | None = None


class Read(NamedTuple):
    """The events of an execution, read up to a sequence of the stream; 0: unknown."""

    facts: Sequence[Recorded[Message]]
    upto: int


class Recoverer:
    """Examines executions that stay open."""

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
        self._projections = projections
        self._leadership = leadership
        self._clock = clock
        self._key = key
        self._policy = policy
        self._outside = outside
        self._interval = interval
        self._ledgers = LedgerReader(log)
        self._shared_evidence = Evidence(log, projections, key)
        self._evidence_since: float | None = None
        self._deadlines = Deadlines(log, key, policy)
        self.open = OpenExecutions(log, projections, clock, first_look=min(FIRST_LOOK, policy.grace, policy.threshold))

    async def lead(self) -> None:
        """Hold the leader lease, or try to."""
        await self._leadership.run()

    async def follow(self) -> None:
        """Follow which executions are open."""
        await self.open.follow()

    async def run(self) -> None:
        """Examine executions, as long as this recoverer leads."""
        while True:
            now = await self._leadership.time()
            has_more = now is not None and self.open.is_complete and await self.run_once(now)
            await self._clock.sleep(REST_S if has_more else self._interval)

    async def run_once(self, now: datetime) -> bool:
        """Examine a portion of the executions due at `now`, and return whether more may be."""
        evidence = self._evidence()
        due = self.open.take(now, PORTION)
        scopes = await self.open.with_news(due, now)
        for i in range(0, len(scopes), AT_ONCE):
            await self._wave(scopes[i : i + AT_ONCE], now, evidence)
        await self.open.save()
        has_more = len(due) == PORTION
        if not has_more:
            self._evidence_since = None
        return has_more

    def _evidence(self) -> Evidence:
        """Return the evidence of a round; a backlog shares it.

        So a lock for which many executions wait is read once for many of them.
        """
        time, since = self._clock.monotonic(), self._evidence_since
        if since is None or time - since >= EVIDENCE_AGE_S:
            self._shared_evidence = Evidence(self._log, self._projections, self._key)
            self._evidence_since = time
        return self._shared_evidence

    async def _wave(self, scopes: Sequence[str], now: datetime, evidence: Evidence) -> None:
        """Read executions together, decide on each, and store all decisions in one write.

        An error of one execution does not affect the others.
        """
        reads = await self._load(scopes)
        examinations = await asyncio.gather(
            *(self._examine(scope, reads[scope], now, evidence) for scope in scopes), return_exceptions=True
        )
        decisions = [decision for decision in examinations if isinstance(decision, Decision)]
        results = iter(await self._store([change.write for decision in decisions for change in decision.changes]))
        for scope, decision in zip(scopes, examinations, strict=True):
            if isinstance(decision, Decision):
                error = self._settle(decision, results)
            elif isinstance(decision, Exception):
                error = decision
            else:
                raise decision  # a cancellation
            if error is not None:
                self.open.look_again(scope, now + _delay_after(error, scope))
            elif isinstance(decision, Decision) and decision.known is not None:
                self.open.note(scope, decision.known, now)
            elif isinstance(decision, Decision) and decision.next_look is not None:
                self.open.look_again(scope, decision.next_look)

    async def _load(self, scopes: Sequence[str]) -> Mapping[str, Read | Exception]:
        """Return the events of each execution, or the error of its read."""
        try:
            reads = await self._log.load_each(*scopes)
        except LogUnavailable as error:
            return dict.fromkeys(scopes, error)
        except Exception as error:  # noqa: BLE001 - find the execution that cannot be read
            if len(scopes) == 1:
                return {scopes[0]: error}
            parts = await asyncio.gather(*(self._load([scope]) for scope in scopes))
            return {scope: read for part in parts for scope, read in part.items()}
        return {scope: Read(facts, reads.upto) for scope, facts in zip(scopes, reads.facts, strict=True)}

    async def _store(self, writes: Sequence[Write]) -> list[Written]:
        try:
            return await self._log.write(writes) if writes else []
        except Exception as error:  # noqa: BLE001 - the executions must be examined again
            return [Written((), error) for _ in writes]

    def _settle(self, decision: Decision, results: Iterator[Written]) -> Exception | None:
        """Log what was stored of a decision; return the first error."""
        errors: list[Exception] = []
        for change, result in zip(decision.changes, results, strict=False):
            if result.error is not None:
                errors.append(result.error)
            elif change.notice:
                _log.warning(**change.notice)
        return errors[0] if errors else None

    async def _examine(self, scope: str, read: Read | Exception, now: datetime, evidence: Evidence) -> Decision:
        """Decide on an execution."""
        if isinstance(read, Exception):
            raise read
        facts, upto = read
        if not facts and await self._log.tail(scope):
            return Decision(now + SOON)  # a lagging replica answered
        findings = recovery.examine(facts, now=now, policy=self._policy, outside=self._outside)
        if findings is None:
            self.open.forget(scope)
            return Decision(None)
        if decision := recovery.expire(findings) or await self._recover(findings, now, evidence):
            return Decision(now + SOON, (_append(decision, findings.sequence),))
        ends = [
            await self._deadlines.end(overdue, facts, findings.state, now, evidence) for overdue in findings.overdue
        ]
        if changes := tuple(change for change in ends if change is not None):
            return Decision(findings.next_look, changes)
        until = now + READ_WHOLE_INTERVAL
        if findings.deadline is not None:
            until = min(until, findings.deadline)
        return Decision(findings.next_look, known=Known(upto, findings.interval, until) if upto else None)

    async def _recover(self, findings: Findings, now: datetime, evidence: Evidence) -> list[RecoveryDecision]:
        losses: list[Lost] = [stall.lost for stall in findings.stalled if await evidence.is_lost(stall, findings.state)]
        if not losses:
            return []
        job = await self._job(findings.state.request)
        return recovery.recover(findings, losses, now=now, policy=self._policy, job=job)

    async def _job(self, request: Requested) -> JobStatus:
        if not request.plan.definition:
            return "active"  # enqueued without registration: a registered job of the same name is another job
        ledger, _ = await self._ledgers.load(request.job)
        if ledger.definition is None:
            return "gone"
        return "paused" if ledger.is_paused or not ledger.definition.enabled else "active"


def _append(decisions: Sequence[RecoveryDecision], expect: int) -> Change:
    first = decisions[0]
    notice = {"event": first.type, "action": first.type, "job": first.job, "execution_id": first.execution_id}
    return Change(Append(tuple(decisions), expect), notice)


def _delay_after(error: Exception, scope: str) -> timedelta:
    """Log an error; return when to examine the execution again."""
    match error:
        case OutdatedState():
            return SOON
        case LogUnavailable():
            _log.warning(
                "examination delayed; waiting for JetStream", action="log-unavailable", scope=scope, error=str(error)
            )
            return SOON
        case _:
            _log.error("examination failed; retrying later", action="undecidable", scope=scope, exc_info=error)
            return RETRY_UNDECIDABLE


def policy_of(settings: Settings) -> Policy:
    """Return the policy of the settings."""
    given = settings.recovery
    return Policy(
        threshold=timedelta(seconds=given.threshold),
        max_attempts=given.max_attempts,
        max_age=timedelta(seconds=given.max_age),
        grace=timedelta(seconds=given.grace),
    )


def _start(context: StageContext) -> Recoverer:
    return Recoverer(
        context.log,
        context.projections,
        context.elect(RECOVERER_LEASE, signs=()),
        context.clock,
        context.report_key,
        policy=policy_of(context.settings),
        outside=frozenset(context.settings.bridged_queues),
        interval=context.settings.recovery.interval,
    )


RECOVERER: Final = Stage(
    name="recoverer",
    purpose="resumes lost executions, ends overdue attempts; one leads",
    consumes="beginnings and ends of executions",
    decides="`recovered`; `failed` (timed out, abandoned); reports for silent executors",
    access=Access(
        appends=(Recovered, Failed, Report, *TERM_EVENTS),
        reads=(Stream.LOG, Stream.LEDGER, Stream.REPORTS, Stream.TIMERS),
        follows=(Stream.LOG,),
        asks_about=(Stream.LOG, Stream.REPORTS, Stream.TIMERS),
        writes=(*lease_access(RECOVERER_LEASE), (Bucket.CURSORS, CURSOR)),
    ),
    start=_start,
    loops=(Recoverer.lead, Recoverer.follow, Recoverer.run),
)
