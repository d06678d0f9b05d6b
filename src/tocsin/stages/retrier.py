"""Retrier: decides on each failed attempt whether and when to try again (hip-62, Retry Policy)."""

from datetime import datetime
from typing import Final

from .. import subjects
from ..domain import execution
from ..domain.events import Exhausted, Failed, Message, Recorded, RetryScheduled
from ..engine.kinds import execution_state
from ..engine.report_authentication import authentic_report, authentic_subject
from ..engine.stage import Access, Stage, Subscription
from ..engine.step import DONE, States, Step, decided
from ..subjects import Stream


class Retrier:
    """Decides on reports of failure."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def is_proven(self, subject: str) -> bool:
        """Return whether a report is from a worker that received its task."""
        return authentic_subject(subject, self._key) is not None

    def on_failure(self, recorded: Recorded[Message], states: States, now: datetime) -> Step:  # noqa: ARG002 - the report's time counts
        """Schedule the next attempt of a step, or end the execution."""
        report = authentic_report(recorded, self._key)
        if report is None:
            return DONE
        ref = execution_state(report.job, report.execution_id)
        return decided(ref, execution.fail(states(ref), report=report, at=recorded.time))


RETRIER: Final = Stage(
    name="retrier",
    purpose="retries failed attempts",
    consumes="reports of failure",
    decides="`retry-scheduled`, `exhausted`, `failed`",
    access=Access(appends=(RetryScheduled, Exhausted, Failed), reads=(Stream.LOG,)),
    start=lambda context: Retrier(context.report_key),
    subscriptions=(
        Subscription(
            subjects.RETRIER,
            Stream.REPORTS,
            (subjects.filter_for("report.failed"),),
            decide=Retrier.on_failure,
            is_proven=Retrier.is_proven,
        ),
    ),
)
