"""The execution at its limits: other steps, attempts and claims, and what each fact repeats."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from tests.domain.given import ID, JOB, KEY, NOON, admitted, plan, recorded, report, started, task
from tocsin.domain import execution
from tocsin.domain.definition import RetryPolicy
from tocsin.domain.events import (
    Actor,
    Advanced,
    Cancelled,
    Completed,
    Exhausted,
    Failed,
    Failure,
    Lost,
    Message,
    Plan,
    Planned,
    PlannedStep,
    Recovered,
    Released,
    RetryScheduled,
    occurrence_meta,
)
from tocsin.domain.execution import ClaimDenied, Execution, Phase, Status

BOOM = Failure(type="ValueError", message="boom")
TWICE = RetryPolicy(max_attempts=2, initial_delay=30, jitter=0)
ADA = Actor(identity="ada")
LATER = NOON + timedelta(hours=1)


def after(*facts: Message) -> Execution:
    return execution.fold(recorded(facts))


def planned(plan_: Plan | None = None) -> Planned:
    return Planned(
        job=JOB,
        execution_id=ID,
        scheduled_time=NOON,
        trigger="manual",
        plan=plan_ or plan(),
        by=ADA,
        catch_up=True,
        replay_of="letter",
        backfill="november",
    )


def retried(step: str = "main", attempt: int = 1) -> RetryScheduled:
    return RetryScheduled(
        job=JOB, execution_id=ID, step=step, attempt=attempt, error=BOOM, delay=3600, next_attempt_at=LATER
    )


def released(task_: int, attempt: int = 1, step: str = "main") -> Released:
    return Released(job=JOB, execution_id=ID, step=step, attempt=attempt, delivery=1, task=task_, reason="lease_over")


def advanced(step: str, **more: Any) -> Advanced:  # noqa: ANN401 - fields
    return Advanced(job=JOB, execution_id=ID, step=step, attempt=1, **more)


def exhausted(step: str) -> Exhausted:
    return Exhausted(job=JOB, execution_id=ID, step=step, attempt=1, error=BOOM, reason="non_retryable")


CANCELLED = Cancelled(job=JOB, execution_id=ID, scheduled_time=NOON, trigger="cron")
PAIR = plan({"a": (), "b": ()})
CHAIN = plan({"a": (), "b": ("a",)})


def test_an_admission_repeats_what_was_planned() -> None:
    [fact] = execution.admit(after(planned()), fence=7)
    fields = planned().document(exclude={"type", "trigger_id"})
    assert fact.document(exclude={"type", "fence", "recovered_at"}) == fields
    assert (fact.fence, fact.recovered_at) == (7, None)


def test_a_skip_says_all_about_its_occurrence() -> None:
    own = plan().changed(timezone="Europe/Berlin", definition=4)
    [fact] = execution.skip(after(planned(own)), active="other")
    assert (fact.job, fact.execution_id, fact.reason, fact.active_execution_id) == (JOB, ID, "overlap_skip", "other")
    assert (fact.scheduled_time, fact.trigger, fact.definition) == (NOON, "manual", 4)
    assert (fact.cron_expression, fact.timezone) == ("0 3 * * *", "Europe/Berlin")


@pytest.mark.parametrize("state", [after(), after(admitted()), after(planned(), CANCELLED)])
def test_only_what_is_planned_is_admitted_or_skipped(state: Execution) -> None:
    assert execution.admit(state, fence=7) == []
    assert execution.skip(state, active="other") == []


def test_an_execution_never_planned_is_refused() -> None:
    with pytest.raises(LookupError):
        _ = after(started()).request


@pytest.mark.parametrize(
    "fact",
    [
        report("completed"),
        Recovered(
            job=JOB,
            execution_id=ID,
            recovery=1,
            recovered_at=NOON,
            lost=(Lost(what="admitted", since=NOON, step="gone", attempt=1), Lost(what="planned", since=NOON)),
        ),
        released(2, step="gone"),
    ],
    ids=["an input", "a recovery", "a release"],
)
def test_a_fact_of_no_step_changes_no_step(fact: Message) -> None:
    before = after(admitted(), task())
    assert execution.evolve(before, recorded([fact])[0]).steps == before.steps


@pytest.mark.parametrize(
    ("facts", "phase"),
    {
        "it stands": ((task(), started(), released(2)), Phase.LOST),
        "another task": ((task(), started(), released(3)), Phase.STARTED),
        "another attempt": ((task(), started(), released(2, attempt=2)), Phase.STARTED),
        "no claim": ((task(), released(2)), Phase.DISPATCHED),
    }.values(),
)
def test_only_the_claim_that_stands_is_released(facts: tuple[Message, ...], phase: Phase) -> None:
    assert after(admitted(), *facts).steps["main"].phase is phase


def test_claims_are_counted_for_each_attempt() -> None:
    assert after(admitted(), started()).steps["main"].claims == 1
    both = (task(), started(), started(delivery=2))
    assert after(admitted(), *both).steps["main"].claims == 2
    assert after(admitted(), *both, started(attempt=2)).steps["main"].claims == 1


def test_a_recovery_counts_however_it_is_read() -> None:
    facts = [Recovered(job=JOB, execution_id=ID, recovery=n, recovered_at=NOON, lost=()) for n in (2, 1)]
    assert after(planned(), *facts).recoveries == 2


def claim(state: Execution, step: str = "main", attempt: int = 1, task_: int = 99) -> object:
    return execution.claim(state, step=step, attempt=attempt, delivery=1, task=task_, worker="w")


def test_a_step_that_does_not_exist_is_over() -> None:
    assert claim(after(admitted(), task()), "gone") == ClaimDenied("over")


@pytest.mark.parametrize("attempt", [1, 3])
def test_a_claim_of_another_attempt_is_superseded(attempt: int) -> None:
    state = after(admitted(plan(retry=TWICE)), task(attempt=2))
    assert claim(state, attempt=attempt) == ClaimDenied("superseded")
    assert claim(state, attempt=2) == started(attempt=2)


@pytest.mark.parametrize(("sequence", "granted"), [(1, False), (2, True), (3, True)])
def test_a_claim_needs_the_newest_task(sequence: int, *, granted: bool) -> None:
    facts = claim(after(admitted(), task()), task_=sequence)
    assert facts == (started() if granted else ClaimDenied("superseded"))


def test_a_lease_of_no_step_ends_nothing() -> None:
    assert execution.release(after(admitted(), task(), started()), "gone", reason="lease_over") == []


def test_a_task_repeats_its_step_and_its_plan() -> None:
    step = PlannedStep(name="main", function="f", timeout=5, queue="etl", retry=TWICE)
    own = Plan(definition=1, steps=(step,), input={"a": 1}, args=(2,), meta={"team": "x"})
    [task] = execution.dispatch(after(admitted(own, fence=7)), key=KEY)
    assert (task.job, task.execution_id, task.step, task.function, task.queue) == (JOB, ID, "main", "f", "etl")
    assert (task.input, task.args, task.timeout) == ({"a": 1}, (2,), 5)
    assert task.meta == {"team": "x", **occurrence_meta(JOB, NOON)}
    assert (task.attempt, task.max_attempts, task.fence) == (1, 2, 7)
    assert (task.scheduled_time, task.trigger) == (NOON, "cron")
    assert (task.is_recovery, task.original_scheduled_time, task.recovery_attempt_time) == (False, None, None)


def test_an_input_of_a_step_replaces_the_plans() -> None:
    step = PlannedStep(name="main", function="f", timeout=5, input={}, args=())
    own = Plan(definition=1, steps=(step,), input={"a": 1}, args=(2,))
    [task] = execution.dispatch(after(admitted(own)), key=KEY)
    assert (task.input, task.args) == ({}, ())


def test_results_come_from_the_facts() -> None:
    facts = [admitted(CHAIN), task("a"), advanced("a", result={"rows": 3})]
    [found] = execution.dispatch(after(*facts), key=KEY)
    assert (found.step, found.upstream, found.upstream_left_out) == ("b", {"a": {"rows": 3}}, ())


@pytest.mark.parametrize(("excess", "passed"), [(0, ("a", "b")), (1, ("a",))])
def test_results_fit_into_one_task(excess: int, passed: tuple[str, ...]) -> None:
    half = "x" * (execution.MAX_UPSTREAM_BYTES // 2 - 2)
    facts = [
        admitted(plan({"a": (), "b": (), "c": ("a", "b")})),
        advanced("a", result=half),
        advanced("b", result=half + "x" * excess),
    ]
    [task] = execution.dispatch(after(*facts), key=KEY)
    assert (tuple(task.upstream), task.upstream_left_out) == (passed, ("b",) * excess)


def test_a_retried_step_runs_its_own_function() -> None:
    graph = plan({"a": (), "b": ()}, retry=TWICE)
    state = after(admitted(graph), task("a"), task("b"), started("b"), retried("b"))
    [found] = execution.dispatch_retry(state, "b", 2, key=KEY)
    assert (found.step, found.function, found.attempt) == ("b", "f/b", 2)


@pytest.mark.parametrize(
    ("facts", "step", "attempt"),
    {
        "no such step": ((task(), started(), retried()), "gone", 1),
        "the attempt before": ((task(), started(), retried()), "main", 1),
        "the attempt behind": ((task(), started(), retried()), "main", 3),
        "nothing failed": ((task(), started()), "main", 2),
        "it is over": ((task(), started(), retried(), CANCELLED), "main", 2),
    }.values(),
)
def test_retry_of_no_waiting_attempt_dispatches_nothing(facts: tuple[Message, ...], step: str, attempt: int) -> None:
    assert execution.dispatch_retry(after(admitted(plan(retry=TWICE)), *facts), step, attempt, key=KEY) == []


@pytest.mark.parametrize(("early", "count"), [(timedelta(), 1), (timedelta(microseconds=1), 0)])
def test_an_overdue_attempt_is_resumed_at_its_time(early: timedelta, count: int) -> None:
    state = after(admitted(plan(retry=TWICE)), task(), started(), retried())
    assert [again.attempt for again in execution.dispatch_missing(state, at=LATER - early, key=KEY)] == [2] * count


@pytest.mark.parametrize("facts", [(), (planned(),), (admitted(), CANCELLED)])
def test_only_a_running_execution_is_resumed(facts: tuple[Message, ...]) -> None:
    state = after(*facts)
    assert execution.dispatch_missing(state, at=LATER, key=KEY) == []
    assert execution.retry_times(state) == []
    assert execution.running_steps(state) == []


def test_only_steps_that_run_are_in_flight() -> None:
    graph = plan({"a": (), "b": (), "c": ("a",), "d": ()})
    state = after(admitted(graph), task("a"), task("b"), started("b"), task("d"), started("d"), retried("d"))
    assert execution.running_steps(state) == [("a", 1), ("b", 1)]


def test_a_report_of_no_step_decides_nothing() -> None:
    state = after(admitted(), task(), started())
    assert execution.succeed(state, report("completed", "gone"), key=KEY) == []
    assert execution.fail(state, report("failed", "gone"), at=NOON) == []


def test_a_completed_step_does_not_complete_twice() -> None:
    state = after(admitted(PAIR), task("a"), task("b"), advanced("a"))
    assert execution.succeed(state, report("completed", "a"), key=KEY) == []


def test_a_step_not_dispatched_does_not_complete() -> None:
    state = after(admitted(CHAIN), task("a"))
    assert execution.succeed(state, report("completed", "b", attempt=0), key=KEY) == []


@pytest.mark.parametrize("attempt", [1, 3])
def test_a_failure_of_another_attempt_does_not_count(attempt: int) -> None:
    state = after(admitted(plan(retry=TWICE)), task(attempt=2))
    assert execution.fail(state, report("failed", attempt=attempt, delivery=None), at=NOON) == []


def test_a_failure_without_an_error_is_unknown() -> None:
    [failed] = execution.fail(after(admitted(), task(), started()), report("failed"), at=NOON)
    assert isinstance(failed, Failed)
    assert failed.error is not None
    assert (failed.error.type, failed.error.retryable) == ("unknown", True)
    assert failed.error.message


def test_an_advance_carries_its_result() -> None:
    state = after(admitted(CHAIN), task("a"), started("a"))
    fact = execution.succeed(state, report("completed", "a", result=[1]), key=KEY)[0]
    assert isinstance(fact, Advanced)
    assert (fact.step, fact.attempt, fact.result) == ("a", 1, [1])


def test_a_failure_waits_for_steps_not_dispatched_yet() -> None:
    [fact] = execution.fail(after(admitted(PAIR), task("a"), started("a")), report("failed", "a"), at=NOON)
    assert isinstance(fact, Exhausted)
    assert (fact.step, fact.attempt, fact.reason) == ("a", 1, "attempts")


def test_the_end_names_the_step_that_failed() -> None:
    state = after(admitted(plan({"a": (), "b": ()})), task("a"), task("b"), exhausted("b"))
    [failed] = execution.succeed(state, report("completed", "a", result=[1]), key=KEY)
    assert isinstance(failed, Failed)
    assert (failed.step, failed.step_completed, failed.result) == ("a", True, [1])
    assert (failed.error, failed.reason) == (BOOM, "non_retryable")


@pytest.mark.parametrize("dead_letter", [True, False])
def test_the_end_says_whether_a_letter_is_kept(*, dead_letter: bool) -> None:
    state = after(admitted(plan(dead_letter=dead_letter), fence=7), task(), started())
    [failed] = execution.fail(state, report("failed", error=BOOM), at=NOON)
    assert isinstance(failed, Failed)
    assert (failed.dead_letter, failed.fence, failed.step_completed) == (dead_letter, 7, False)
    [abandoned] = execution.give_up(state, "abandoned", BOOM)
    assert (abandoned.dead_letter, abandoned.fence, abandoned.error) == (dead_letter, 7, BOOM)


def test_one_started_step_keeps_all_from_expiring() -> None:
    mortal = PAIR.changed(expires_at=LATER)
    assert execution.expiry(after(admitted(mortal), task("a"), task("b"), started("a"))) is None
    state = after(admitted(mortal), task("a"))
    error = execution.expiry(state)
    assert error is not None
    assert (error.type, error.retryable) == ("expired", False)
    [failed] = execution.give_up(state, "expired", error)
    assert (failed.cancelled_steps, failed.error) == (("b",), error)


COMPLETED = Completed(job=JOB, execution_id=ID, scheduled_time=NOON, trigger="cron")
FAILED = Failed(job=JOB, execution_id=ID, scheduled_time=NOON, trigger="cron")
ENDS: dict[str, Callable[[Execution], object]] = {
    "cancel": execution.cancel,
    "expire": lambda state: execution.give_up(state, "expired", BOOM),
    "give up": lambda state: execution.give_up(state, "timed_out", BOOM),
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize(
    ("fact", "status"),
    [(COMPLETED, Status.COMPLETED), (FAILED, Status.FAILED), (CANCELLED, Status.CANCELLED)],
)
def test_what_is_over_ends_no_second_time(end: str, fact: Message, status: Status) -> None:
    mortal = plan().changed(expires_at=NOON)
    state = after(admitted(mortal), task(), fact)
    assert (state.status, state.is_over) == (status, True)
    assert ENDS[end](state) == []


def test_a_cancellation_says_who_and_why() -> None:
    [fact] = execution.cancel(after(planned()), reason="a test", by=ADA)
    assert (fact.reason, fact.by, fact.trigger, fact.scheduled_time) == ("a test", ADA, "manual", NOON)
