"""Lease keeper: ends expired leases, claims of lost agents, and late executions.

What an expired lease, or a lost agent, held is released for the DAG advancer to dispatch again. If the attempt exceeded its time limit, or its step
lost too many workers, the lease keeper publishes a report of failure, on which the retrier decides as on any other.

Implements the visibility timeout of ojs-worker-protocol, the execution timeout of ojs-timeouts, `expires_at` of ojs-core.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Final

from .. import subjects
from ..domain import duration, execution, ids
from ..domain.agent import agent_key
from ..domain.events import (
    Death,
    ExpiryTimer,
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
from ..engine.kinds import EXECUTION, FACTS, LOG_TIME, MATCHING, TAIL, execution_state
from ..engine.report_authentication import authentic_report, reports_on
from ..engine.stage import Access, Deadline, DeadlineRule, Stage, Subscription
from ..engine.step import DONE, Send, States, Step, decided, done, wait
from ..ports import StaleRead
from ..subjects import DecodeError, Stream

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

    def expiries(self, state: Execution) -> Iterator[Deadline]:
        """Return when an execution expires that has not started."""
        if state.requested is not None and not state.is_over and (at := state.request.plan.expires_at) is not None:
            yield Deadline(at)

    def on_expiry(self, scope: str, deadline: Deadline, states: States, now: datetime) -> Step:  # noqa: ARG002 - the state decides
        """Expire an execution."""
        ref = EXECUTION(scope)
        return decided(ref, execution.expire(states(ref)))

    def on_timer(self, recorded: Recorded[Message], states: States, now: datetime) -> Step:  # noqa: ARG002 - the log's time counts
        """Release a lease, or expire an execution, whose timer fired."""
        match recorded.message:
            case ExpiryTimer() as expiry:
                ref = execution_state(expiry.job, expiry.execution_id)
                return decided(ref, execution.expire(states(ref)))
            case LeaseTimer() as lease:
                return self._on_lease(lease, recorded.time, states)
            case _:
                return DONE

    def _on_lease(self, lease: LeaseTimer, time: datetime, states: States) -> Step:
        """Release a lease.

        If the attempt used up its time, or its step the workers that it may lose, report it as failed. An attempt with a stored report is not released,
        however late its stage decides on it.
        """
        ref = execution_state(lease.job, lease.execution_id)
        state = states(ref)
        if state.is_over:
            return DONE  # an end is final, so that a cached state suffices
        released = execution.release(state, lease, reason=lease.reason)
        if not released:
            is_early = execution.may_follow(state, lease) and states(LOG_TIME(None)) - time < PATIENCE
            return wait(_RETRY_S, rests_on=(ref,)) if is_early else done(rests_on=(ref,))
        events = states(FACTS(ref.key))
        if states.at(ref) != (events[-1].sequence if events else 0):
            raise StaleRead.of(ref.key)
        if self._has_report(lease, state, events, states):
            return done(rests_on=(ref,))
        if lease.reason == "handed_back":
            return decided(ref, released)  # no executor failed
        claims = ((e.message, e.time) for e in events if isinstance(e.message, Started))
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
            worker="lease-keeper",
        )
        subject = subjects.subject_of(report)
        message_id = ids.report_id(report.proof or "", f"{subject}.{lease.task}")
        return done(Send(subject, report, message_id), rests_on=(ref,))

    def _has_report(
        self, lease: LeaseTimer, state: Execution, events: Sequence[Recorded[Message]], states: States
    ) -> bool:
        """Return whether a report on the attempt is stored.

        `execution.succeed` and `execution.fail` decide on that report.
        """
        current = state.steps[lease.step].claim
        claims = execution.claims_on(events, lease.step, lease.attempt)
        filters = reports_on(state.request, lease.step, lease.attempt, self._key, claims={*claims, current})
        states.expect(lambda: (*map(MATCHING, filters), *map(TAIL, filters)))
        for subject in filters:
            try:
                stored = states(MATCHING(subject))
            except DecodeError:
                continue  # the worker of a claim may store anything under its subjects
            if states(TAIL(subject)) != (stored[-1].sequence if stored else 0):
                raise StaleRead.of(subject)
            reports = (authentic_report(recorded, self._key) for recorded in stored)
            if any(
                report.outcome == "completed" or (report.claim, report.delivery) == (current, lease.delivery)
                for report in reports
                if report is not None
            ):
                return True
        return False


def _death(claim: Started, lease: LeaseTimer, at: datetime) -> Death:
    """Return the loss of the worker that had a claim until its lease ended."""
    worker = claim.worker or claim.holder or "a worker without a name"
    agent = worker if claim.agent is None else agent_key(worker, claim.agent)
    return Death(agent=agent, at=at, last_heartbeat=lease.last_heartbeat)


LEASE_KEEPER: Final = Stage(
    name="lease_keeper",
    purpose="ends leases that ran out",
    consumes="timers of leases and of expiry",
    decides="`released` (an executor fell silent, or stopped), `failed` (not started in time)",
    access=Access(appends=(Released, Failed, Report), reads=(Stream.LOG, Stream.REPORTS)),
    start=lambda context: LeaseKeeper(context.report_key),
    subscriptions=(
        Subscription(
            "lease-keeper",
            Stream.TIMERS,
            (subjects.filter_for("timer.lease"), subjects.filter_for("timer.expiry")),
            decide=LeaseKeeper.on_timer,
        ),
    ),
    deadlines=(DeadlineRule(EXECUTION, LeaseKeeper.expiries, LeaseKeeper.on_expiry),),
)
