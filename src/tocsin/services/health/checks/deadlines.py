"""Check for timers, instants, executions and locks whose time is over."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from .... import subjects
from ....domain import execution, lock
from ....domain.duration import MAX_DURATION_S
from ....domain.events import Acquired, Dispatched, Due, Message, Recorded, Requested, Started, unfold
from ....domain.execution import Execution, Phase, Status
from ....domain.ids import occurrence_id
from ....domain.lock import Lock
from ....subjects import DecodeError, Stream
from ..findings import CheckContext, Finding, Level, OverdueKind, ok
from .streams import UNREADABLE

GRACE: Final = timedelta(seconds=60)
"""Delay that is normal under load."""
MAX_TIMERS: Final = 10_000
MAX_EXECUTIONS: Final = 500
"""Open executions that are examined, the oldest first."""
_OPEN: Final = ("execution.*.*.*", subjects.DEPENDENTS, "execution.*.*.admitted.>", subjects.LOCKED_COMPLETIONS)
_TERMINAL_FACTS: Final = frozenset({"completed", "failed", "cancelled", "skipped"})

TIMERS: Final = OverdueKind(
    "timer-overdue",
    "timers of retries are overdue",
    means="the server has not published them, so those attempts do not start",
    do="check the servers' logs and load; a stream restored without its schedules has lost them",
    details="timers",
    all_well="no timer of a retry is overdue",
)
OCCURRENCES: Final = OverdueKind(
    "due-unplanned",
    "due instants have no execution",
    means="these executions have not started",
    do="run `tocsin run planner`; if it runs, check its log and `tocsin dead-letters list`",
    details="occurrences",
    all_well="the newest due instant of every job has its execution",
)
LOCKS: Final = OverdueKind(
    "lock-overdue",
    "locks are held beyond their time",
    means="later executions of these jobs are skipped, or wait",
    do="run `tocsin run recoverer`, or `tocsin executions cancel` the holders",
    details="locks",
    all_well="no lock is held beyond its time",
)
EXECUTIONS: Final = (
    OverdueKind(
        "undecided",
        "planned executions were neither admitted nor skipped",
        means="they have not started, and later executions of their jobs may wait for them",
        do="run `tocsin run lock-keeper agent-keeper`; if they run, check their logs",
        details="executions",
    ),
    OverdueKind(
        "dependency-unknown",
        "executions wait for other jobs beyond their `dependency_timeout`",
        means="it is not known whether these jobs ran: the decision on one of their instants is missing, or its run, or an event is unreadable",
        do="run `tocsin run ticker planner dependency-keeper`; if they run, resolve `due-unplanned` and `event-unreadable`, or run "
        "`tocsin executions cancel`",
        details="executions",
    ),
    OverdueKind(
        "unacknowledged",
        "executions wait for acknowledgements of agents",
        means="they have not started, and are skipped (`no_quorum`) after their last proposal",
        do="compare `tocsin executions show` with `tocsin agents list`, and run more workers with the function",
        details="executions",
        level=Level.WARN,
    ),
    OverdueKind(
        "undispatched",
        "admitted executions have no task",
        means="they have not started",
        do="run `tocsin run dag-advancer`; if it runs, check its log",
        details="executions",
    ),
    OverdueKind(
        "unclaimed",
        "executions have tasks that no worker has claimed",
        means="the workers are busy, or no worker of the queue has a handler for the function",
        do="check `tocsin status` for the queue, and run more workers; the tasks wait until then",
        details="executions",
        level=Level.WARN,
    ),
    OverdueKind(
        "overrun",
        "executions run beyond their timeout",
        means="their workers died or hang, and sent no report",
        do="run `tocsin run recoverer`, or `tocsin executions cancel` them",
        details="executions",
    ),
    OverdueKind(
        "worker-lost",
        "executions lost two or more workers with a task of a step",
        means="the task may end each worker that gets it, and with it the tasks beside it",
        do="read the logs of these workers, and cancel the executions if the handler is the cause; they fail at `recovery.max_deaths`",
        details="executions",
        level=Level.WARN,
    ),
)


async def timers(context: CheckContext) -> list[Finding]:
    """Report timers that the server should have published (`timer-overdue`)."""
    schedules = await context.target.inspection.schedules(MAX_TIMERS)
    return TIMERS.report([subject for subject, at in schedules if context.now - at >= GRACE])


async def occurrences(context: CheckContext) -> list[Finding]:
    """Report jobs whose newest due instant has no execution (`due-unplanned`)."""
    log, reads, unplanned = context.target.log, _Reads(context), []
    state, _ = await context.target.archive.state()
    archived = state.upto.get(Stream.LEDGER, 0)  # every execution of these instants was planned, and may be archived
    for recorded in await reads.of(subjects.filter_for("ledger.due")):
        due = recorded.message
        if not isinstance(due, Due) or recorded.sequence <= archived or context.age(recorded.time) < GRACE:
            continue
        if not await log.tail(subjects.execution(due.job, occurrence_id(due.job, due.scheduled_time))):
            unplanned.append(f"{due.job} at {due.scheduled_time.isoformat()}")
    return [*OCCURRENCES.report(unplanned), *reads.report()]


async def executions(context: CheckContext) -> list[Finding]:
    """Report open executions that do not move (`undecided`, `dependency-unknown`, `unacknowledged`, `undispatched`, `unclaimed`, `overrun`, `worker-lost`)."""
    overdue: dict[str, list[str]] = {kind.code: [] for kind in EXECUTIONS}
    locks: dict[str, Lock] = {}  # many executions may wait for one lock
    reads = _Reads(context)
    async for candidate in _open_executions(context, reads):
        for code in await _overdue_codes(context, candidate, locks, reads):
            overdue[code].append(f"{candidate.job} {candidate.id}")
        if any(len(deaths) > 1 for deaths in candidate.state.deaths.values()):
            overdue["worker-lost"].append(f"{candidate.job} {candidate.id}")
    findings = [finding for kind in EXECUTIONS for finding in kind.report(overdue[kind.code])] + reads.report()
    return findings or [ok("overrun", "every open execution moves")]


async def locks(context: CheckContext) -> list[Finding]:
    """Report locks whose holder has passed their time and does not move (`lock-overdue`).

    A holder may live long: it waits for a worker, for a delay, or runs one of many attempts. So its present phase counts.
    """
    reads, overdue = _Reads(context), list[str]()
    names = await context.target.inspection.subjects(Stream.LOG, "lock.>")
    for scope in sorted({name.rpartition(".")[0] for name in names}):
        acquired = next(iter(await reads.of(f"{scope}.acquired")), None)
        if acquired is None or not isinstance(acquired.message, Acquired):
            continue
        fact = acquired.message
        if context.age(acquired.time) <= timedelta(seconds=fact.ttl) + GRACE:
            continue
        facts = await reads.of(subjects.execution(fact.job, fact.execution_id))
        holder = _OpenExecution(fact.job, fact.execution_id, facts, execution.fold(facts))
        if holder.state.is_over or holder.state.requested is None:
            continue
        if _is_stuck(context, holder):
            overdue.append(f"{fact.job} by {fact.execution_id}")
    return [*LOCKS.report(overdue), *reads.report()]


class _Reads:
    """Reads of one check, which goes on without what this version cannot read."""

    def __init__(self, context: CheckContext) -> None:
        self._log = context.target.log
        self._inspection = context.target.inspection
        self._unreadable: list[str] = []

    async def of(self, scope: str) -> list[Recorded[Message]]:
        """Return the newest messages of a scope; nothing if one of them is unreadable.

        Of a filter over several jobs, return those of the others.
        """
        try:
            return await self._log.load(scope)
        except DecodeError as error:
            if "*" not in scope.removesuffix(".*"):
                self._unreadable.append(str(error))
                return []
        names = await self._inspection.subjects(subjects.stream_of(scope), scope)
        return [recorded for name in sorted(names) for recorded in await self.of(name)]

    def report(self) -> list[Finding]:
        """Return the finding about what could not be read, if anything."""
        return UNREADABLE.report(self._unreadable) if self._unreadable else []


@dataclass(frozen=True, slots=True)
class _OpenExecution:
    job: str
    id: str
    facts: list[Recorded[Message]]
    state: Execution

    def requested_at(self, default: datetime) -> datetime:
        """Return the time at which the execution was requested."""
        return next((r.time for r in unfold(self.facts) if isinstance(r.message, Requested)), default)

    def newest(self, kind: type[Dispatched | Started], step: str, attempt: int) -> datetime | None:
        """Return the time of the newest fact of a kind on an attempt."""
        return max(
            (
                r.time
                for r in self.facts
                if isinstance(r.message, kind) and (r.message.step, r.message.attempt) == (step, attempt)
            ),
            default=None,
        )


async def _open_executions(context: CheckContext, reads: _Reads) -> AsyncIterator[_OpenExecution]:
    inspection = context.target.inspection
    names = [name for pattern in _OPEN for name in await inspection.subjects(Stream.LOG, pattern)]
    tokens = [name.split(".", 4)[:4] for name in names]
    ended = {execution_id for _, _, execution_id, fact in tokens if fact in _TERMINAL_FACTS}
    # An execution id begins with its time, so sorting orders by age.
    unfinished = sorted({(execution_id, job) for _, job, execution_id, _ in tokens if execution_id not in ended})
    for execution_id, job in unfinished[:MAX_EXECUTIONS]:
        facts = await reads.of(subjects.execution(subjects.name(job), execution_id))
        state = execution.fold(facts)
        if facts and state.requested is not None and not state.is_over:
            yield _OpenExecution(subjects.name(job), execution_id, facts, state)


def _is_stuck(context: CheckContext, holder: _OpenExecution) -> bool:
    """Return whether the holder of a lock that has passed its time does not move."""
    if holder.state.status is Status.PLANNED:
        return True  # the lock is acquired, and the admission follows at once
    steps = holder.state.steps.values()
    delays = [
        context.age(step.next_attempt_at) for step in steps if step.phase is Phase.RETRYING and step.next_attempt_at
    ]
    return any(delay >= GRACE for delay in delays) or bool(_unmoved_codes(context, holder) - {"unclaimed"})


async def _overdue_codes(
    context: CheckContext, candidate: _OpenExecution, locks: dict[str, Lock], reads: _Reads
) -> list[str]:
    state = candidate.state
    age = context.age(candidate.requested_at(context.now))
    if state.is_dependent:  # it waits for other jobs, up to its `dependency_timeout`
        limit = timedelta(seconds=state.request.plan.dependency_timeout or 0.0)
        return ["dependency-unknown"] if age >= limit + GRACE else []
    if (rule := state.request.plan.quorum) is not None and state.is_proposed:
        limit = timedelta(seconds=min(rule.timeout, MAX_DURATION_S))  # of each proposal
        if context.age(candidate.facts[-1].time) >= limit + GRACE:
            return ["undecided"]
        return ["unacknowledged"] if age >= GRACE else []
    if state.status is Status.PLANNED:
        scope = subjects.lock(candidate.job, state.request.plan.shard)
        if scope not in locks:
            locks[scope] = lock.fold(await reads.of(scope))
        return ["undecided"] if age >= GRACE and not locks[scope].has_waiter(candidate.id) else []
    return sorted(_unmoved_codes(context, candidate))


def _unmoved_codes(context: CheckContext, candidate: _OpenExecution) -> set[str]:
    """Return the findings on an admitted execution that does not move."""
    state, codes = candidate.state, set[str]()
    requested_at = candidate.requested_at(context.now)
    if context.age(requested_at) >= GRACE and all(step.phase is Phase.WAITING for step in state.steps.values()):
        codes.add("undispatched")
    timeouts = {step.name: step.timeout for step in state.request.plan.steps}
    for name, step in state.steps.items():
        if step.phase is Phase.DISPATCHED:
            since = candidate.newest(Dispatched, name, step.attempt)
            codes |= {"unclaimed"} if since is not None and context.age(since) >= GRACE else set()
        if step.phase is Phase.STARTED:
            since = candidate.newest(Started, name, step.attempt)
            allowed = timedelta(seconds=timeouts[name]) + GRACE
            codes |= {"overrun"} if since is not None and context.age(since) >= allowed else set()
    return codes
