"""Retrier: decides on each failed attempt whether and when to try again (hip-62, Retry Policy)."""

from functools import partial
from typing import Final

from .. import subjects
from ..domain import execution
from ..domain.events import Exhausted, Failed, Message, Recorded, Report, RetryScheduled, RetryTimer
from ..domain.execution import Execution
from ..engine.report_authentication import is_authentic, learn_claim
from ..engine.stage import Access, Stage, Subscription
from ..engine.state_cache import StateCache
from ..ports import EventLog
from ..subjects import Stream


class Retrier:
    """Stores the decision first and the delay second.

    The delay's target is only an input, so that storing it twice changes nothing.
    """

    def __init__(self, log: EventLog, executions: StateCache[Execution], key: bytes) -> None:
        self._log = log
        self._executions = executions
        self._key = key

    async def on_failure(self, recorded: Recorded[Message]) -> None:
        """Schedule the next attempt of a step, or end the execution."""
        report = recorded.message
        if not isinstance(report, Report) or not is_authentic(report, self._key):
            return
        learn_claim(self._executions, report)
        scope = subjects.execution(report.job, report.execution_id)
        await self._executions.decide(scope, partial(execution.fail, report=report, at=recorded.time))
        state, sequence = await self._executions.load(scope)
        for timer, until in execution.retry_timers(state):
            if timer.step == report.step:
                await self._log.delay(timer, until=until, scope=scope, expect=sequence)


RETRIER: Final = Stage(
    name="retrier",
    purpose="retries failed attempts",
    consumes="reports of failure",
    decides="`retry-scheduled` and a timer; `exhausted`, `failed`",
    access=Access(appends=(RetryScheduled, RetryTimer, Exhausted, Failed), reads=(Stream.LOG,)),
    start=lambda context: Retrier(context.log, context.executions, context.report_key),
    subscriptions=(
        Subscription(subjects.RETRIER, Stream.LOG, (subjects.filter_for("report.failed"),), Retrier.on_failure),
    ),
)
