"""Checks of a worker's report before a stage decides on it."""

from hmac import compare_digest

from .. import subjects
from ..domain import ids
from ..domain.events import Message, Recorded, Report, Started
from .folds import UNKNOWN_TIME
from .kinds import execution_state
from .step import Known


def is_authentic(report: Report, key: bytes) -> bool:
    """Return whether a report comes from the worker that received the task.

    Ids can be guessed; the token cannot.
    """
    token = ids.report_token(key, report.execution_id, report.step, report.attempt)
    return compare_digest(report.token.encode(), token.encode())


def claim_of(message: Message, key: bytes) -> tuple[Known, ...]:
    """Return the claim that an authentic report names, which saves a read."""
    if not isinstance(message, Report) or not is_authentic(message, key):
        return ()
    report = message
    if report.claim is None or report.claimed_after is None or report.delivery is None:
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
