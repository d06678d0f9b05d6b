"""What both readers of reports do with one before they decide."""

from hmac import compare_digest

from .. import subjects
from ..domain import ids
from ..domain.events import Recorded, Report, Started
from ..domain.execution import Execution
from .state_cache import UNTOLD, StateCache


def is_believed(report: Report, key: bytes) -> bool:
    """Whether the report comes from whoever was given the task. Ids can be guessed; the token cannot."""
    return compare_digest(report.token, ids.report_token(key, report.execution_id, report.step, report.attempt))


def learn_claim(executions: StateCache[Execution], report: Report) -> None:
    """A report names its claim, so that whoever dispatched the task needs not read the log to know of it."""
    if report.claim is None or report.claimed_after is None or report.delivery is None:
        return
    claim = Started(
        job=report.job,
        execution_id=report.execution_id,
        step=report.step,
        attempt=report.attempt,
        delivery=report.delivery,
        worker=report.worker or "",
    )
    recorded = Recorded(claim, subjects.subject_of(claim), report.claim, UNTOLD)
    executions.learn(subjects.scope_of(claim), recorded, after=report.claimed_after)
