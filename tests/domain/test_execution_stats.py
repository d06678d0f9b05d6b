"""The counts of executions that reached a worker, of losses, and of recoveries."""

from typing import Final, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.domain.given import ID, JOB, NOON, recorded
from tocsin.domain.events import Failed, FailedReason, Failure, Message, RetryScheduled
from tocsin.domain.execution_stats import ExecutionStats, Happening, RecoveryStats, Tally

TIMED_OUT: Final = Failure(type="timed_out")
BROKEN: Final = Failure(type="ValueError")


def counted(*happenings: Happening) -> Tally:
    tally = Tally()
    for what in happenings:
        tally.record("e", what)
    return tally


@pytest.mark.parametrize(
    ("happenings", "successful", "lost", "pending"),
    [
        (["planned", "admitted", "started", "completed"], 1, 0, 0),
        (["admitted", "started", "failed"], 1, 0, 0),
        (["admitted", "completed"], 1, 0, 0),
        (["planned"], 0, 0, 1),
        (["admitted"], 0, 0, 1),
        (["admitted", "failed"], 0, 1, 0),
        (["admitted", "recovered"], 0, 1, 0),
        (["admitted", "recovered", "started"], 1, 0, 0),
        (["planned", "skipped"], 0, 0, 0),
        (["admitted", "cancelled"], 0, 0, 0),
        (["admitted", "recovered", "cancelled"], 0, 0, 0),
        (["admitted", "started", "cancelled"], 1, 0, 0),
        (["started", "completed"], 0, 0, 0),
        ([], 0, 0, 0),
    ],
)
def test_an_execution_reached_an_executor_or_was_lost(
    happenings: list[Happening], successful: int, lost: int, pending: int
) -> None:
    found = counted(*happenings).executions()
    rate = None if not successful + lost else 100.0 * successful
    assert found == ExecutionStats(successful + lost + pending, successful, lost, pending, rate)


@pytest.mark.parametrize(
    ("happenings", "attempts", "successes", "failures"),
    [
        (["admitted", "recovered"], 1, 0, 0),
        (["admitted", "recovered", "started", "completed"], 1, 1, 0),
        (["admitted", "recovered", "recovered", "started"], 2, 1, 1),
        (["admitted", "recovered", "recovered", "failed"], 2, 0, 2),
        (["admitted", "started", "recovered", "started", "recovered", "advanced"], 2, 2, 0),
        (["admitted", "recovered", "cancelled"], 1, 0, 0),
        (["admitted", "started", "failed"], 0, 0, 0),
    ],
)
def test_a_recovery_succeeds_when_an_executor_has_it(
    happenings: list[Happening], attempts: int, successes: int, failures: int
) -> None:
    decided = successes + failures
    rate = 100.0 * successes / decided if decided else None
    assert counted(*happenings).recoveries() == RecoveryStats(attempts, successes, failures, 0, rate)


def ended(error: Failure, reason: FailedReason, step: str | None = "main") -> Failed:
    return Failed(job=JOB, execution_id=ID, scheduled_time=NOON, trigger="cron", step=step, error=error, reason=reason)


def retried(error: Failure) -> RetryScheduled:
    return RetryScheduled(job=JOB, execution_id=ID, step="main", attempt=1, error=error, delay=1, next_attempt_at=NOON)


@pytest.mark.parametrize(
    ("failed", "before", "handed", "abandoned"),
    [
        (ended(TIMED_OUT, "attempts"), [], 0, 0),
        (ended(TIMED_OUT, "attempts"), [retried(TIMED_OUT)], 0, 0),
        (ended(TIMED_OUT, "attempts"), [retried(BROKEN)], 1, 0),
        (ended(BROKEN, "non_retryable"), [], 1, 0),
        (ended(TIMED_OUT, "timed_out", None), [], 0, 0),
        (ended(Failure(type="abandoned"), "abandoned", None), [], 0, 1),
    ],
    ids=["unanswered", "twice", "answered once", "answered", "took too long", "abandoned"],
)
def test_failure_without_claim_or_report_counts_as_lost(
    failed: Failed, before: list[Message], handed: int, abandoned: int
) -> None:
    tally = counted("admitted", "failed")
    tally.failed("e", failed, recorded([*before, failed]))
    assert (tally.executions().successful_executions, tally.executions().lost_executions) == (handed, 1 - handed)
    assert tally.recoveries().abandoned_recoveries == abandoned


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(get_args(Happening)))))
def test_totals_agree_for_any_events(happenings: list[tuple[str, Happening]]) -> None:
    tally = Tally()
    for execution, what in happenings:
        tally.record(execution, what)
    of, recoveries = tally.executions(), tally.recoveries()
    assert of.total_executions == of.successful_executions + of.lost_executions + of.pending_executions <= 3
    assert recoveries.total_recovery_attempts == sum(what == "recovered" for _, what in happenings)
    assert recoveries.successful_recoveries + recoveries.failed_recoveries <= recoveries.total_recovery_attempts
