"""The queue of keys by their due time."""

from datetime import timedelta

from tests.domain.given import NOON
from tocsin.engine.due_queue import SLACK, DueQueue


def test_due_keys_are_taken_once_oldest_first() -> None:
    agenda = DueQueue()
    for minutes, job in ((3, "c"), (1, "a"), (2, "b"), (9, "later")):
        agenda.put(job, NOON + timedelta(minutes=minutes))
    assert list(agenda.take(NOON + timedelta(minutes=3))) == ["a", "b", "c"]
    assert list(agenda.take(NOON + timedelta(minutes=3))) == []


def test_a_later_word_replaces_an_earlier_one() -> None:
    agenda = DueQueue()
    agenda.put("a", NOON)
    agenda.put("a", NOON + timedelta(minutes=1))
    agenda.put("b", NOON)
    agenda.put("b", None)
    assert list(agenda.take(NOON)) == []
    assert list(agenda.take(NOON + timedelta(minutes=1))) == ["a"]


def test_finished_keys_are_forgotten() -> None:
    agenda = DueQueue()
    agenda.put("stays", NOON)
    for number in range(10 * SLACK):
        agenda.put(f"job-{number}", NOON + timedelta(seconds=number))
        agenda.put(f"job-{number}", None)
    assert len(agenda._heap) <= SLACK + 2
    assert list(agenda.take(NOON + timedelta(days=1))) == ["stays"]
