"""Lease keeper: ends expired leases, claims of lost agents, and late executions.

What an expired lease, or a lost agent, held is released for the DAG advancer to dispatch again. If the attempt exceeded its time limit, or its step
lost too many workers, the lease keeper publishes a report of failure, on which the retrier decides as on any other.

Implements the visibility timeout of ojs-worker-protocol, the execution timeout of ojs-timeouts, `expires_at` of ojs-core.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from .. import subjects
from ..domain import duration, execution, ids
from ..domain.agent import agent_key
from ..domain.events import (
    Death,
    Failed,
    Failure,
    LeaseTimer,
    Message,
    Recorded,
    Released,
    Report,
    Started,
)
from ..domain.execution import Execution
from ..domain.recovery import TIMED_OUT
from ..engine.kinds import EXECUTION, FACTS, LOG_TIME, execution_state
from ..engine.stage import Access, Deadline, DeadlineRule, Stage, Subscription
from ..engine.step import DONE, Send, States, Step, decided, done, wait
from ..subjects import Stream

PATIENCE: Final = timedelta(seconds=30)
"""How long a timer waits for its claim, which is stored after it: a short lease may be over before."""
_RETRY_S: Final = 1.0
"""Delay after which such a timer is decided again."""


class LeaseKeeper:
    """Decides on timers.

    A timer is only an input: if its lease ended or moved on, nothing is decided.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key

    def expiries(self, state: Execution) -> Sequence[Deadline]:
        """Return when an execution expires that has not started."""
        at = None if state.requested is None or state.is_over else state.requested.plan.expires_at
        return () if at is None else (Deadline(at),)

    def on_expiry(self, scope: str, deadline: Deadline, states: States, now: datetime) -> Step:  # noqa: ARG002 - the state decides
        """Expire an execution."""
        ref = EXECUTION(scope)
        return decided(ref, execution.expire(states(ref)))

    def on_timer(self, recorded: Recorded[Message], states: States, now: datetime) -> Step:  # noqa: ARG002 - the log's time counts
        """Release a lease that ran out.

        If the attempt used up its time, or its step the workers that it may lose, report it as failed. A leader takes all reports
        before it takes such a timer.
        """
        lease, time = recorded.message, recorded.time
        if not isinstance(lease, LeaseTimer):
            return DONE
        ref = execution_state(lease.job, lease.execution_id)
        state = states(ref)
        released = execution.release(state, lease, reason=lease.reason)
        if not released:
            is_early = execution.may_follow(state, lease) and states(LOG_TIME(None)) - time < PATIENCE
            return wait(_RETRY_S) if is_early else DONE
        if lease.reason == "handed_back":
            return decided(ref, released)  # no executor failed
        claims = ((e.message, e.time) for e in states(FACTS(ref.key)) if isinstance(e.message, Started))
        [*_, (started, claimed)] = ((message, at) for message, at in claims if message.step == lease.step)
        limit = next(step.timeout for step in state.request.plan.steps if step.name == lease.step)
        deaths = () if lease.ends_attempt else (*state.deaths.get(lease.step, ()), _death(started, lease, time))
        if len(deaths) >= state.request.plan.max_deaths:
            message = f"the workers that had it were lost: {'; '.join(map(str, deaths))}"
            error = Failure(type=execution.WORKER_LOST, message=message, retryable=False, deaths=deaths)
        elif lease.ends_attempt or time >= claimed + timedelta(seconds=limit):
            message = f"its executor reported nothing within {duration.short(limit)}"
            error = Failure(type=TIMED_OUT, message=message, deaths=deaths)
        else:
            return decided(ref, execution.release(state, lease, reason=lease.reason, deaths=deaths))
        claim = state.steps[lease.step].claim
        report = Report(
            job=lease.job,
            execution_id=lease.execution_id,
            outcome="failed",
            step=lease.step,
            attempt=lease.attempt,
            delivery=lease.delivery,
            claim=claim,
            proof=ids.claim_proof(self._key, lease.execution_id, lease.step, lease.attempt, claim),
            token=ids.report_token(self._key, lease.execution_id, lease.step, lease.attempt),
            error=error,
            worker=subjects.LEASE_KEEPER,
        )
        subject = subjects.subject_of(report)
        message_id = ids.report_id(report.proof or "", f"{subject}.{lease.task}")
        return done(Send(subject, report, message_id))


def _death(claim: Started, lease: LeaseTimer, at: datetime) -> Death:
    """Return the loss of the worker that had a claim until its lease ended."""
    worker = claim.worker or claim.holder or "a worker without a name"
    agent = worker if claim.agent is None else agent_key(worker, claim.agent)
    return Death(agent=agent, at=at, last_heartbeat=lease.last_heartbeat)


LEASE_KEEPER: Final = Stage(
    name="lease_keeper",
    purpose="ends leases that ran out",
    consumes="timers of leases, times of expiry",
    decides="`released` (an executor fell silent, or stopped), `failed` (not started in time)",
    access=Access(appends=(Released, Failed, Report)),
    start=lambda context: LeaseKeeper(context.report_key),
    subscriptions=(
        Subscription(
            subjects.LEASE_KEEPER,
            Stream.TIMERS,
            (subjects.filter_for("timer.lease"),),
            decide=LeaseKeeper.on_timer,
        ),
    ),
    deadlines=(DeadlineRule(EXECUTION, LeaseKeeper.expiries, LeaseKeeper.on_expiry),),
)
