"""The history as a fold: tables of facts (a second apart, from noon) and the record that they come to."""

from copy import deepcopy
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.domain.given import ID, JOB, NOON, admitted, plan, recorded, started, task
from tocsin.adapters.history.rows import dead_letter_columns, json_text
from tocsin.domain import dead_letter, execution, history, uniqueness
from tocsin.domain.events import (
    Advanced,
    Attempt,
    Cancelled,
    Completed,
    DeadLettered,
    ExecutionFact,
    Exhausted,
    Failed,
    Failure,
    Lost,
    Message,
    Planned,
    PoisonMessage,
    Recorded,
    Recovered,
    Refusal,
    Released,
    RetryScheduled,
    Skipped,
)
from tocsin.domain.execution_record import UNKNOWN_TRIGGER, ExecutionRecord, Status, StepRecord

BOOM = Failure(type="ValueError", message="boom", traceback="Traceback …")
ETL = {"extract": (), "transform": ("extract",), "load": ("transform",)}
FAN_OUT = {"extract": (), "left": ("extract",), "right": ("extract",), "join": ("left", "right")}


def at(seconds: int) -> datetime:
    return NOON + timedelta(seconds=seconds)


def after(*facts: Message) -> ExecutionRecord:
    return history.fold({}, recorded(facts))[ID]


def planned() -> Planned:
    return Planned(job=JOB, execution_id=ID, scheduled_time=NOON, trigger="cron", plan=plan())


def retry_scheduled(step: str = "main", attempt: int = 1) -> RetryScheduled:
    return RetryScheduled(
        job=JOB, execution_id=ID, step=step, attempt=attempt, error=BOOM, delay=1, next_attempt_at=at(60)
    )


def advanced(step: str, attempt: int = 1) -> Advanced:
    return Advanced(job=JOB, execution_id=ID, step=step, attempt=attempt)


def exhausted(step: str) -> Exhausted:
    return Exhausted(job=JOB, execution_id=ID, step=step, attempt=1, error=BOOM, reason="attempts")


def completed(step: str | None = "main", attempt: int | None = 1) -> Completed:
    return Completed(job=JOB, execution_id=ID, scheduled_time=NOON, trigger="cron", step=step, attempt=attempt)


def failed(step: str = "main", *, step_completed: bool = False, cancelled: tuple[str, ...] = ()) -> Failed:
    return Failed(
        job=JOB,
        execution_id=ID,
        scheduled_time=NOON,
        trigger="cron",
        step=step,
        attempt=1,
        step_completed=step_completed,
        error=BOOM,
        cancelled_steps=cancelled,
    )


def cancelled() -> Cancelled:
    return Cancelled(job=JOB, execution_id=ID, scheduled_time=NOON, trigger="cron")


def skipped() -> Skipped:
    return Skipped(job=JOB, execution_id=ID, scheduled_time=NOON, trigger="cron", reason="overlap_skip", definition=1)


STATUSES: list[tuple[list[Message], Status]] = [
    ([planned()], "pending"),
    ([planned(), admitted()], "pending"),
    ([admitted(), task()], "pending"),
    ([admitted(), task(), started()], "running"),
    ([admitted(), task(), retry_scheduled()], "running"),
    ([admitted(), task(), started(), retry_scheduled(), task(attempt=2)], "running"),
    (
        [admitted(plan(ETL)), task("extract"), started("extract"), advanced("extract"), task("load")],
        "running",
    ),
    ([admitted(), task(), started(), completed()], "completed"),
    ([admitted(), task(), started(), failed()], "failed"),
    ([admitted(), task(), cancelled()], "cancelled"),
    ([planned(), skipped()], "skipped"),
    ([skipped()], "skipped"),
    ([admitted(), completed(), started(), cancelled()], "completed"),
]


@pytest.mark.parametrize(("facts", "status"), STATUSES)
def test_status_only_moves_forward(facts: list[Message], status: Status) -> None:
    assert after(*facts).status == status


def test_a_run_that_went_well() -> None:
    assert after(admitted(), task(), started(), completed()) == ExecutionRecord(
        job=JOB,
        execution_id=ID,
        trigger="cron",
        scheduled_time=NOON,
        started_at=at(3),
        completed_at=at(4),
        status="completed",
        attempt=1,
        worker="w",
        error=None,
        steps={"main": StepRecord("completed", 1, started_at=at(3), ended_at=at(4), worker="w")},
        definition=1,
        queue="default",
        was_handed_over=True,
    )


def test_run_completed_on_retry_keeps_the_first_error() -> None:
    first = (admitted(), task(), started(), retry_scheduled())
    record = after(*first, task(attempt=2), started(attempt=2), completed(attempt=2))

    assert (record.status, record.attempt, record.error) == ("completed", 2, "ValueError: boom")
    assert (record.started_at, record.duration_ms) == (at(3), 4_000)
    assert record.steps == {
        "main": StepRecord("completed", 2, started_at=at(3), ended_at=at(7), error="ValueError: boom", worker="w")
    }


@pytest.mark.parametrize(
    ("facts", "started_at", "duration_ms"),
    [
        pytest.param([planned()], at(1), None, id="planned: when it was first heard of"),
        pytest.param([planned(), admitted()], at(2), None, id="admitted"),
        pytest.param([admitted(), task(), completed()], at(1), None, id="over and never claimed"),
        pytest.param([admitted(), task(), started(), started(delivery=2)], at(3), None, id="claimed twice"),
        pytest.param([started(), admitted(), completed()], at(1), 2_000, id="out of order"),
    ],
)
def test_started_at_is_the_first_start_or_admission(
    facts: list[Message], started_at: datetime, duration_ms: int | None
) -> None:
    record = after(*facts)
    assert (record.started_at, record.duration_ms) == (started_at, duration_ms)


def test_duration_is_never_negative() -> None:
    facts = recorded([admitted(), started()]) + recorded([completed()], start=NOON - timedelta(hours=1))
    assert history.fold({}, facts)[ID].duration_ms == 0


def test_steps_behind_an_exhausted_one_are_cancelled() -> None:
    record = after(
        admitted(plan(ETL)),
        task("extract"),
        started("extract"),
        advanced("extract"),
        task("transform"),
        started("transform"),
        failed("transform", cancelled=("load",)),
    )
    assert record.steps == {
        "extract": StepRecord("completed", 1, started_at=at(3), ended_at=at(4), worker="w"),
        "transform": StepRecord("failed", 1, at(6), at(7), error="ValueError: boom", worker="w"),
        "load": StepRecord("cancelled", 0, ended_at=at(7)),
    }
    assert record.error == "ValueError: boom"


def test_completed_step_is_not_blamed_for_the_failure() -> None:
    fan_out = (admitted(plan(FAN_OUT)), advanced("extract"), started("left"), started("right"))
    record = after(*fan_out, exhausted("left"), failed("right", step_completed=True, cancelled=("join",)))

    assert {name: (step.status, step.error) for name, step in record.steps.items()} == {
        "extract": ("completed", None),
        "left": ("failed", "ValueError: boom"),
        "right": ("completed", None),
        "join": ("cancelled", None),
    }


@pytest.mark.parametrize(
    ("end", "status"), [(cancelled(), "cancelled"), (skipped(), "skipped"), (completed(step=None), "completed")]
)
def test_unfinished_steps_end_with_the_execution(end: Message, status: Status) -> None:
    record = after(admitted(plan(ETL)), advanced("extract"), end)
    assert [step.status for step in record.steps.values()] == ["completed", status, status]


@pytest.mark.parametrize(
    ("fact", "trigger"),
    [(started(), UNKNOWN_TRIGGER), (advanced("main"), UNKNOWN_TRIGGER), (task(), "cron")],
)
def test_event_after_undecodable_events_still_gives_a_record(fact: Message, trigger: str) -> None:
    record = after(fact)
    assert (record.trigger, record.scheduled_time) == (trigger, at(1) if trigger == UNKNOWN_TRIGGER else NOON)
    assert after(fact, completed()).trigger == "cron"


def test_event_of_an_unknown_kind_changes_nothing() -> None:
    class Suspended(ExecutionFact, frozen=True):
        pass

    unknown = Recorded(Suspended(job=JOB, execution_id=ID), "execution.nightly.x.suspended", 1, NOON)
    assert history.fold({ID: after(admitted())}, [unknown]) == {}
    assert history.fold({}, [unknown]) == {}


@pytest.mark.parametrize(
    ("failure", "line"), [(BOOM, "ValueError: boom"), (Failure(type="TimeoutError"), "TimeoutError")]
)
def test_a_failure_in_one_line(failure: Failure, line: str) -> None:
    assert failure.summary == line


def test_a_dead_letter_of_an_execution() -> None:
    attempts = (Attempt(step="main", attempt=1), Attempt(step="main", attempt=2, error=BOOM))
    letter = DeadLettered(
        job=JOB,
        id=ID,
        execution_id=ID,
        scheduled_time=NOON,
        trigger="cron",
        input={"n": 1},
        attempts=attempts,
        last_error=BOOM,
        first_attempt=at(10),
        last_attempt=at(20),
    )
    [kept] = dead_letter.dead_letters(recorded([letter, admitted()])).values()
    assert dead_letter_columns(kept) == {
        "job_name": JOB,
        "execution_id": ID,
        "definition": None,
        "attempts": len(attempts),
        "input": '{"n":1}',
        "last_error": "ValueError: boom",
        "first_attempt": at(10),
        "last_attempt": at(20),
        "attempt_history": json_text([attempt.document() for attempt in attempts]),
    }


def test_poison_message_gives_a_dead_letter() -> None:
    letter = PoisonMessage(
        job=JOB, id="planner-7", reason="unreadable", durable="planner", subject="ledger.x.due", sequence=7, body="e30="
    )
    [kept] = dead_letter.dead_letters(recorded([letter])).values()
    assert dead_letter_columns(kept) == {
        "job_name": JOB,
        "execution_id": None,
        "definition": None,
        "attempts": 0,
        "attempt_history": "[]",
        "last_error": "unreadable",
        "first_attempt": at(1),
        "last_attempt": at(1),
        "input": '{"durable":"planner","subject":"ledger.x.due","sequence":7,"body":"e30="}',
    }


FACTS = [
    *(planned(), admitted(), admitted(plan(ETL)), task(), task("load", 2), started(), started("load", 3)),
    *(retry_scheduled(), retry_scheduled("load", 2), advanced("extract"), advanced("main", 2), exhausted("transform")),
    *(completed(), completed(None, None), failed("load"), failed(step_completed=True), cancelled(), skipped()),
]


@given(st.lists(st.sampled_from(FACTS)))
def test_end_is_final_in_any_order_of_events(facts: list[Message]) -> None:
    ranks = {"pending": 0, "running": 1}
    known: dict[str, ExecutionRecord] = {}
    rank = 0
    for fact in recorded(facts):
        before = deepcopy(known)
        known, was = history.fold(known, [fact]), known
        assert was == before  # a fold changes only its own copy
        record = known[ID]
        assert ranks.get(record.status, 2) >= rank
        rank = ranks.get(record.status, 2)
        assert (rank == 2) == (record.completed_at is not None)
        assert record.started_at.tzinfo is UTC
        assert all((step.ended_at is not None) == (step.status not in ranks) for step in record.steps.values())


def test_refused_trigger_shows_its_error() -> None:
    refusal = Refusal(code="job-not-found", message="no job is called 'x'")
    refused = skipped().changed(reason="refused", trigger="event", refusal=refusal)
    record = after(refused)
    assert (record.status, record.reason, record.error_type) == ("skipped", "refused", "job-not-found")
    assert record.error == "job-not-found: no job is called 'x'"


TASK: dict[str, Any] = {"step": "main", "attempt": 1}
WHO: dict[str, Any] = {"job": JOB, "execution_id": ID}
RETRY = RetryScheduled(**WHO, **TASK, next_attempt_at=at(60), delay=60, error=BOOM)
RELEASE = Released(**WHO, **TASK, delivery=1, task=2, reason="lease_over")
LOSS = Recovered(
    **WHO, recovery=1, lost=(Lost(what="admitted", step="main", attempt=1, since=at(2)),), recovered_at=at(9)
)
END: dict[str, Any] = {**WHO, "scheduled_time": NOON, "trigger": "cron"}


@pytest.mark.parametrize(
    ("facts", "state"),
    [
        ([admitted()], "available"),
        ([admitted(plan().changed(start_at=at(60)))], "scheduled"),
        ([admitted(plan().changed(start_at=at(60))), task()], "available"),
        ([admitted(), task()], "available"),
        ([admitted(), task(), started()], "active"),
        ([admitted(), task(), started(), RELEASE], "available"),
        ([admitted(), task(), LOSS], "available"),
        ([admitted(), task(), started(), RELEASE, started(delivery=2)], "active"),
        ([admitted(), task(), started(), RETRY], "retryable"),
        ([admitted(), task(), started(), RETRY, task(attempt=2)], "available"),
        ([admitted(), task(), started(), Completed(**END, **TASK)], "completed"),
        ([admitted(), task(), started(), Failed(**END, **TASK, error=BOOM)], "discarded"),
        ([admitted(), task(), Cancelled(**END, reason="by hand")], "cancelled"),
    ],
)
def test_state_as_a_job_equals_that_of_decisions(facts: list[Message], state: str) -> None:
    record, decided = after(*facts), execution.fold(recorded(facts))
    assert record.job_state == state == uniqueness.job_state(decided, decided.steps["main"])
    assert record.queue == "default"


def test_skipped_execution_is_no_job() -> None:
    assert after(Skipped(**END, reason="overlap_skip", definition=1)).job_state is None


def test_first_dispatched_step_ends_the_delay() -> None:
    delayed = admitted(plan(FAN_OUT).changed(start_at=at(60)))
    assert after(delayed).job_state == "scheduled"
    assert after(delayed, task("extract")).job_state == "available"
    advanced = Advanced(**WHO, step="extract", attempt=1)
    assert after(delayed, task("extract"), started("extract"), advanced).job_state == "available"


def test_state_of_many_steps_is_the_most_active() -> None:
    facts: list[Message] = [admitted(plan(FAN_OUT)), task("extract"), started("extract")]
    facts += [Advanced(**WHO, step="extract", attempt=1), task("left"), task("right")]
    assert after(*facts).job_state == "available"
    assert after(*facts, started("left")).job_state == "active"
    retry = RetryScheduled(**WHO, step="left", attempt=1, next_attempt_at=at(60), delay=60, error=BOOM)
    assert after(*facts, started("left"), started("right"), retry).job_state == "active"
    assert after(*facts, started("left"), retry).job_state == "retryable"
