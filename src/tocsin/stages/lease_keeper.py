"""Lease keeper: takes back what an executor outside holds for too long, and what nobody has started in time.

consumes  timers of leases, and of expiry
folds     the execution
appends   released, on which the DAG advancer dispatches anew; failed, for what expired
publishes a report of failure for an attempt that is past its time limit, or that nobody who took it was heard of again: the
          retrier decides on it as on any other

Implements the visibility timeout of ojs-worker-protocol, the execution timeout of ojs-timeouts, `expires_at` of ojs-core.
"""

from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Final

from .. import subjects
from ..domain import duration, execution, ids
from ..domain.events import (
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
from ..engine.report_authentication import is_believed
from ..engine.stage import Access, Stage, Subscription
from ..engine.state_cache import StateCache
from ..ports import EventLog, StaleRead
from ..subjects import Stream

STALLED: Final = "stalled"
ACCESS: Final = Access(appends=(Released, Failed, Report), reads=(Stream.LOG,))


def lease_keeper(log: EventLog, executions: StateCache[Execution], key: bytes) -> Stage:
    """A timer is only an input: what it is about may have ended, or changed hands, and then nothing is decided."""
    it = LeaseKeeper(log, executions, key)
    timers = (subjects.filter_for("timer.lease"), subjects.filter_for("timer.expiry"))
    subscription = Subscription("lease-keeper", Stream.LOG, timers, it.on_timer, prepare=it.before_timers)
    return Stage("lease_keeper", (subscription,), access=ACCESS)


class LeaseKeeper:
    """The lease keeper's handler."""

    def __init__(self, log: EventLog, executions: StateCache[Execution], key: bytes) -> None:
        self._log = log
        self._executions = executions
        self._key = key

    async def before_timers(self, several: Sequence[Recorded[Message]]) -> None:
        """Read at once what is not remembered: most that were handed out were answered long before."""
        about = (one.message for one in several)
        timers = (timer for timer in about if isinstance(timer, LeaseTimer))
        await self._executions.recall({subjects.execution(timer.job, timer.execution_id) for timer in timers})

    async def on_timer(self, recorded: Recorded[Message]) -> None:
        """A time is over."""
        match recorded.message:
            case ExpiryTimer() as expiry:
                scope = subjects.execution(expiry.job, expiry.execution_id)
                await self._executions.decide(scope, execution.expire)
            case LeaseTimer() as lease:
                scope = subjects.execution(lease.job, lease.execution_id)
                state, _ = await self._executions.load(scope)
                if state.is_over:
                    return  # for ever, so that it does not matter how old this is
                self._executions.forget(scope)  # a claim is an executor's fact: nobody here has learned of it
                if not await self._is_dealt_with(lease, recorded, scope):
                    await self._executions.decide(scope, partial(execution.release, timer=lease, reason="lease_over"))

    async def _is_dealt_with(self, lease: LeaseTimer, recorded: Recorded[Message], scope: str) -> bool:
        """Report the attempt as failed if its time limit is over, or it was lost too often; whether it needs no release.

        Nor does one that is answered for: its executor was told so, however late whoever decides on the answer is.
        """
        facts = await self._log.load(scope)
        if not facts:
            raise StaleRead(f"{scope}: a replica that lags was read")
        state = execution.fold(facts)
        if not execution.release(state, lease, reason="lease_over"):
            return False
        if await self._is_answered(lease, state):
            return True
        claimed = max(f.time for f in facts if isinstance(f.message, Started) and f.message.step == lease.step)
        limit = next(step.timeout for step in state.request.plan.steps if step.name == lease.step)
        if lease.ends_attempt or recorded.time >= claimed + timedelta(seconds=limit):
            error = Failure(type=TIMED_OUT, message=f"its executor reported nothing within {duration.short(limit)}")
        elif execution.has_reached_claim_limit(state, lease):
            lost = f"{execution.MAX_CLAIMS} executors took it, and none of them was heard of again"
            error = Failure(type=STALLED, message=lost)
        else:
            return False
        report = Report(
            job=lease.job,
            execution_id=lease.execution_id,
            outcome="failed",
            step=lease.step,
            attempt=lease.attempt,
            delivery=lease.delivery,
            token=ids.report_token(self._key, lease.execution_id, lease.step, lease.attempt),
            error=error,
            worker="lease-keeper",
        )
        subject = subjects.subject_of(report)
        await self._log.publish(subject, report, message_id=f"{subject}.{lease.task}")
        return True

    async def _is_answered(self, lease: LeaseTimer, state: Execution) -> bool:
        """Whether a report that decides on the attempt is stored (`execution.succeed` and `execution.fail`)."""
        about = subjects.reports_on(lease.job, lease.execution_id, lease.step, lease.attempt)
        stored = await self._log.load(about)
        if await self._log.tail(about) != (stored[-1].sequence if stored else 0):
            raise StaleRead(f"{about}: a replica that lags was read")
        claim = state.steps[lease.step].claim
        reports = (one.message for one in stored if isinstance(one.message, Report))
        return any(
            is_believed(report, self._key)
            and (report.outcome == "completed" or (report.delivery == lease.delivery and report.claim in {None, claim}))
            for report in reports
        )
