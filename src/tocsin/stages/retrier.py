"""Retrier: decides on each failed attempt whether and when to try again (hip-62, Retry Policy)."""

from datetime import datetime, timedelta
from typing import Final

from .. import subjects
from ..domain import execution
from ..domain.events import Exhausted, Failed, Message, Recorded, RetryScheduled
from ..domain.recovery import OF_EXECUTION, TIMED_OUT
from ..engine.kinds import LOG_TIME, TAKEN_BEFORE, execution_state
from ..engine.report_lists import authentic_report, authentic_subject
from ..engine.stage import Access, Stage, Subscription
from ..engine.step import DONE, States, Step, decided, wait
from ..subjects import Stream

PATIENCE: Final = timedelta(days=1)
"""How long a report of silence waits for the stage that takes successes."""
_SILENCES: Final = frozenset({subjects.RECOVERER, subjects.LEASE_KEEPER})
"""Who reports that nothing was reported."""
_SUCCESSES: Final = "dag_advancer"
"""The stage that takes successes."""


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
        events: list[Failed] | list[RetryScheduled | Exhausted | Failed]
        if report.attempt == OF_EXECUTION and report.error is not None:
            events = execution.give_up(states(ref), reason=TIMED_OUT, error=report.error)
        else:
            events = execution.fail(states(ref), report=report, at=recorded.time)
        if events and report.worker in _SILENCES and _may_follow_success(recorded, states):
            return wait(PATIENCE.total_seconds())
        return decided(ref, events)


def _may_follow_success(recorded: Recorded[Message], states: States) -> bool:
    """Return whether an undecided success may precede a report of silence."""
    place = _SUCCESSES, Stream.REPORTS.value, recorded.sequence
    return not states(TAKEN_BEFORE(place)) and states(LOG_TIME(None)) - recorded.time < PATIENCE


RETRIER: Final = Stage(
    name="retrier",
    purpose="retries failed attempts",
    consumes="reports of failure",
    decides="`retry-scheduled`, `exhausted`, `failed`",
    access=Access(appends=(RetryScheduled, Exhausted, Failed)),
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
