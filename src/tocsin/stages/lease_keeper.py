"""Lease keeper: takes back what an executor outside holds for too long, and what nobody has started in time.

consumes  timers of leases, and of expiry
folds     the execution
appends   released, on which the DAG advancer dispatches anew; failed, for what expired
publishes a report of failure for an attempt that is past its time limit, or that nobody who took it was heard of again: the
          retrier decides on it as on any other

Implements the visibility timeout of ojs-worker-protocol, the execution timeout of ojs-timeouts, `expires_at` of ojs-core.
"""

from datetime import timedelta
from functools import partial
from typing import Final

from .. import subjects
from ..domain import duration, execution, ids
from ..domain.events import ExpiryTimer, Failed, Failure, LeaseTimer, Message, Recorded, Released, Report, Started
from ..domain.execution import Execution
from ..domain.recovery import TIMED_OUT
from ..ports import EventLog, SequenceConflict
from ..stage import Access, Stage, Subscription
from ..subjects import Stream
from .entities import Entities

STALLED: Final = "stalled"
ACCESS: Final = Access(appends=(Released, Failed, Report), reads=(Stream.LOG,))


def lease_keeper(log: EventLog, executions: Entities[Execution], key: bytes) -> Stage:
    """A timer is only an input: what it is about may have ended, or changed hands, and then nothing is decided."""
    it = LeaseKeeper(log, executions, key)
    timers = (subjects.every("timer.lease"), subjects.every("timer.expiry"))
    return Stage("lease_keeper", (Subscription("lease-keeper", Stream.LOG, timers, it.on_timer),), access=ACCESS)


class LeaseKeeper:
    """The lease keeper's handler."""

    def __init__(self, log: EventLog, executions: Entities[Execution], key: bytes) -> None:
        self._log = log
        self._executions = executions
        self._key = key

    async def on_timer(self, recorded: Recorded[Message]) -> None:
        """A time is over."""
        match recorded.message:
            case ExpiryTimer() as expiry:
                scope = subjects.execution(expiry.job, expiry.execution_id)
                await self._executions.decide(scope, execution.expire)
            case LeaseTimer() as lease:
                scope = subjects.execution(lease.job, lease.execution_id)
                self._executions.forget(scope)  # a claim is an executor's fact: nobody here has learned of it
                if not await self._has_failed(lease, recorded, scope):
                    await self._executions.decide(scope, partial(execution.release, timer=lease, reason="lease_over"))

    async def _has_failed(self, lease: LeaseTimer, recorded: Recorded[Message], scope: str) -> bool:
        """Report the attempt as failed if its time limit is over, or it was lost too often; whether it is."""
        facts = await self._log.load(scope)
        if not facts:
            raise SequenceConflict(f"{scope}: a replica that lags was read")
        state = execution.fold(facts)
        if not execution.release(state, lease, reason="lease_over"):
            return False
        claimed = max(f.time for f in facts if isinstance(f.message, Started) and f.message.step == lease.step)
        limit = next(step.timeout for step in state.asked.plan.steps if step.name == lease.step)
        if lease.ends_attempt or recorded.time >= claimed + timedelta(seconds=limit):
            error = Failure(type=TIMED_OUT, message=f"its executor reported nothing within {duration.short(limit)}")
        elif execution.is_worn_out(state, lease):
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
