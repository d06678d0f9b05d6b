"""DAG advancer: dispatches the steps that are ready, and says when an execution is over.

consumes  admitted, reports of success, timers of retries, requests to cancel
folds     the execution
appends   dispatched (which executors take from the log itself), advanced, completed, failed, cancelled; dead letters for
          requests to cancel what does not exist
"""

from datetime import timedelta
from functools import partial
from typing import Final

from .. import subjects
from ..domain import execution
from ..domain.events import Admitted, CancelRequest, Message, Recorded, Refused, Report, RetryTimer
from ..domain.execution import Execution, Status
from ..ports import EventLog, SequenceConflict
from ..stage import NotYet, Stage, Subscription
from ..subjects import Stream
from .entities import Entities
from .reports import is_believed, learn_claim

PATIENCE: Final = timedelta(seconds=30)
"""How long an execution that somebody wants to end may take to be planned: whoever triggered it knows its id before that."""


def dag_advancer(log: EventLog, executions: Entities[Execution], key: bytes) -> Stage:
    """One decision a message: a crash between two of them is finished by the redelivery."""

    async def on_admitted(recorded: Recorded[Message]) -> None:
        if isinstance(recorded.message, Admitted):
            scope = subjects.scope_of(recorded.message)
            executions.learn(scope, recorded, after=0)
            await executions.decide(scope, partial(execution.dispatch, key=key))

    async def on_success(recorded: Recorded[Message]) -> None:
        report = recorded.message
        if isinstance(report, Report) and is_believed(report, key):
            learn_claim(executions, report)
            scope = subjects.execution(report.job, report.execution_id)
            await executions.decide(scope, partial(execution.succeed, report=report, key=key))

    async def on_timer(recorded: Recorded[Message]) -> None:
        timer = recorded.message
        if isinstance(timer, RetryTimer):
            scope = subjects.execution(timer.job, timer.execution_id)
            await executions.decide(scope, partial(execution.dispatch_again, timer=timer, key=key))

    async def on_cancel(recorded: Recorded[Message]) -> None:
        request = recorded.message
        if not isinstance(request, CancelRequest):
            return
        job, execution_id = subjects.to_cancel(recorded.subject)
        if not job or subjects.ANY in {job, execution_id}:
            await _refuse(log, recorded, job, "it names no execution: cancel.<job>.<execution>")
            return
        scope = subjects.execution(job, execution_id)
        await executions.decide(scope, partial(execution.cancel, reason=request.reason, by=request.by))
        if (await executions.load(scope))[0].status is Status.UNKNOWN:
            executions.forget(scope)
            if await log.now() - recorded.time < PATIENCE:
                raise NotYet(f"{scope}: nobody planned it")
            await _refuse(log, recorded, job, f"no execution of {job!r} has the id {execution_id!r}")

    return Stage(
        "dag_advancer",
        (
            Subscription("dag-advancer", Stream.LOG, (subjects.every("execution.admitted"),), on_admitted),
            Subscription("dag-advancer-reports", Stream.LOG, (subjects.every("report.completed"),), on_success),
            Subscription("dag-advancer-timers", Stream.LOG, (subjects.every("timer.retry"),), on_timer),
            Subscription("dag-advancer-cancels", Stream.LEDGER, (subjects.every("cancel"),), on_cancel),
        ),
    )


async def _refuse(log: EventLog, request: Recorded[Message], job: str, reason: str) -> None:
    body = request.message.encode()
    fact = Refused.of(job or "-", "dag-advancer-cancels", request.subject, request.sequence, body, reason)
    try:
        await log.append(fact, expect=0)
    except SequenceConflict:
        return  # recorded before
