"""Lease keeper: ends expired visibility leases, and expires executions that start too late.

An expired lease is released for the DAG advancer to dispatch again. If the attempt exceeded its time limit, or too many
executors abandoned it, the lease keeper publishes a report of failure, on which the retrier decides as on any other.

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
from ..engine.report_authentication import is_authentic
from ..engine.stage import Access, Stage, Subscription
from ..engine.state_cache import StateCache
from ..ports import EventLog, StaleRead
from ..subjects import Stream

STALLED: Final = "stalled"
"""The error type of an attempt that too many executors abandoned."""


class LeaseKeeper:
    """Decides on timers.

    A timer is only an input: if its lease ended or moved on, nothing is decided.
    """

    def __init__(self, log: EventLog, executions: StateCache[Execution], key: bytes) -> None:
        self._log = log
        self._executions = executions
        self._key = key

    async def before_timers(self, batch: Sequence[Recorded[Message]]) -> None:
        """Read uncached executions in one request.

        Most leases ended long before their timers fire.
        """
        timers = (recorded.message for recorded in batch)
        leases = (timer for timer in timers if isinstance(timer, LeaseTimer))
        await self._executions.recall({subjects.execution(lease.job, lease.execution_id) for lease in leases})

    async def on_timer(self, recorded: Recorded[Message]) -> None:
        """Release a lease, or expire an execution, whose timer fired."""
        match recorded.message:
            case ExpiryTimer() as expiry:
                scope = subjects.execution(expiry.job, expiry.execution_id)
                await self._executions.decide(scope, execution.expire)
            case LeaseTimer() as lease:
                scope = subjects.execution(lease.job, lease.execution_id)
                state, _ = await self._executions.load(scope)
                if state.is_over:
                    return  # an end is final, so that a cached state suffices
                self._executions.forget(scope)  # an executor stored its claim; the cache may not hold it
                if not await self._is_settled(lease, recorded, scope):
                    await self._executions.decide(scope, partial(execution.release, timer=lease, reason="lease_over"))

    async def _is_settled(self, lease: LeaseTimer, recorded: Recorded[Message], scope: str) -> bool:
        """Return whether the lease needs no release.

        If the attempt used up its time or its claims, report it as failed. An attempt with a stored report is not released,
        however late its stage decides on it.
        """
        events = await self._log.load(scope)
        if not events:
            raise StaleRead.of(scope)
        state = execution.fold(events)
        if not execution.release(state, lease, reason="lease_over"):
            return False
        if await self._has_report(lease, state):
            return True
        claimed = max(e.time for e in events if isinstance(e.message, Started) and e.message.step == lease.step)
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

    async def _has_report(self, lease: LeaseTimer, state: Execution) -> bool:
        """Return whether a report on the attempt is stored.

        `execution.succeed` and `execution.fail` decide on that report.
        """
        subject = subjects.reports_on(lease.job, lease.execution_id, lease.step, lease.attempt)
        stored = await self._log.load(subject)
        if await self._log.tail(subject) != (stored[-1].sequence if stored else 0):
            raise StaleRead.of(subject)
        claim = state.steps[lease.step].claim
        reports = (recorded.message for recorded in stored if isinstance(recorded.message, Report))
        return any(
            is_authentic(report, self._key)
            and (report.outcome == "completed" or (report.delivery == lease.delivery and report.claim in {None, claim}))
            for report in reports
        )


LEASE_KEEPER: Final = Stage(
    name="lease_keeper",
    purpose="ends leases that ran out",
    consumes="timers of leases and of expiry",
    decides="`released` (an HTTP worker fell silent), `failed` (not started in time)",
    access=Access(appends=(Released, Failed, Report), reads=(Stream.LOG,)),
    start=lambda context: LeaseKeeper(context.log, context.executions, context.report_key),
    subscriptions=(
        Subscription(
            "lease-keeper",
            Stream.LOG,
            (subjects.filter_for("timer.lease"), subjects.filter_for("timer.expiry")),
            LeaseKeeper.on_timer,
            prepare=LeaseKeeper.before_timers,
        ),
    ),
)
