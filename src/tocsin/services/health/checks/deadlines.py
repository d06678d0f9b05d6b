"""Check for instants, executions and locks whose time is over."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from heapq import nsmallest
from typing import Final, TypeGuard

from .... import subjects
from ....domain import lock
from ....domain.duration import MAX_DURATION_S
from ....domain.events import Dispatched, Due, Message, Recorded, Requested, Started, unfold
from ....domain.execution import Execution, Phase, Status
from ....domain.lock import Lock
from ....engine.fold import EVENTS, Fold
from ..findings import CheckContext, Finding, Level, OverdueKind, ok

GRACE: Final = timedelta(seconds=60)
"""Delay that is normal under load."""
MAX_EXECUTIONS: Final = 500
"""Open executions that are examined, the oldest first."""
PLANNER: Final = "planner"

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


async def occurrences(context: CheckContext) -> list[Finding]:
    """Report jobs whose newest due instant has no execution (`due-unplanned`)."""
    fold, unplanned = await context.fold(), list[str]()
    taken = fold.position(PLANNER, EVENTS)
    for tail in fold.ledgers.values():
        due = tail.due
        if due is None or not isinstance(due.message, Due) or taken.has(due.sequence):
            continue
        if context.age(due.time) >= GRACE:
            unplanned.append(f"{due.message.job} at {due.message.scheduled_time.isoformat()}")
    return OCCURRENCES.report(unplanned)


async def executions(context: CheckContext) -> list[Finding]:
    """Report open executions that do not move (`undecided`, `dependency-unknown`, `unacknowledged`, `undispatched`, `unclaimed`, `overrun`, `worker-lost`)."""
    overdue: dict[str, list[str]] = {kind.code: [] for kind in EXECUTIONS}
    fold = await context.fold()
    # An execution id begins with its time, so the smallest are the oldest.
    opened = (scope for scope, state in fold.states.items() if _is_open(state))
    for scope in nsmallest(MAX_EXECUTIONS, opened, key=lambda scope: scope.split(".")[2]):
        candidate = _OpenExecution(fold.states[scope], fold.events[scope])
        for code in _overdue_codes(context, candidate, fold):
            overdue[code].append(candidate.name)
        if any(len(deaths) > 1 for deaths in candidate.state.deaths.values()):
            overdue["worker-lost"].append(candidate.name)
    findings = [finding for kind in EXECUTIONS for finding in kind.report(overdue[kind.code])]
    return findings or [ok("overrun", "every open execution moves")]


async def locks(context: CheckContext) -> list[Finding]:
    """Report locks whose holder has passed their time and does not move (`lock-overdue`).

    A holder may live long: it waits for a worker, for a delay, or runs one of many attempts. So its present phase counts.
    """
    fold, overdue = await context.fold(), list[str]()
    for scope, held in fold.states.items():
        if not isinstance(held, Lock) or held.holder is None:
            continue
        holder_scope = f"execution.{scope.split('.')[1]}.{held.holder}.>"
        if not _is_open(state := fold.states.get(holder_scope)):
            continue
        holder = _OpenExecution(state, fold.events[holder_scope])
        acquired_at = next((r.time for r in holder.facts if r.sequence > held.fence), holder.facts[0].time)
        is_late = context.age(acquired_at) > timedelta(seconds=lock.ttl(holder.state.request)) + GRACE
        if is_late and _is_stuck(context, holder):
            overdue.append(f"{holder.state.request.job} by {held.holder}")
    return LOCKS.report(overdue)


def _is_open(state: object) -> TypeGuard[Execution]:
    return isinstance(state, Execution) and state.requested is not None and not state.is_over


@dataclass(frozen=True, slots=True)
class _OpenExecution:
    state: Execution
    facts: list[Recorded[Message]]

    @property
    def name(self) -> str:
        return f"{self.state.request.job} {self.state.request.execution_id}"

    def requested_at(self, default: datetime) -> datetime:
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


def _is_stuck(context: CheckContext, holder: _OpenExecution) -> bool:
    """Return whether the holder of a lock that has passed its time does not move."""
    if holder.state.status is Status.PLANNED:
        return True  # the lock is acquired, and the admission follows at once
    steps = holder.state.steps.values()
    delays = [
        context.age(step.next_attempt_at) for step in steps if step.phase is Phase.RETRYING and step.next_attempt_at
    ]
    return any(delay >= GRACE for delay in delays) or bool(_unmoved_codes(context, holder) - {"unclaimed"})


def _overdue_codes(context: CheckContext, candidate: _OpenExecution, fold: Fold) -> list[str]:
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
        held = fold.states.get(subjects.lock(state.request.job, state.request.plan.shard))
        is_queued = isinstance(held, Lock) and held.has_waiter(state.request.execution_id)
        return ["undecided"] if age >= GRACE and not is_queued else []
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
