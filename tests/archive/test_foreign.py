"""Foreign messages end nothing and replace nothing, and leave the stream with the event before them."""

from dataclasses import replace

import pytest

from tests.archive.test_purge_filters import left, purges, selected, stream
from tocsin.ports import StoredMessage


def with_foreign(*subjects: str) -> list[StoredMessage]:
    """A stream in which the messages with `!` lack a guard."""
    messages = stream(*(subject.removesuffix("!") for subject in subjects))
    return [
        replace(message, headers={}) if subject.endswith("!") else message
        for message, subject in zip(messages, subjects, strict=True)
    ]


DUE, ACQUIRED, QUEUED = "ledger.j.due", "lock.j.acquired", "lock.j.queued"
CASES = {
    "an open execution stays": (["execution.j.1.admitted", "execution.j.1.completed!"], set()),
    "it goes when it ends": (["execution.j.1.admitted", "execution.j.1.failed!", "execution.j.1.completed"], {1, 2, 3}),
    "it goes after it ended": (["execution.j.1.completed", "execution.j.1.junk!"], {1, 2}),
    "the hidden event stays": ([DUE, DUE, f"{DUE}!", f"{DUE}!"], {1}),
    "both go when they are replaced": ([DUE, f"{DUE}!", DUE, f"{DUE}!"], {1, 2}),
    "the first of a subject stays": ([f"{DUE}!", f"{DUE}!"], set()),
    "an announcement": (["cron.triggered.j", "cron.triggered.j!", "cron.triggered.j"], {1, 2}),
    "a queue": (["queue.q.paused", "queue.q.paused!"], set()),
    "a name of agents": (["agent.n.all.granted", "agent.n.all.granted!", "agent.n.all.granted"], {1, 2}),
    "a forgotten agent": (["agent.n.1.registered", "agent.n.1.forgotten!"], set()),
}


@pytest.mark.parametrize(("subjects", "archived"), CASES.values(), ids=CASES)
def test_only_events_end_and_replace(subjects: list[str], archived: set[int]) -> None:
    messages = with_foreign(*subjects)
    assert selected(messages) == archived
    remaining = left(messages, purges(messages, archived))
    assert {message.sequence for message in remaining} == {message.sequence for message in messages} - archived


def test_lock_keeps_the_event_that_is_hidden() -> None:
    messages = with_foreign(ACQUIRED, f"{ACQUIRED}!", f"{QUEUED}!", f"{ACQUIRED}!")
    body = b'{"v":1,"type":"acquired","job":"j","execution_id":"1","scheduled_time":"2026-01-01T00:00:00Z","ttl":60}'
    messages = [replace(message, body=body) for message in messages]
    assert selected(messages) == set()
    newer = replace(messages[0], sequence=5)
    assert selected([*messages, newer]) == {1, 2, 4}
