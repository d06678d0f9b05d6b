"""A dead letter's replays and its end, and what a failed execution leaves."""

from datetime import timedelta
from typing import Any

import pytest

from tests.domain.given import ID, JOB, KEY, LETTER, NOON, admitted, plan, recorded, report, started
from tocsin.domain import dead_letter, execution, execution_plan, ids
from tocsin.domain.dead_letter import DeadLetter
from tocsin.domain.definition import JobDefinition
from tocsin.domain.events import (
    Actor,
    Attempt,
    DeadLettered,
    Failed,
    Failure,
    Message,
    Plan,
    PlannedStep,
    PoisonMessage,
    Recorded,
    Replayed,
    Resolved,
    RetryScheduled,
    Trigger,
)

ADA = Actor(identity="ada")
BOOM = Failure(type="ValueError", message="boom", traceback="line 1")
REFUSED = PoisonMessage.of(JOB, "planner", "trigger.nightly", 5, b"x", "unreadable")


def after(*facts: Message) -> DeadLetter:
    return dead_letter.fold(recorded(facts))


def replayed(number: int, request: str | None = None) -> Replayed:
    return Replayed(job=JOB, id=ID, number=number, request=request)


@pytest.mark.parametrize("letter", [LETTER, REFUSED])
def test_a_replay_says_what_was_wanted(letter: DeadLettered | PoisonMessage) -> None:
    more: dict[str, Any] = {"request": "r", "input": {"a": 1}, "by": ADA, "reason": "fixed", "ledger": 9}
    [fact] = dead_letter.request_replay(after(letter), **more)
    assert fact == Replayed(job=JOB, id=letter.id, number=1, **more)


def test_replays_are_numbered_from_one() -> None:
    facts: list[Message] = [LETTER]
    for number in (1, 2, 3):
        [fact] = dead_letter.request_replay(after(*facts))
        assert fact.number == number
        facts.append(fact)


def test_the_same_request_replays_once() -> None:
    state = after(LETTER, replayed(1, "r"), replayed(2), replayed(3, "s"))
    assert dead_letter.request_replay(state, request="r") == []
    assert dead_letter.request_replay(state, request="s") == []
    assert [fact.number for fact in dead_letter.request_replay(state, request="t")] == [4]
    assert [fact.number for fact in dead_letter.request_replay(state)] == [4]


def test_a_replay_is_found_by_its_request() -> None:
    state = after(LETTER, replayed(1), replayed(2, "r"))
    found = dead_letter.find_replay(state, "r")
    assert found is state.replays[1]
    assert (found.sequence, found.at) == (3, NOON + timedelta(seconds=3))
    assert found.execution_id == ids.replay_id(JOB, ID, 2, NOON + timedelta(seconds=3))
    assert dead_letter.find_replay(state, "s") is None
    assert dead_letter.find_replay(state, None) is None


def test_a_resolution_says_who_and_why() -> None:
    [fact] = dead_letter.resolve(after(LETTER), execution_id="other", by=ADA, reason="done by hand")
    assert fact == Resolved(job=JOB, id=ID, execution_id="other", by=ADA, reason="done by hand")


def test_a_letter_is_resolved_once() -> None:
    [fact] = dead_letter.resolve(after(LETTER))
    state = after(LETTER, fact)
    assert state.resolved == recorded([LETTER, fact])[1]
    assert dead_letter.resolve(state) == []


def test_a_letter_keeps_its_fact_as_stored() -> None:
    state = after(LETTER)
    assert state.kept == recorded([LETTER])[0]
    assert state.fact == LETTER


def test_a_letter_that_is_unreadable_has_no_fact() -> None:
    with pytest.raises(LookupError):
        _ = after(replayed(1)).fact


def test_a_fact_of_another_kind_changes_nothing() -> None:
    state = after(LETTER)
    assert dead_letter.fold(recorded([admitted()]), state) is state


def failed(**more: Any) -> Failed:  # noqa: ANN401 - fields
    return Failed(job=JOB, execution_id=ID, scheduled_time=NOON - timedelta(hours=1), trigger="manual", **more)


def test_a_letter_repeats_what_was_planned() -> None:
    steps = (
        PlannedStep(name="a", function="f", timeout=1, input={"own": 1}),
        PlannedStep(name="b", function="f", timeout=1),
    )
    own = Plan(definition=4, steps=steps, input={"x": 1}, args=(2,))
    request = admitted(own).changed(replay_of="before")
    letter = dead_letter.of_failed(failed(error=BOOM), recorded([request]))
    assert (letter.job, letter.id, letter.execution_id, letter.trigger) == (JOB, ID, ID, "manual")
    assert (letter.input, letter.plan_input, letter.plan_args) == ({"x": 1, "a": {"own": 1}}, {"x": 1}, (2,))
    assert (letter.definition, letter.replay_of, letter.last_error) == (4, "before", BOOM)
    assert letter.scheduled_time == NOON - timedelta(hours=1)


def test_without_attempts_the_facts_times_count() -> None:
    facts = recorded([admitted(), failed()])
    letter = dead_letter.of_failed(failed(), facts)
    assert (letter.first_attempt, letter.last_attempt) == (facts[0].time, facts[1].time)
    assert letter.attempts == ()


def test_without_facts_the_scheduled_time_counts() -> None:
    letter = dead_letter.of_failed(failed(), [])
    assert letter.first_attempt == letter.last_attempt == letter.scheduled_time
    assert (letter.input, letter.plan_input, letter.definition) == ({}, {}, 0)


def test_each_attempt_records_its_times() -> None:
    facts: list[Message] = [admitted(plan({"a": (), "b": ("a",)}))]
    facts += execution.dispatch(execution.fold(recorded(facts)), key=KEY)
    facts.append(started("a"))
    facts += execution.succeed(execution.fold(recorded(facts)), report("completed", "a"), key=KEY)
    facts.append(started("b"))
    stored = recorded([*facts, failed(step="b", attempt=1, error=BOOM)])
    times = [fact.time for fact in stored]
    assert dead_letter.attempts_of(stored) == (
        Attempt(step="a", attempt=1, dispatched_at=times[1], started_at=times[2], ended_at=times[3], worker="w"),
        Attempt(
            step="b",
            attempt=1,
            dispatched_at=times[4],
            started_at=times[5],
            ended_at=times[6],
            worker="w",
            error=BOOM,
        ),
    )


def test_large_letter_keeps_the_newest_attempts() -> None:
    error = Failure(type="E", message="ä" * 4_096, traceback="x" * 8_192, details={"a": "x" * 16_000})
    facts = [
        RetryScheduled(job=JOB, execution_id=ID, step=f"s{n}", attempt=1, error=error, delay=1, next_attempt_at=NOON)
        for n in range(dead_letter.MAX_ATTEMPTS + 5)
    ]
    letter = dead_letter.of_failed(failed(error=error), recorded(facts))
    assert len(letter.encode()) <= dead_letter.MAX_LETTER_BYTES
    assert [attempt.step for attempt in letter.attempts] == [f"s{n}" for n in range(5, dead_letter.MAX_ATTEMPTS + 5)]
    assert (letter.attempts_left_out, letter.input_left_out, letter.last_error) == (5, False, error)
    assert all(attempt.error and attempt.error.message == "ä" * 200 for attempt in letter.attempts)


def test_large_letter_keeps_the_input_of_a_replay() -> None:
    steps = {f"s{n}": {"a": "x" * 60_000} for n in range(8)}
    dag = [{"name": name, "function": "f", "input": input_} for name, input_ in steps.items()]
    job = JobDefinition.model_validate({"name": JOB, "dag": dag, "input": {"own": 1}, "overlap_policy": "allow"})
    error = Failure(type="E", message="x" * 4_096)
    trigger = Trigger(input={"b": "y" * 25_000})
    first = execution_plan.from_trigger(Recorded(trigger, "trigger.a", 1, NOON), job, 1)
    errors = [
        RetryScheduled(job=JOB, execution_id=ID, step=f"s{n}", attempt=1, error=error, delay=1, next_attempt_at=NOON)
        for n in range(200)
    ]
    letter = dead_letter.of_failed(failed(error=error), recorded([first, *errors]))
    assert len(letter.encode()) <= dead_letter.MAX_LETTER_BYTES
    assert (letter.input, letter.input_left_out) == ({}, True)
    assert letter.plan_input == {"own": 1, "b": "y" * 25_000}


@pytest.mark.parametrize("more", [0, 1, 5])
def test_the_last_attempts_keep_their_tracebacks(more: int) -> None:
    count = dead_letter.MAX_TRACEBACKS + more
    facts = [
        RetryScheduled(job=JOB, execution_id=ID, step="main", attempt=n, error=BOOM, delay=1, next_attempt_at=NOON)
        for n in range(count)
    ]
    attempts = dead_letter.of_failed(failed(error=BOOM), recorded(facts)).attempts
    tracebacks = [attempt.error and attempt.error.traceback for attempt in attempts]
    assert tracebacks == [None] * more + ["line 1"] * dead_letter.MAX_TRACEBACKS
    assert [attempt.attempt for attempt in attempts] == list(range(count))
    assert all(attempt.error and attempt.error.message == "boom" for attempt in attempts)
