"""Retrier: tries again, later, or no more (hip-62, Retry Policy).

consumes  reports of failure
folds     the execution
appends   retry-scheduled, and a delay that the log itself keeps; or exhausted, failed
"""

from functools import partial
from typing import Final

from .. import subjects
from ..domain import execution
from ..domain.events import Exhausted, Failed, Message, Recorded, Report, RetryScheduled, RetryTimer
from ..domain.execution import Execution
from ..engine.report_authentication import is_believed, learn_claim
from ..engine.stage import Access, Stage, Subscription
from ..engine.state_cache import StateCache
from ..ports import EventLog
from ..subjects import Stream

ACCESS: Final = Access(appends=(RetryScheduled, RetryTimer, Exhausted, Failed), reads=(Stream.LOG,))


def retrier(log: EventLog, executions: StateCache[Execution], key: bytes) -> Stage:
    """The fact first, the delay second: the delay's target is only an input, so that storing it twice changes nothing."""

    async def on_failure(recorded: Recorded[Message]) -> None:
        report = recorded.message
        if not isinstance(report, Report) or not is_believed(report, key):
            return
        learn_claim(executions, report)
        scope = subjects.execution(report.job, report.execution_id)
        await executions.decide(scope, partial(execution.fail, report=report, at=recorded.time))
        state, sequence = await executions.load(scope)
        for timer, until in execution.retry_timers(state):
            if timer.step == report.step:
                await log.delay(timer, until=until, scope=scope, expect=sequence)

    failures = (subjects.filter_for("report.failed"),)
    return Stage("retrier", (Subscription(subjects.RETRIER, Stream.LOG, failures, on_failure),), access=ACCESS)
