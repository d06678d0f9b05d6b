"""DAG advancer: dispatches the steps that are ready, and says when an execution is over.

consumes  admitted, recovered, released, reports of success, retry-scheduled and its timers, requests to cancel
folds     the execution
appends   dispatched (which executors take from the log itself), advanced, completed, failed, cancelled; dead letters for
          requests to cancel what does not exist; resolved, for the dead letter that a completed execution was a replay of
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
from ...engine.report_authentication import is_believed, learn_claim
from ...engine.rerun import resolve_replayed
from ...engine.stage import Access, NotReady, Stage, Subscription
from ...engine.state_cache import StateCache
from ...ports import Clock, EventLog, OutdatedState
from ...subjects import Stream
from .retry_timer import RetryTimers

CANCELS: Final = "dag-advancer-cancels"
RETRIES: Final = "dag-advancer-retries"
PATIENCE: Final = timedelta(seconds=30)
"""How long an execution that somebody wants to end may take to be planned: whoever triggered it knows its id before that."""

ACCESS: Final = Access(
    appends=(Dispatched, Advanced, Completed, Failed, Cancelled, PoisonMessage, Resolved, RetryTimer, ExpiryTimer),
    reads=(Stream.LOG,),
)


def dag_advancer(log: EventLog, executions: StateCache[Execution], clock: Clock, key: bytes) -> Stage:
    """One decision a message: a crash between two of them is finished by the redelivery."""
    it = DagAdvancer(log, executions, clock, key)
    admissions = tuple(subjects.filter_for(f"execution.{fact}") for fact in ("admitted", "recovered", "released"))
    return Stage(
        "dag_advancer",
        (
            Subscription(subjects.DAG_ADVANCER, Stream.LOG, admissions, it.on_admitted),
            Subscription(
                subjects.DAG_ADVANCER_REPORTS,
                Stream.LOG,
                (subjects.filter_for("report.completed"),),
                it.on_success,
                low_priority=True,
                prepare=it.before_success,
            ),
            Subscription(subjects.DAG_ADVANCER_TIMERS, Stream.LOG, (subjects.filter_for("timer.retry"),), it.on_timer),
            Subscription(RETRIES, Stream.LOG, (subjects.filter_for("execution.retry-scheduled"),), it.on_retry),
            Subscription(CANCELS, Stream.LEDGER, (subjects.filter_for("cancel"),), it.on_cancel),
        ),
        loops=(it.punctual.run,),
        access=ACCESS,
    )


class DagAdvancer:
    """The DAG advancer's handlers."""

    def __init__(self, log: EventLog, executions: StateCache[Execution], clock: Clock, key: bytes) -> None:
        self._log = log
        self._executions = executions
        self._key = key
        self.punctual = RetryTimers(clock, self._again)

    async def on_admitted(self, recorded: Recorded[Message]) -> None:
        """An execution may run, or was found lost and is to go on."""
        match recorded.message:
            case Admitted() as admitted:
                scope = subjects.scope_of(admitted)
                self._executions.learn(scope, recorded, after=0)
                await self._executions.decide(scope, partial(execution.dispatch, key=self._key))
                if admitted.plan.start_at is not None or admitted.plan.expires_at is not None:
                    await self._wait(scope)
            case Recovered() | Released() as lost:
                scope = subjects.scope_of(lost)
                self._executions.forget(scope)
                await self._executions.decide(
                    scope, partial(execution.dispatch_missing, at=recorded.time, key=self._key)
                )

    async def before_success(self, several: Sequence[Recorded[Message]]) -> None:
        """Read at once what another copy began, and learn of all claims in their order.

        The steps of a graph that run together claim one behind the other.
        """
        reports = [
            one.message for one in several if isinstance(one.message, Report) and is_believed(one.message, self._key)
        ]
        for report in sorted(reports, key=lambda report: report.claim or 0):
            learn_claim(self._executions, report)
        await self._executions.recall({subjects.execution(report.job, report.execution_id) for report in reports})

    async def on_success(self, recorded: Recorded[Message]) -> None:
        """A step completed."""
        report = recorded.message
        if isinstance(report, Report) and is_believed(report, self._key):
            learn_claim(self._executions, report)
            scope = subjects.execution(report.job, report.execution_id)
            await self._executions.decide(scope, partial(execution.succeed, report=report, key=self._key))
            state, _ = await self._executions.load(scope)
            if state.status is Status.COMPLETED and state.request.replay_of is not None:
                await resolve_replayed(self._log, report.job, state.request.replay_of, report.execution_id)

    async def on_retry(self, recorded: Recorded[Message]) -> None:
        """An attempt is to be dispatched later: the server's timer sees to that, and we may be there first."""
        fact = recorded.message
        if isinstance(fact, RetryScheduled):
            timer = RetryTimer(job=fact.job, execution_id=fact.execution_id, step=fact.step, attempt=fact.attempt + 1)
            self.punctual.at(fact.next_attempt_at, timer)

    async def on_timer(self, recorded: Recorded[Message]) -> None:
        """The delay before an attempt is over."""
        if isinstance(recorded.message, RetryTimer):
            await self._again(recorded.message)

    async def _again(self, timer: RetryTimer) -> None:
        scope = subjects.execution(timer.job, timer.execution_id)
        await self._executions.decide(scope, partial(execution.dispatch_retry, timer=timer, key=self._key))

    async def _wait(self, scope: str) -> None:
        """Have the log wake us when it may start, and when it may not start any more."""
        state, sequence = await self._executions.load(scope)
        for retry, until in execution.retry_timers(state):
            await self._log.delay(retry, until=until, scope=scope, expect=sequence)
            self.punctual.at(until, retry)
        if not state.is_over and (expires_at := state.request.plan.expires_at) is not None:
            expiry = ExpiryTimer(job=state.request.job, execution_id=state.request.execution_id)
            await self._log.delay(expiry, until=expires_at, scope=scope, expect=sequence)

    async def on_cancel(self, recorded: Recorded[Message]) -> None:
        """Somebody wants an execution to end."""
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
                raise NotReady(f"{scope}: nobody planned it")
            await self._refuse(recorded, job, f"no execution of {job!r} has the id {execution_id!r}")

    async def _refuse(self, request: Recorded[Message], job: str, reason: str) -> None:
        body = request.message.encode()
        fact = PoisonMessage.of(job or "-", CANCELS, request.subject, request.sequence, body, reason)
        try:
            await self._log.append(fact, expect=0)
        except OutdatedState:
            return  # recorded before
