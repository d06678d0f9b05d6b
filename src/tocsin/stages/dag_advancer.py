"""DAG advancer: dispatches the steps that are ready, and says when an execution is over.

consumes  admitted, reports of success, timers of retries
folds     the execution
appends   dispatched (which executors take from the log itself), advanced, completed, failed
"""

from functools import partial

from .. import subjects
from ..domain import execution
from ..domain.events import Admitted, Message, Recorded, Report, RetryTimer
from ..domain.execution import Execution
from ..stage import Stage, Subscription
from ..subjects import Stream
from .entities import Entities
from .reports import is_believed, learn_claim


def dag_advancer(executions: Entities[Execution], key: bytes) -> Stage:
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

    return Stage(
        "dag_advancer",
        (
            Subscription("dag-advancer", Stream.LOG, (subjects.every("execution.admitted"),), on_admitted),
            Subscription("dag-advancer-reports", Stream.LOG, (subjects.every("report.completed"),), on_success),
            Subscription("dag-advancer-timers", Stream.LOG, (subjects.every("timer.retry"),), on_timer),
        ),
    )
