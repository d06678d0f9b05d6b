"""Recoverer: ends attempts that take too long, and resumes executions that were lost (cloacina, Recovery).

It decides at deadlines of executions. No message is lost between stages. An execution is lost if the stage that must act has taken the event on which it acts, and nothing
followed: that is a defect of a program, of this version or an earlier one.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Final

from .. import subjects
from ..domain import execution, recovery
from ..domain.events import Failure, Lost, Plan, Recovered, Report
from ..domain.execution import Execution, Phase, Status
from ..domain.lock import Lock
from ..domain.recovery import JobStatus, Overdue, Policy, Stalled
from ..engine.fold import LEDGER
from ..engine.kinds import EXECUTION, FACTS, TAKEN
from ..engine.locks import lock_state
from ..engine.report_lists import report_of_stage
from ..engine.stage import Access, Deadline, DeadlineRule, Stage
from ..engine.step import DONE, Send, States, Step, decided, done
from ..settings import Settings

EXPIRY: Final = "execution"
STALLED: Final = "stalled"
ATTEMPT: Final = "attempt."
"""The beginning of the key of an attempt's deadline; its step and its claim follow."""


class Recoverer:
    """Ends attempts and executions that take too long, and resumes executions that were lost."""

    def __init__(self, key: bytes, policy: Policy, outside: frozenset[str] = frozenset()) -> None:
        """`key`: the key of the installation. `outside`: the queues of executors outside."""
        self._key = key
        self._policy = policy
        self._outside = outside

    @classmethod
    def of(cls, key: bytes, settings: Settings) -> "Recoverer":
        """Return the decider by the settings."""
        given = settings.recovery
        policy = Policy(
            threshold=timedelta(seconds=given.threshold),
            max_attempts=given.max_attempts,
            max_age=timedelta(seconds=given.max_age),
            grace=timedelta(seconds=given.grace),
        )
        return cls(key, policy, frozenset(settings.bridged_queues))

    def deadlines_of(self, state: Execution) -> Sequence[Deadline]:
        """Return when an open execution, or its attempt, has taken too long."""
        if state.status is Status.PLANNED and state.planned_at is not None:
            # The dependency keeper and the agent keeper bound the waits before the lock.
            return () if state.is_held else (Deadline(state.planned_at + self._policy.threshold, STALLED),)
        if state.requested is None or state.decided is None:
            return ()
        return self._of_steps(state, state.requested.plan, state.decided.time)

    def _of_steps(self, state: Execution, plan: Plan, admitted_at: datetime) -> list[Deadline]:
        expires = recovery.expiry_of(plan, admitted_at)
        deadlines = [] if expires is None else [Deadline(expires, EXPIRY)]
        phases = set[Phase]()
        for name, step in state.steps.items():
            phases.add(step.phase)
            if step.phase is Phase.STARTED and step.claimed_at is not None:
                limit = recovery.limit_of(execution.planned_step(state, name), self._policy)
                deadlines.append(Deadline(step.claimed_at + limit, f"{ATTEMPT}{name}.{step.claim}"))
        if Phase.LOST in phases or (Phase.WAITING in phases and execution.ready_steps(state)):
            since = admitted_at if state.recovered_at is None else max(admitted_at, state.recovered_at)
            deadlines.append(Deadline(since + self._policy.threshold, STALLED))
        return deadlines

    def on_deadline(self, scope: str, deadline: Deadline, states: States, now: datetime) -> Step:
        """Decide on an execution or attempt that has taken too long."""
        ref = EXECUTION(scope)
        state = states(ref)
        if deadline.key == STALLED and state.status is Status.PLANNED and _waits_for_its_lock(state, states):
            return DONE
        findings = recovery.examine(states(FACTS(scope)), now=now, policy=self._policy, outside=self._outside)
        if findings is None:
            return DONE
        if error := recovery.overrun(findings):
            return done(self._report(state, error))
        if deadline.key == STALLED:
            losses: list[Lost] = [stalled.lost for stalled in findings.stalled if _is_lost(stalled, states)]
            job = _job(findings.state, states)
            decision = recovery.recover(findings, losses, now=now, policy=self._policy, job=job)
            if isinstance(decision, Failure):
                return done(self._report(state, decision))
            return decided(ref, [] if decision is None else [decision])
        overdue = [one for one in findings.overdue if deadline.key == _key_of(one, state)]
        return done(*(self._report(state, one.error, one) for one in overdue))

    def _report(self, state: Execution, error: Failure, overdue: Overdue | None = None) -> Send:
        """Return the report that ends an attempt, or the execution if no attempt is given."""
        job, id_ = state.request.job, state.request.execution_id
        report = partial(report_of_stage, self._key, subjects.RECOVERER, error, job=job, execution_id=id_)
        if overdue is None:
            return report(step=state.request.plan.steps[0].name)
        name, claim = overdue.step, state.steps[overdue.step].claim
        return report(step=name, attempt=overdue.attempt, delivery=overdue.delivery, claim=claim)


def _key_of(overdue: Overdue, state: Execution) -> str:
    return f"{ATTEMPT}{overdue.step}.{state.steps[overdue.step].claim}"


def _waits_for_its_lock(state: Execution, states: States) -> bool:
    """Return whether another execution still holds the lock that an execution awaits.

    The lock is also held if the lock keeper has not taken the holder's end.
    """
    request = state.request
    lock: Lock = states(lock_state(request.job, request.plan.shard))
    if lock.holder is None or not lock.has_waiter(request.execution_id):
        return False
    holder = EXECUTION(subjects.execution(request.job, lock.holder))
    return not states(holder).is_over or not states(TAKEN((_ACTS["planned"], states.at(holder))))


_ACTS: Final[Mapping[str, str]] = {"planned": "lock_keeper", "admitted": "dag_advancer"}
"""The stage that must act, by the event after which nothing followed. A retry has a deadline, which waits for its stage."""


def _is_lost(stalled: Stalled, states: States) -> bool:
    stage = _ACTS.get(stalled.lost.what)
    return stage is not None and states(TAKEN((stage, stalled.sequence)))


def _job(state: Execution, states: States) -> JobStatus:
    if not state.request.plan.definition:
        return "active"  # enqueued without registration: a registered job of the same name is another job
    ledger = states(LEDGER(subjects.ledger(state.request.job)))
    if ledger.definition is None:
        return "gone"
    return "paused" if ledger.is_paused or not ledger.definition.enabled else "active"


RECOVERER: Final = Stage(
    name="recoverer",
    purpose="resumes lost executions, ends overdue attempts",
    consumes="open executions and their deadlines",
    decides="`recovered`; reports of silence, of time limits and of executions that are lost for good",
    access=Access(appends=(Recovered, Report)),
    start=lambda context: Recoverer.of(context.report_key, context.settings),
    deadlines=(DeadlineRule(EXECUTION, Recoverer.deadlines_of, Recoverer.on_deadline),),
)
