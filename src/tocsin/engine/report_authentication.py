"""Checks of a worker's report before a stage decides on it.

A worker may store any message under any subject of reports. It has only the tokens of the tasks that it received.
"""

from hmac import compare_digest

from .. import subjects
from ..domain import ids
from ..domain.events import ExecutionFact, Message, Recorded, Report, Started
from ..subjects import ReportSubject
from .folds import UNKNOWN_TIME
from .kinds import execution_state
from .step import Known


def authentic_report(recorded: Recorded[Message], key: bytes) -> Report | None:
    """Return the report of a worker that received its task; None: the message proves nothing.

    Ids can be guessed; the token cannot. The subject must be that of the report, because readers choose reports by subject.
    """
    report = recorded.message
    if not isinstance(report, Report):
        return None
    token = ids.report_token(key, report.execution_id, report.step, report.attempt)
    is_authentic = compare_digest(report.token.encode(), token.encode())
    return report if is_authentic and recorded.subject == subjects.subject_of(report) else None


def reports_on(execution: ExecutionFact, step: str, attempt: int, key: bytes, *, outcome: str = subjects.ANY) -> str:
    """Return a filter over the reports on an attempt by workers that received its task."""
    token = ids.report_token(key, execution.execution_id, step, attempt)
    return subjects.reports_on(execution.job, execution.execution_id, step, attempt, of_token=token, outcome=outcome)


def authentic_subject(subject: str, key: bytes) -> ReportSubject | None:
    """Return the content of a report's subject, if its publisher received the task."""
    reported = subjects.parse_report(subject)
    if reported is None:
        return None
    seal = ids.task_seal(ids.report_token(key, reported.execution_id, reported.step, reported.attempt))
    return reported if compare_digest(reported.seal.encode(), seal.encode()) else None


def claim_of(recorded: Recorded[Message], key: bytes) -> tuple[Known, ...]:
    """Return the claim that an authentic report names, which saves a read."""
    report = authentic_report(recorded, key)
    if report is None or report.claim is None or report.claimed_after is None or report.delivery is None:
        return ()
    claim = Started(
        job=report.job,
        execution_id=report.execution_id,
        step=report.step,
        attempt=report.attempt,
        delivery=report.delivery,
        worker=report.worker or "",
    )
    event: Recorded[Message] = Recorded(claim, subjects.subject_of(claim), report.claim, UNKNOWN_TIME)
    return (Known(execution_state(report.job, report.execution_id), event, report.claimed_after),)
