"""Attempts and dead letters of the history, where a fact leaves something out."""

import pytest

from tests.domain.given import ID, JOB, LETTER, NOON, admitted, plan, recorded, started, task
from tocsin.domain import dead_letter, history
from tocsin.domain.events import (
    Cancelled,
    Completed,
    Failed,
    Failure,
    Message,
    PoisonMessage,
    Resolved,
)
from tocsin.domain.execution_record import ExecutionRecord

BOOM = Failure(type="ValueError", message="boom")
POISON = PoisonMessage.of(JOB, "planner", "trigger.nightly", 5, b"x", "unreadable")


def after(*facts: Message) -> ExecutionRecord:
    return history.fold({}, recorded(facts))[ID]


def test_a_running_execution_has_its_greatest_attempt() -> None:
    graph = plan({"a": (), "b": ()})
    assert after(admitted(graph), task("a", 2), task("b", 1)).attempt == 2
    assert after(admitted(graph), task("a", 1), task("b", 3), started("a", 2)).attempt == 3


@pytest.mark.parametrize(
    ("end", "status"),
    [
        (Completed(job=JOB, execution_id=ID, scheduled_time=NOON, trigger="cron", step="main", result=7), "completed"),
        (Failed(job=JOB, execution_id=ID, scheduled_time=NOON, trigger="cron", step="main", error=BOOM), "failed"),
    ],
)
def test_an_end_without_an_attempt_means_the_first(end: Message, status: str) -> None:
    record = after(admitted(), end)
    assert (record.status, record.steps["main"].status, record.attempt) == (status, status, 1)


def test_an_execution_never_tried_has_no_attempt() -> None:
    cancelled = Cancelled(job=JOB, execution_id=ID, scheduled_time=NOON, trigger="cron")
    assert (after(cancelled).attempt, after(admitted(), cancelled).attempt) == (0, 0)


def test_only_dead_letters_are_listed() -> None:
    found = dead_letter.dead_letters(recorded([admitted(), LETTER, POISON, Resolved(job=JOB, id=ID)]))
    assert set(found) == {(JOB, ID), (POISON.job, POISON.id)}
    assert [letter.message for letter in found.values()] == [LETTER, POISON]


def test_only_resolutions_resolve() -> None:
    facts: list[Message] = [LETTER, Resolved(job=JOB, id="other"), POISON]
    assert dead_letter.resolved(recorded(facts)) == {(JOB, "other")}
    assert dead_letter.resolved(recorded([LETTER])) == set()
