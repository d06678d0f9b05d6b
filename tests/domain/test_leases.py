"""Claims under a lease, executions that wait for their time, and those whose time is over."""

from datetime import timedelta
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.domain.given import ID, JOB, KEY, NOON, admitted, plan, recorded, report
from tocsin.domain import execution
from tocsin.domain.definition import RetryPolicy
from tocsin.domain.events import (
    Admitted,
    Cancelled,
    Completed,
    Death,
    Dispatched,
    Failed,
    Failure,
    Message,
    Recorded,
    Released,
    RetryScheduled,
    Started,
    validated,
)
from tocsin.domain.events.message import ReleasedReason
from tocsin.domain.execution import ClaimDenied, Execution, Phase

DEATH = Death(agent="w", at=NOON)
SECOND = timedelta(seconds=1)
TWICE = RetryPolicy(max_attempts=2, initial_delay=30, jitter=0)


def task(attempt: int = 1) -> Dispatched:
    """Return the tasks that the plan of these tests dispatches."""
    [found] = execution.dispatch(execution.fold(recorded([admitted(plan(retry=TWICE))])), key=KEY)
    return found.changed(attempt=attempt)


def claim(delivery: int = 1, *, attempt: int = 1, lease: float | None = 30.0) -> Started:
    return Started(job=JOB, execution_id=ID, step="main", attempt=attempt, delivery=delivery, worker="w", lease=lease)


def released(task_: int, delivery: int = 1, **more: Any) -> Released:  # noqa: ANN401 - fields
    fields = {"job": JOB, "execution_id": ID, "step": "main", "attempt": 1, "reason": "lease_over", **more}
    return Released(task=task_, delivery=delivery, **fields)


def after(*facts: Message, plan_: Any = None) -> Execution:  # noqa: ANN401 - a plan
    return execution.fold(recorded([admitted(plan_ or plan(retry=TWICE)), *facts]))


HELD = (task(), claim())
"""The task has the sequence 2, its claim 3."""
RETRIED = validated(
    RetryScheduled,
    {
        "job": JOB,
        "execution_id": ID,
        "step": "main",
        "attempt": 1,
        "delay": 1,
        "next_attempt_at": NOON,
        "error": {"type": "X"},
    },
)


@pytest.mark.parametrize("reason", ["lease_over", "handed_back"])
def test_released_claim_is_dispatched_again_as_same_attempt(reason: Any) -> None:  # noqa: ANN401 - a literal
    [fact] = execution.release(after(*HELD), "main", reason=reason)
    assert (fact.attempt, fact.delivery, fact.task, fact.reason) == (1, 1, 2, reason)
    [again] = execution.dispatch_missing(after(*HELD, fact), at=NOON, key=KEY)
    assert again == task()
    assert execution.dispatch_missing(after(*HELD, fact, again), at=NOON, key=KEY) == []


@pytest.mark.parametrize(
    ("facts", "of"),
    {
        "nobody claimed it": ((task(),), 0),
        "another task is held": ((*HELD, released(2), task(), claim()), 3),
        "another attempt is held": ((*HELD, RETRIED, task(2), claim(attempt=2)), 3),
        "it was given up before": ((*HELD, released(2)), 3),
        "the attempt failed": ((*HELD, RETRIED), 3),
        "it completed": (
            (*HELD, Completed(job=JOB, execution_id=ID, scheduled_time=NOON, trigger="cron", step="main", attempt=1)),
            3,
        ),
        "it was cancelled": ((*HELD, Cancelled(job=JOB, execution_id=ID, scheduled_time=NOON, trigger="cron")), 3),
    }.values(),
)
def test_report_of_a_lost_claim_comes_too_late(facts: tuple[Message, ...], of: int) -> None:
    state, late = after(*facts), report("failed", claim=of, error=Failure(type="lease_over", deaths=(DEATH,)))
    for reason in get_args(ReleasedReason):
        assert execution.lose(state, late, reason, at=NOON) == []
    assert execution.extend(state, late.changed(outcome="extended", lease=9.0), at=NOON) == []


def test_heartbeat_puts_the_end_of_a_lease_off() -> None:
    beat = report("extended", claim=3, lease=60.0)
    [extended] = execution.extend(after(*HELD), beat, at=NOON + SECOND)
    state = after(*HELD, extended)
    assert state.steps["main"].leased_until == extended.until == NOON + 61 * SECOND
    silent = Failure(type="handed_back")
    for since, is_lost in ((30, False), (60, False), (61, True), (62, True)):
        silent = Failure(type="lease_over", deaths=(Death(agent="w", at=NOON + since * SECOND),))
        lost = execution.lose(state, report("failed", claim=3, error=silent), "lease_over", at=NOON)
        assert [fact.type for fact in lost] == ["released"] * is_lost
    [handed_back] = execution.lose(state, report("failed", claim=3, error=silent), "handed_back", at=NOON)
    assert handed_back.type == "released"


def test_heartbeat_extends_no_claim_without_a_lease() -> None:
    beat = report("extended", claim=3, lease=60.0)
    assert execution.extend(after(task(), claim(lease=None)), beat, at=NOON) == []
    assert execution.extend(after(*HELD), beat.changed(lease=None), at=NOON) == []


def test_next_claim_has_a_lease_of_its_own() -> None:
    [extended] = execution.extend(after(*HELD), report("extended", claim=3, lease=600.0), at=NOON)
    facts = [admitted(plan(retry=TWICE)), *HELD, extended, released(2), task(), claim()]
    for loaded in (recorded(facts), newest_of_each(recorded(facts))):
        step = execution.fold(loaded).steps["main"]
        assert step.leased_until == step.claimed_at + timedelta(seconds=30)  # type: ignore[operator]


@pytest.mark.parametrize(("after_s", "kinds"), [(29, "released"), (30, "retry-scheduled"), (31, "retry-scheduled")])
def test_lost_claim_beyond_its_limit_fails(after_s: int, kinds: str) -> None:
    state = after(task(), claim(lease=None), plan_=plan(retry=TWICE))
    claimed_at = state.steps["main"].claimed_at
    assert claimed_at is not None
    lost = report("failed", claim=3, error=Failure(type="lease_over", deaths=(DEATH,)))
    [fact] = execution.lose(state, lost, "lease_over", at=claimed_at + after_s * SECOND)
    assert fact.type == kinds
    assert execution.fold(recorded([admitted(plan(retry=TWICE)), task(), claim(), fact])).deaths["main"] == (DEATH,)


def test_leased_claim_survives_redelivery_by_the_queue() -> None:
    def asked(lease: float | None) -> Started | ClaimDenied:
        state = after(task(), claim(lease=lease))
        return execution.claim(state, step="main", attempt=1, delivery=2, task=2, worker="other")

    assert asked(30.0) == ClaimDenied("held")
    assert isinstance(asked(None), Started)


def test_released_attempt_is_claimed_again_as_first_delivery() -> None:
    state = after(*HELD, released(2), task())
    granted = execution.claim(state, step="main", attempt=1, delivery=1, task=5, worker="other")
    assert isinstance(granted, Started)
    late = execution.claim(state, step="main", attempt=1, delivery=2, task=2, worker="other")
    assert late == ClaimDenied("superseded")


def test_the_answer_of_who_lost_the_lease() -> None:
    """A success counts from any holder; a failure counts only from the current claim."""
    taken_over = after(*HELD, released(2), task(), claim())
    late = report("failed", claim=3)
    assert execution.fail(taken_over, late, at=NOON) == []
    assert execution.fail(taken_over, late.changed(claim=6), at=NOON) != []
    for state in (after(*HELD, released(2)), after(*HELD, released(2), task()), taken_over):
        [completed] = execution.succeed(state, report("completed", claim=3), key=KEY)
        assert isinstance(completed, Completed)


@pytest.mark.parametrize(("lost", "max_deaths", "runs_alone"), [(0, 1, 0), (1, 3, 0), (2, 3, 1), (1, 2, 1), (4, 9, 0)])
def test_next_task_knows_the_lost_workers(lost: int, max_deaths: int, runs_alone: int) -> None:
    facts: list[Message] = [admitted(plan(retry=TWICE).changed(max_deaths=max_deaths)), task(), claim()]
    for number in range(lost + 2):
        state = execution.fold(recorded(facts))
        reason: ReleasedReason = "lease_over" if number < lost else "handed_back"
        deaths = (DEATH,) * (number + 1) if number < lost else ()
        facts += execution.release(state, "main", reason=reason, deaths=deaths)
        facts += [*execution.dispatch_missing(execution.fold(recorded(facts)), at=NOON, key=KEY), claim()]
    newest = [fact for fact in facts if isinstance(fact, Dispatched)][-1]
    assert (newest.deaths, newest.runs_alone) == (lost, bool(runs_alone))


@pytest.mark.parametrize("claimed", [0, 1, 2, 10_000])
def test_report_takes_back_no_lost_worker(claimed: int) -> None:
    known = (DEATH, DEATH)
    facts: list[Message] = [admitted(plan(retry=TWICE)), task(), claim(), released(2, deaths=known), task(), claim()]
    state = execution.fold(recorded(facts))
    error = Failure(type="ValueError", deaths=(Death(agent="innocent", at=NOON),) * claimed)
    [retried] = execution.fail(state, report("failed", claim=state.steps["main"].claim, error=error), at=NOON)
    deaths = execution.fold(recorded([*facts, retried])).deaths["main"]
    assert (deaths[:2], len(deaths)) == (known, 2 + min(claimed, 1))


def newest_of_each(facts: list[Recorded[Message]]) -> list[Recorded[Message]]:
    """Return the loaded form of a scope: the newest event of each subject."""
    newest = {fact.subject: fact for fact in facts}
    return sorted(newest.values(), key=lambda fact: fact.sequence)


@given(st.lists(st.sampled_from(["claim", "beat", "lapse", "hand back", "dispatch"]), max_size=40))
def test_loaded_scope_folds_like_all_its_events(moves: list[str]) -> None:
    facts: list[Message] = [admitted(plan(retry=TWICE)), task()]
    for move in moves:
        state = execution.fold(recorded(facts))
        step = state.steps["main"]
        match move:
            case "claim":
                found = execution.claim(
                    state, step="main", attempt=1, delivery=step.delivery + 1, task=step.task, worker="w"
                )
                facts += [] if isinstance(found, ClaimDenied) else [found.changed(lease=5.0)]
            case "beat":
                beat = report("extended", claim=step.claim, lease=7.0)
                facts += execution.extend(state, beat, at=NOON + len(facts) * SECOND)
            case "dispatch":
                facts += execution.dispatch_missing(state, at=NOON, key=KEY)
            case _:
                reason: Any = "lease_over" if move == "lapse" else "handed_back"
                deaths = (*state.deaths.get("main", ()), DEATH) if move == "lapse" else ()
                facts += execution.release(state, "main", reason=reason, deaths=deaths)
    every = recorded(facts)
    assert execution.fold(newest_of_each(every)) == execution.fold(every)
    phases = [execution.fold(every[:n]).steps["main"].phase for n in range(2, len(every) + 1)]
    assert set(phases) <= {Phase.DISPATCHED, Phase.STARTED, Phase.LOST}


LATER = NOON + timedelta(hours=1)


def test_delayed_start_is_dispatched_once_at_its_time() -> None:
    state = after(plan_=plan().changed(start_at=LATER))
    assert execution.dispatch(state, key=KEY) == []
    assert execution.retry_times(state) == [("main", 1, LATER)]
    [fact] = execution.dispatch_retry(state, "main", 1, key=KEY)
    assert (fact.attempt, fact.step) == (1, "main")
    then = execution.evolve(state, recorded([fact])[0])
    assert execution.dispatch_retry(then, "main", 1, key=KEY) == []
    assert execution.retry_times(then) == []


def test_only_root_steps_wait_for_the_start_time() -> None:
    graph = plan({"one": (), "other": ("one",)}).changed(start_at=LATER)
    state = after(plan_=graph)
    assert (state.steps["one"].phase, state.steps["other"].phase) == (Phase.RETRYING, Phase.WAITING)


def test_what_waits_for_its_time_can_be_cancelled() -> None:
    state = after(plan_=plan().changed(start_at=LATER))
    [fact] = execution.cancel(state)
    over = execution.evolve(state, recorded([fact])[0])
    assert execution.dispatch_retry(over, "main", 1, key=KEY) == []


def expired(state: Execution) -> list[Failed]:
    error = execution.expiry(state)
    assert error is not None
    return execution.give_up(state, "expired", error)


MORTAL = plan(retry=TWICE).changed(expires_at=LATER)


@pytest.mark.parametrize(
    "facts",
    {
        "nothing happened": (),
        "it waits in its queue": (task(),),
        "its worker was lost": (*HELD, released(2)),
        "it waits in its queue once more": (*HELD, released(2), task()),
        "it waits for its next attempt": (*HELD, RETRIED),
    }.values(),
)
def test_what_no_executor_has_expires(facts: tuple[Message, ...]) -> None:
    state = after(*facts, plan_=MORTAL)
    [fact] = expired(state)
    assert (fact.reason, fact.dead_letter, fact.step) == ("expired", False, None)
    assert fact.error is not None
    assert (fact.error.type, "2026-11-20 13:00:00+00:00" in fact.error.message) == ("expired", True)
    assert execution.expiry(execution.evolve(state, recorded([fact])[0])) is None


def test_claimed_or_timeless_executions_do_not_expire() -> None:
    for state in (after(*HELD, plan_=MORTAL), after(task()), Execution()):
        assert execution.expiry(state) is None
        assert execution.give_up(state, "expired", Failure(type="expired")) == []


def test_what_expired_takes_no_answer_and_no_claim() -> None:
    state = after(task(), plan_=MORTAL)
    over = execution.evolve(state, recorded(expired(state))[0])
    assert execution.succeed(over, report("completed"), key=KEY) == []
    assert execution.claim(over, step="main", attempt=1, delivery=1, task=2, worker="w") == ClaimDenied("over")


def test_older_event_version_holds_no_lease() -> None:
    old = validated(Started, claim(lease=None).document(exclude={"lease"}))
    assert after(task(), old).steps["main"].leased_until is None
    assert isinstance(admitted(), Admitted)
    assert msgspec.structs.replace(after(*HELD).steps["main"], claim=0) != after(*HELD).steps["main"]
