"""DAG advancer: dispatches ready steps, and ends an execution after its last step.

It stores one decision for each message, so that a redelivery finishes what a crash interrupted. Workers take the
`dispatched` events from the log itself. A request to cancel an execution that does not exist becomes a dead letter. When
a replay completes, the dead letter that it replayed is resolved.
"""

from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Final

from ... import subjects
from ...domain import execution
from ...domain.events import (
    Admitted,
    Advanced,
    Cancelled,
    CancelRequest,
    Completed,
    Dispatched,
    ExpiryTimer,
    Failed,
    Message,
    PoisonMessage,
    Recorded,
    Recovered,
    Released,
    Report,
    Resolved,
    RetryScheduled,
    RetryTimer,
)
from ...domain.execution import Execution, Status
from ...engine.report_authentication import is_authentic, learn_claim
from ...engine.rerun import resolve_replayed
from ...engine.stage import Access, NotReady, Stage, Subscription
from ...engine.state_cache import StateCache
from ...ports import Clock, EventLog, SequenceConflict
from ...subjects import Stream
from .retry_timer import RetryTimers

CANCELS: Final = "dag-advancer-cancels"
RETRIES: Final = "dag-advancer-retries"
PATIENCE: Final = timedelta(seconds=30)
"""How long a request to cancel waits for its execution: a client knows the id before the planner plans it."""


class DagAdvancer:
    """Advances executions step by step."""

    def __init__(self, log: EventLog, executions: StateCache[Execution], clock: Clock, key: bytes) -> None:
        self._log = log
        self._executions = executions
        self._key = key
        self._retry_timers = RetryTimers(clock, self._retry)

    async def run_timers(self) -> None:
        """Dispatch retries when they are due."""
        await self._retry_timers.run()

    async def on_admitted(self, recorded: Recorded[Message]) -> None:
        """Dispatch the first steps of an execution, or the lost steps of a recovered execution."""
        match recorded.message:
            case Admitted() as admitted:
                scope = subjects.scope_of(admitted)
                self._executions.learn(scope, recorded, after=0)
                await self._executions.decide(scope, partial(execution.dispatch, key=self._key))
                if admitted.plan.start_at is not None or admitted.plan.expires_at is not None:
                    await self._schedule(scope)
            case Recovered() | Released() as lost:
                scope = subjects.scope_of(lost)
                self._executions.forget(scope)
                await self._executions.decide(
                    scope, partial(execution.dispatch_missing, at=recorded.time, key=self._key)
                )

    async def before_success(self, batch: Sequence[Recorded[Message]]) -> None:
        """Read uncached executions in one request, and learn all claims in order.

        Each claim names the claim before it, also that of a step that runs in parallel.
        """
        messages = (recorded.message for recorded in batch)
        reports = [message for message in messages if isinstance(message, Report) and is_authentic(message, self._key)]
        for report in sorted(reports, key=lambda report: report.claim or 0):
            learn_claim(self._executions, report)
        await self._executions.recall({subjects.execution(report.job, report.execution_id) for report in reports})

    async def on_success(self, recorded: Recorded[Message]) -> None:
        """Advance an execution after a step completed."""
        report = recorded.message
        if isinstance(report, Report) and is_authentic(report, self._key):
            learn_claim(self._executions, report)
            scope = subjects.execution(report.job, report.execution_id)
            await self._executions.decide(scope, partial(execution.succeed, report=report, key=self._key))
            state, _ = await self._executions.load(scope)
            if state.status is Status.COMPLETED and state.request.replay_of is not None:
                await resolve_replayed(self._log, report.job, state.request.replay_of, report.execution_id)

    async def on_retry(self, recorded: Recorded[Message]) -> None:
        """Remember when a retry is due.

        The log's own timer may fire up to a quarter of a second later.
        """
        fact = recorded.message
        if isinstance(fact, RetryScheduled):
            timer = RetryTimer(job=fact.job, execution_id=fact.execution_id, step=fact.step, attempt=fact.attempt + 1)
            self._retry_timers.at(fact.next_attempt_at, timer)

    async def on_timer(self, recorded: Recorded[Message]) -> None:
        """Dispatch a retry when the log's timer fires."""
        if isinstance(recorded.message, RetryTimer):
            await self._retry(recorded.message)

    async def _retry(self, timer: RetryTimer) -> None:
        scope = subjects.execution(timer.job, timer.execution_id)
        await self._executions.decide(scope, partial(execution.dispatch_retry, timer=timer, key=self._key))

    async def _schedule(self, scope: str) -> None:
        """Store timers in the log for the start and the expiry of an execution."""
        state, sequence = await self._executions.load(scope)
        for retry, until in execution.retry_timers(state):
            await self._log.delay(retry, until=until, scope=scope, expect=sequence)
            self._retry_timers.at(until, retry)
        if not state.is_over and (expires_at := state.request.plan.expires_at) is not None:
            expiry = ExpiryTimer(job=state.request.job, execution_id=state.request.execution_id)
            await self._log.delay(expiry, until=expires_at, scope=scope, expect=sequence)

    async def on_cancel(self, recorded: Recorded[Message]) -> None:
        """Cancel an execution."""
        request = recorded.message
        if not isinstance(request, CancelRequest):
            return
        job, execution_id = subjects.parse_cancel(recorded.subject)
        if not job or subjects.ANY in {job, execution_id}:
            await self._refuse(recorded, job, "it names no execution: cancel.<job>.<execution>")
            return
        scope = subjects.execution(job, execution_id)
        await self._executions.decide(scope, partial(execution.cancel, reason=request.reason, by=request.by))
        if (await self._executions.load(scope))[0].status is Status.UNKNOWN:
            self._executions.forget(scope)
            if await self._log.now() - recorded.time < PATIENCE:
                raise NotReady(f"{scope} is not planned yet. The request to cancel waits for it.")
            await self._refuse(recorded, job, f"no execution of {job!r} has the id {execution_id!r}")

    async def _refuse(self, request: Recorded[Message], job: str, reason: str) -> None:
        body, partition = request.message.encode(), subjects.partition(request.subject)
        fact = PoisonMessage.of(
            job or "-", CANCELS, request.subject, request.sequence, body, reason, partition=partition
        )
        try:
            await self._log.append(fact, expect=0)
        except SequenceConflict:
            return  # already stored


DAG_ADVANCER: Final = Stage(
    name="dag_advancer",
    purpose="dispatches the steps that are ready",
    consumes="`admitted`, reports of success, timers, requests to cancel",
    decides="`dispatched`, `advanced`, `completed`, `cancelled`",
    access=Access(
        appends=(Dispatched, Advanced, Completed, Failed, Cancelled, PoisonMessage, Resolved, RetryTimer, ExpiryTimer),
        reads=(Stream.LOG,),
    ),
    start=lambda context: DagAdvancer(context.log, context.executions, context.clock, context.report_key),
    subscriptions=(
        Subscription(
            subjects.DAG_ADVANCER,
            Stream.LOG,
            tuple(subjects.filter_for(f"execution.{event}") for event in ("admitted", "recovered", "released")),
            DagAdvancer.on_admitted,
        ),
        Subscription(
            subjects.DAG_ADVANCER_REPORTS,
            Stream.LOG,
            (subjects.filter_for("report.completed"),),
            DagAdvancer.on_success,
            low_priority=True,
            prepare=DagAdvancer.before_success,
        ),
        Subscription(
            subjects.DAG_ADVANCER_TIMERS, Stream.LOG, (subjects.filter_for("timer.retry"),), DagAdvancer.on_timer
        ),
        Subscription(RETRIES, Stream.LOG, (subjects.filter_for("execution.retry-scheduled"),), DagAdvancer.on_retry),
        Subscription(CANCELS, Stream.LEDGER, (subjects.filter_for("cancel"),), DagAdvancer.on_cancel),
    ),
    loops=(DagAdvancer.run_timers,),
)
