"""The audit judges the events of queues, and cancellations by purges."""

from datetime import timedelta

import pytest

from tests.domain.given import ID, JOB, NOON, admitted, plan, started
from tocsin import subjects
from tocsin.domain import execution
from tocsin.domain.events import (
    Cancelled,
    Dispatched,
    Message,
    QueueFact,
    QueuePaused,
    QueuePurged,
    QueueResumed,
    Recorded,
)
from tocsin.services.audit import Report, audit
from tocsin.subjects import Stream

PAUSED, RESUMED = QueuePaused(queue="mail"), QueueResumed(queue="mail")
KEY = b"key"


def judged(*facts: Message) -> Report:
    """Judge events in the order of their times; each stream numbers its own."""
    numbers: dict[Stream, int] = {}
    recorded: list[Recorded[Message]] = []
    for position, fact in enumerate(facts):
        subject = subjects.subject_of(fact)
        stream = subjects.stream_of(subject)
        numbers[stream] = numbers.get(stream, 0) + 1
        recorded.append(Recorded(fact, subject, numbers[stream], NOON + timedelta(milliseconds=position)))
    return audit(recorded, until=NOON + timedelta(seconds=30))


LIVES: list[list[QueueFact]] = [
    [PAUSED, RESUMED, PAUSED],
    [QueuePurged(queue="mail", upto=3), PAUSED, QueuePurged(queue="mail", upto=4), RESUMED],
    [PAUSED, QueuePaused(queue="other")],
]
IMPOSSIBLE: list[list[QueueFact]] = [
    [RESUMED],
    [PAUSED, PAUSED],
    [PAUSED, RESUMED, RESUMED],
    [QueuePurged(queue="mail", upto=3), QueuePurged(queue="mail", upto=3)],
    [QueuePurged(queue="mail", upto=3), QueuePurged(queue="mail", upto=2)],
]


@pytest.mark.parametrize("life", LIVES, ids=range(len(LIVES)))
def test_possible_life_is_clean(life: list[QueueFact]) -> None:
    assert judged(*life).is_clean


@pytest.mark.parametrize("life", IMPOSSIBLE, ids=range(len(IMPOSSIBLE)))
def test_impossible_life_is_a_violation(life: list[QueueFact]) -> None:
    [violation] = judged(*life).violations
    assert (violation.invariant, violation.entity) == ("I4", "queue mail")


def waiting() -> tuple[Message, Dispatched]:
    """An admission, and its task in the queue `default`."""
    admission = admitted(plan())
    state = execution.evolve(execution.initial, Recorded(admission, "", 1, NOON))
    [task] = execution.dispatch(state, key=KEY)
    return admission, task


def end(purge: int | None) -> Cancelled:
    return Cancelled(job=JOB, execution_id=ID, scheduled_time=NOON, trigger="cron", fence=None, purge=purge)


def reasons(report: Report) -> list[str]:
    return [violation.reason for violation in report.violations if violation.invariant == "I3"]


def purge_of(queue: str = "default", upto: int = 2) -> QueuePurged:
    return QueuePurged(queue=queue, upto=upto)


def test_purged_execution_that_waited_is_clean() -> None:
    assert not reasons(judged(*waiting(), purge_of(), end(1)))


def test_cancellation_may_be_read_before_its_purge() -> None:
    assert not reasons(judged(*waiting(), end(1), purge_of()))


@pytest.mark.parametrize(
    "facts",
    [
        (purge_of(), end(1), "before"),
        (end(1), purge_of(), "after"),
    ],
)
def test_cancellation_of_a_later_task_is_a_violation(facts: tuple[Message, Message, str]) -> None:
    first, second, _ = facts
    changed = [fact.changed(upto=1) if isinstance(fact, QueuePurged) else fact for fact in (first, second)]
    assert reasons(judged(*waiting(), *changed))


def test_cancellation_of_another_queue_is_a_violation() -> None:
    assert reasons(judged(*waiting(), purge_of("mail"), end(1)))


def test_cancellation_of_a_running_task_is_a_violation() -> None:
    assert reasons(judged(*waiting(), started(), purge_of(upto=3), end(1)))


def test_cancellation_by_no_purge_is_a_violation() -> None:
    assert reasons(judged(*waiting(), end(9)))
