"""The answer to a task. It is stored before the task is acknowledged, however long that takes."""

from pydantic import JsonValue

from .. import subjects
from ..domain.events import Dispatched, Failure, Report
from ..ports import Clock, EventLog, LogUnavailable
from . import backoff
from .claim import Claimed
from .logger import log as worker_log
from .outcome import Failed, Succeeded


def report_of(task: Dispatched, outcome: Succeeded | Failed, claimed: Claimed, *, delivery: int, worker: str) -> Report:
    """What the DAG advancer or the retrier is told."""
    result: JsonValue = None
    error: Failure | None = None
    match outcome:
        case Succeeded():
            result = outcome.result
        case Failed():
            error = outcome.failure
    return Report(
        job=task.job,
        execution_id=task.execution_id,
        outcome="completed" if error is None else "failed",
        step=task.step,
        attempt=task.attempt,
        delivery=delivery,
        result=result,
        error=error,
        token=task.token,
        worker=worker,
        claim=claimed.sequence,
        claimed_after=claimed.after,
    )


async def store(log: EventLog, clock: Clock, report: Report) -> None:
    """Store a report, trying for as long as the log does not answer; its message id lets the log store it once."""
    subject = subjects.subject_of(report)
    failures = 0
    while True:
        try:
            await log.publish(subject, report, message_id=subject)
        except LogUnavailable as error:
            failures += 1
            worker_log.warning(
                "the report waits for the log",
                action="report-waits",
                execution_id=report.execution_id,
                step=report.step,
                tries=failures,
                error=str(error),
            )
            await clock.sleep(backoff.delay(failures))
        else:
            return
