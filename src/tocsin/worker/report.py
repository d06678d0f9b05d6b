"""The report after an attempt (docs/internals/decisions, ADR 40)."""

from typing import Final

from pydantic import JsonValue

from .. import subjects, telemetry
from ..domain import execution, ids
from ..domain.events import Dispatched, Failure, Report
from ..ports import Clock, LogUnavailable, Publisher
from .assigned_task import AssignedTask
from .outcome import Failed, Succeeded, retry_delay

_log: Final = telemetry.get_logger("tocsin.worker")


def report_of(task: Dispatched, outcome: Succeeded | Failed, assigned: AssignedTask, *, worker: str) -> Report:
    """Return the report of an attempt, for the DAG advancer or the retrier."""
    result: JsonValue = None
    error: Failure | None = None
    match outcome:
        case Succeeded():
            result = outcome.result
        case Failed():
            error = outcome.failure
    # Without validation: the task was validated, and `outcome_of` made the result plain JSON.
    return Report.trusted(
        job=task.job,
        execution_id=task.execution_id,
        outcome="completed" if error is None else "failed",
        step=task.step,
        attempt=task.attempt,
        delivery=assigned.delivery,
        result=result,
        error=error,
        token=task.token,
        worker=worker,
        claim=assigned.claim,
        claimed_after=assigned.after,
        proof=assigned.proof,
        place_proof=assigned.place_proof,
        sole=execution.sole_step(task) if error is None else None,
        traceparent=task.traceparent,
    )


async def store_report(log: Publisher, clock: Clock, report: Report) -> None:
    """Store a report, retrying until the log answers.

    The message id lets the log store it once.

    Raises:
        RequestRefused: the log does not accept the report; for example, it is too large.
    """
    subject = subjects.subject_of(report)
    message_id = ids.report_id(report.proof or "", subject)
    failures = 0
    while True:
        try:
            await log.publish(subject, report, message_id=message_id)
        except LogUnavailable as error:
            failures += 1
            _log.warning(
                "report waits for the log",
                action="report-waits",
                job=report.job,
                execution_id=report.execution_id,
                step=report.step,
                tries=failures,
                error=str(error),
            )
            await clock.sleep(retry_delay(failures))
        else:
            return
