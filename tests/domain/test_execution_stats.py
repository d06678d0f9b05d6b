"""Whether a worker had an execution, and the outcomes of its recoveries."""

from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.domain.given import ID, JOB, NOON, admitted, plan, recorded, started
from tocsin.domain import history
from tocsin.domain.events import (
    Advanced,
    Cancelled,
    Completed,
    Failed,
    FailedReason,
    Failure,
    Lost,
    Message,
    Planned,
    Recovered,
    RetryScheduled,
    Skipped,
)
from tocsin.domain.execution_record import ExecutionRecord, Recoveries

TIMED_OUT: Final = Failure(type="timed_out")
BROKEN: Final = Failure(type="ValueError")


def failed(error: Failure, reason: FailedReason, step: str | None = "main") -> Failed:
    return Failed(job=JOB, execution_id=ID, scheduled_time=NOON, trigger="cron", step=step, error=error, reason=reason)


def retried(error: Failure) -> RetryScheduled:
    return RetryScheduled(job=JOB, execution_id=ID, step="main", attempt=1, error=error, delay=1, next_attempt_at=NOON)


LOST: Final = failed(TIMED_OUT, "attempts")
EVENTS: Final[dict[str, Message]] = {
    "planned": Planned(job=JOB, execution_id=ID, scheduled_time=NOON, trigger="cron", plan=plan()),
    "admitted": admitted(),
    "started": started(),
    "advanced": Advanced(job=JOB, execution_id=ID, step="main", attempt=1),
    "recovered": Recovered(
        job=JOB, execution_id=ID, recovery=1, lost=(Lost(what="admitted", since=NOON),), recovered_at=NOON
    ),
    "completed": Completed(job=JOB, execution_id=ID, scheduled_time=NOON, trigger="cron", step="main", attempt=1),
    "failed": LOST,
    "cancelled": Cancelled(job=JOB, execution_id=ID, scheduled_time=NOON, trigger="cron", reason="by hand"),
    "skipped": Skipped(
        job=JOB, execution_id=ID, scheduled_time=NOON, trigger="cron", reason="overlap_skip", definition=1
    ),
}


def after(events: list[Message]) -> ExecutionRecord:
    return history.fold({}, recorded(events))[ID]


@pytest.mark.parametrize(
    ("events", "was_handed_over", "is_recovering"),
    [
        (["planned", "admitted", "started", "completed"], True, False),
        (["admitted", "started", "failed"], True, False),
        (["admitted", "completed"], True, False),
        (["planned"], False, False),
        (["admitted"], False, False),
        (["admitted", "failed"], False, False),
        (["admitted", "recovered"], False, True),
        (["admitted", "recovered", "started"], True, False),
        (["planned", "skipped"], False, False),
        (["admitted", "cancelled"], False, False),
        (["admitted", "recovered", "cancelled"], False, False),
        (["admitted", "started", "cancelled"], True, False),
    ],
)
def test_execution_reached_a_worker_or_was_lost(
    events: list[str],
    was_handed_over: bool,  # noqa: FBT001 - a parameter
    is_recovering: bool,  # noqa: FBT001 - a parameter
) -> None:
    record = after([EVENTS[name] for name in events])
    assert (record.was_handed_over, record.is_recovering) == (was_handed_over, is_recovering)


@pytest.mark.parametrize(
    ("events", "tried", "successful", "failures"),
    [
        (["admitted", "recovered"], 1, 0, 0),
        (["admitted", "recovered", "started", "completed"], 1, 1, 0),
        (["admitted", "recovered", "recovered", "started"], 2, 1, 1),
        (["admitted", "recovered", "recovered", "failed"], 2, 0, 2),
        (["admitted", "started", "recovered", "started", "recovered", "advanced"], 2, 2, 0),
        (["admitted", "recovered", "cancelled"], 1, 0, 0),
        (["admitted", "started", "failed"], 0, 0, 0),
        (["admitted", "started", "completed", "recovered"], 0, 0, 0),
    ],
)
def test_recovery_succeeds_when_a_worker_has_the_execution(
    events: list[str], tried: int, successful: int, failures: int
) -> None:
    assert after([EVENTS[name] for name in events]).recoveries == Recoveries(tried, successful, failures)


@pytest.mark.parametrize(
    ("end", "before", "was_handed_over", "abandoned"),
    [
        (LOST, [], False, 0),
        (LOST, [retried(TIMED_OUT)], False, 0),
        (LOST, [retried(BROKEN)], True, 0),
        (failed(BROKEN, "non_retryable"), [], True, 0),
        (failed(TIMED_OUT, "timed_out", None), [], False, 0),
        (failed(Failure(type="abandoned"), "abandoned", None), [], False, 1),
    ],
    ids=["unanswered", "twice", "answered once", "answered", "took too long", "abandoned"],
)
def test_failure_without_claim_or_report_counts_as_lost(
    end: Failed,
    before: list[Message],
    was_handed_over: bool,  # noqa: FBT001 - a parameter
    abandoned: int,
) -> None:
    record = after([admitted(), *before, end])
    assert (record.was_handed_over, record.recoveries.abandoned) == (was_handed_over, abandoned)


@given(st.lists(st.sampled_from(sorted(EVENTS)), min_size=1))
def test_outcomes_never_exceed_recoveries(events: list[str]) -> None:
    tried, successful, failures, _ = after([EVENTS[name] for name in events]).recoveries
    assert 0 <= tried - successful - failures <= 1
    assert tried <= events.count("recovered")
