"""Retrier: decides on each failed attempt whether and when to try again (hip-62, Retry Policy).

It stores the decision first and the delay second. The delay's target is only an input, so that storing it twice changes
nothing.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from .. import subjects
from ..domain import execution
from ..domain.events import Exhausted, Failed, Message, Recorded, RetryScheduled, RetryTimer
from ..engine.kinds import execution_state
from ..engine.report_authentication import authentic_report, authentic_subject, claim_of
from ..engine.stage import SHARED_READ_AHEAD, Access, Stage, Subscription
from ..engine.step import DONE, Events, Known, Later, States, Step, again, done
from ..subjects import Stream


class Retrier:
    """Decides on reports of failure."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def claim(self, recorded: Recorded[Message]) -> Sequence[Known]:
        """Return the claim that a report names."""
        return claim_of(recorded, self._key)

    def is_proven(self, subject: str) -> bool:
        """Return whether a report is from a worker that received its task."""
        return authentic_subject(subject, self._key) is not None

    def on_failure(self, recorded: Recorded[Message], states: States, now: datetime) -> Step:  # noqa: ARG002 - the report's time counts
        """Schedule the next attempt of a step, or end the execution."""
        report = authentic_report(recorded, self._key)
        if report is None:
            return DONE
        ref = execution_state(report.job, report.execution_id)
        state = states(ref)
        if events := execution.fail(state, report=report, at=recorded.time):
            return again(Events(ref, tuple(events)))
        timers = [Later(timer, until) for timer, until in execution.retry_timers(state) if timer.step == report.step]
        # A timer has no guard, so an old state would lose the report. What this report has just led to is no old state.
        return done(*timers, rests_on=() if states.has_changed(ref) else (ref,))


RETRIER: Final = Stage(
    name="retrier",
    purpose="retries failed attempts",
    consumes="reports of failure",
    decides="`retry-scheduled` and a timer; `exhausted`, `failed`",
    access=Access(appends=(RetryScheduled, RetryTimer, Exhausted, Failed), reads=(Stream.LOG,)),
    start=lambda context: Retrier(context.report_key),
    subscriptions=(
        Subscription(
            subjects.RETRIER,
            Stream.REPORTS,
            (subjects.filter_for("report.failed"),),
            takes_turns=True,
            read_ahead=SHARED_READ_AHEAD,
            decide=Retrier.on_failure,
            learn=Retrier.claim,
            is_proven=Retrier.is_proven,
        ),
    ),
)
