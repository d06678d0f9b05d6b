"""A dead letter holds every attempt of every step."""

from tests.domain.given import ID, KEY, NOON, admitted, plan, recorded, report, started
from tocsin.domain import dead_letter, execution
from tocsin.domain.definition import RetryPolicy
from tocsin.domain.events import Failed, Failure, Message

BOOM = Failure(type="ValueError", message="boom")


def failed_twice() -> list[Message]:
    facts: list[Message] = [admitted(plan(retry=RetryPolicy(max_attempts=2, jitter=0)))]
    facts += execution.dispatch(execution.fold(recorded(facts)), key=KEY)
    facts.append(started())
    facts += execution.fail(execution.fold(recorded(facts)), report("failed", error=BOOM), at=NOON)
    facts += execution.dispatch_retry(execution.fold(recorded(facts)), "main", 2, key=KEY)
    facts.append(started(attempt=2))
    facts += execution.fail(execution.fold(recorded(facts)), report("failed", attempt=2, error=BOOM), at=NOON)
    return facts


def test_the_dead_letter_of_an_exhausted_execution() -> None:
    facts = recorded(failed_twice())
    failed = facts[-1].message
    assert isinstance(failed, Failed)
    letter = dead_letter.of_failed(failed, facts)
    assert [(a.step, a.attempt, a.worker, a.error) for a in letter.attempts] == [
        ("main", 1, "w", BOOM),
        ("main", 2, "w", BOOM),
    ]
    assert (letter.first_attempt, letter.last_attempt) == (facts[1].time, facts[-1].time)
    assert (letter.execution_id, letter.last_error, letter.id) == (ID, BOOM, ID)


def test_last_attempt_of_a_completed_execution_ends() -> None:
    facts: list[Message] = [admitted(plan({"a": ()}))]
    facts += execution.dispatch(execution.fold(recorded(facts)), key=KEY)
    facts += [started("a")]
    facts += execution.succeed(execution.fold(recorded(facts)), report("completed", "a"), key=KEY)
    [attempt] = dead_letter.attempts_of(recorded(facts))
    assert (attempt.error, attempt.ended_at) == (None, recorded(facts)[-1].time)


def test_completed_step_has_no_error_of_another_step() -> None:
    facts: list[Message] = [admitted(plan({"a": (), "b": ()}))]
    facts += execution.dispatch(execution.fold(recorded(facts)), key=KEY)
    facts += [started("a"), started("b")]
    facts += execution.fail(execution.fold(recorded(facts)), report("failed", "a", error=BOOM), at=NOON)
    facts += execution.succeed(execution.fold(recorded(facts)), report("completed", "b"), key=KEY)
    attempts = dead_letter.attempts_of(recorded(facts))
    assert [(a.step, a.error) for a in attempts] == [("a", BOOM), ("b", None)]
    assert all(a.ended_at for a in attempts)
