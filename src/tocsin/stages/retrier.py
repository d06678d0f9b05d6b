"""Retrier: decides on each failed attempt whether and when to try again (hip-62, Retry Policy).

It also decides on what stages report about workers that are silent or lost, and on heartbeats, in the order of the reports.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final, get_args

from .. import subjects
from ..domain import execution
from ..domain.events import (
    Exhausted,
    Failed,
    LeaseExtended,
    Message,
    Recorded,
    Released,
    ReleasedReason,
    RetryScheduled,
)
from ..domain.execution import WholeReason
from ..engine.kinds import LOG_TIME, TAKEN_BEFORE, execution_state
from ..engine.report_lists import authentic_report, authentic_subject
from ..engine.stage import Access, Stage, Subscription
from ..engine.step import DONE, States, Step, decided, wait
from ..subjects import Stream

PATIENCE: Final = timedelta(days=1)
"""How long a report of silence waits for the stage that takes successes."""
_SILENCES: Final = frozenset({subjects.RECOVERER, subjects.LEASE_KEEPER, subjects.MATCHER})
"""The stages that report what workers did not report."""
_WHOLE: Final[tuple[WholeReason, ...]] = ("timed_out", "abandoned", "expired")
_RELEASES: Final[tuple[ReleasedReason, ...]] = get_args(ReleasedReason)
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
        """Schedule the next attempt of a step, release its claim, or end the execution."""
        report = authentic_report(recorded, self._key)
        if report is None:
            return DONE
        ref, at, error = execution_state(report.job, report.execution_id), recorded.time, report.error
        of_stage = "" if error is None or report.worker not in _SILENCES else error.type
        events: Sequence[Message]
        if report.attempt == execution.OF_EXECUTION and error is not None:
            reason = next((reason for reason in _WHOLE if reason == error.type), None)
            events = [] if reason is None else execution.give_up(states(ref), reason, error)
        elif released := next((reason for reason in _RELEASES if reason == of_stage), None):
            events = execution.lose(states(ref), report, released, at=at)
        else:
            events = execution.fail(states(ref), report=report, at=at)
        if events and report.worker in _SILENCES and _may_follow_success(recorded, states):
            return wait(PATIENCE.total_seconds())
        return decided(ref, events)

    def on_heartbeat(self, recorded: Recorded[Message], states: States, now: datetime) -> Step:  # noqa: ARG002 - the report's time counts
        """Extend the lease of a claim."""
        report = authentic_report(recorded, self._key)
        if report is None:
            return DONE
        ref = execution_state(report.job, report.execution_id)
        return decided(ref, execution.extend(states(ref), report, at=recorded.time))


def _may_follow_success(recorded: Recorded[Message], states: States) -> bool:
    """Return whether an undecided success may precede a report of silence."""
    place = _SUCCESSES, Stream.REPORTS.value, recorded.sequence
    return not states(TAKEN_BEFORE(place)) and states(LOG_TIME(None)) - recorded.time < PATIENCE


RETRIER: Final = Stage(
    name="retrier",
    purpose="retries failed attempts",
    consumes="reports of failure and heartbeats",
    decides="`retry-scheduled`, `exhausted`, `released` (a worker was lost, or stopped), `lease-extended`, `failed`",
    access=Access(appends=(RetryScheduled, Exhausted, Released, LeaseExtended, Failed)),
    start=lambda context: Retrier(context.report_key),
    subscriptions=(
        Subscription(
            subjects.RETRIER,
            Stream.REPORTS,
            (subjects.filter_for("report.failed"),),
            decide=Retrier.on_failure,
            is_proven=Retrier.is_proven,
        ),
        Subscription(
            subjects.RETRIER_HEARTBEATS,
            Stream.REPORTS,
            (subjects.filter_for("report.extended"),),
            decide=Retrier.on_heartbeat,
            is_proven=lambda _, __: False,
        ),
    ),
)
