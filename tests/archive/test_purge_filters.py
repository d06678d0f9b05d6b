"""Purges take what is archived out of a stream, all of it and nothing else, and are few."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.guards import guarded
from tocsin.archive.segment_selection import PurgeFilters, SegmentSelection
from tocsin.domain.events import EventOrigin, PoisonMessage, Trigger
from tocsin.ports import LogUnavailable, StoredMessage
from tocsin.subjects import Stream, matches

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
_JOBS = st.sampled_from(["a", "b", "*"])  # any user may publish a trigger of `*`
_IDS = st.integers(0, 3).map("x{}".format)
FACTS = ["requested", "dispatched.main.1", "completed", "cancelled"]
SUBJECTS = st.one_of(
    st.builds("execution.{}.{}.{}".format, _JOBS, _IDS, st.sampled_from(FACTS)),
    st.builds("dead-letter.{}.{}.{}".format, _JOBS, _IDS, st.sampled_from(["created", "resolved", "replayed"])),
    st.builds("{}.{}.{}".format, st.sampled_from(["report", "timer", "enqueue"]), _JOBS, _IDS),
    st.builds("cron.answer.{}.{}".format, _JOBS, _IDS),
    st.builds("ledger.{}.{}".format, _JOBS, st.sampled_from(["defined", "due", "passed"])),
    st.builds("{}.{}.{}".format, st.sampled_from(["lock", "cron"]), _JOBS, st.sampled_from(["acquired", "triggered"])),
    st.sampled_from(["execution.a", "execution.a.x0", "leader.archiver", "schedule.a.x0"]),
)


def stream(*subjects: str) -> list[StoredMessage]:
    return [
        StoredMessage(Stream.LOG, at, NOON, subject, guarded(subject), b"")
        for at, subject in enumerate(subjects, start=1)
    ]


def selected(messages: Sequence[StoredMessage]) -> set[int]:
    selection = SegmentSelection()
    for message in messages:
        selection.take(message)
    return {message.sequence for message in selection.selected()}


def purges(messages: Sequence[StoredMessage], archived: set[int]) -> list[tuple[str, int]]:
    removal = PurgeFilters([message for message in messages if message.sequence in archived])
    for message in messages:
        if message.sequence <= max(archived, default=0):
            removal.take(message)
    return list(removal.purges())


def left(messages: Sequence[StoredMessage], purged: Sequence[tuple[str, int]]) -> list[StoredMessage]:
    def is_purged(message: StoredMessage) -> bool:
        return any(message.sequence <= upto and matches(subject, message.subject) for subject, upto in purged)

    return [message for message in messages if not is_purged(message)]


def scope(message: StoredMessage) -> str | None:
    """Return the execution or dead letter that a message belongs to."""
    kind, *rest = message.subject.split(".")
    return f"{kind}.{rest[0]}.{rest[1]}" if kind in {"execution", "dead-letter"} and len(rest) > 2 else None


@given(st.lists(SUBJECTS, max_size=40), st.integers(0, 40), st.data())
def test_what_is_archived_leaves_and_all_else_stays(subjects: list[str], upto: int, data: st.DataObject) -> None:
    messages = stream(*subjects)
    archived = selected(messages[:upto])  # later messages are not read, and stay
    purged = purges(messages, archived)
    assert left(messages, purged) == [message for message in messages if message.sequence not in archived]

    for some in range(len(purged)):  # a concurrent reader of an execution finds all of it, or nothing
        found = left(messages, purged[:some])
        for over in {scope(message) for message in messages if message.sequence in archived} - {None}:
            facts = [message for message in messages if scope(message) == over and message.sequence <= upto]
            assert [message for message in found if message in facts] in ([], facts)

    done = data.draw(st.sets(st.sampled_from(purged))) if purged else set()
    rest = left(messages, list(done))  # a process died before it had purged everything
    assert left(rest, purges(rest, archived)) == left(messages, purged)


def test_single_purge_covers_executions_before_the_first_open() -> None:
    over = [f"execution.{job}.{one}.{fact}" for one in "123" for job in "ab" for fact in ("requested", "completed")]
    messages = stream(*over, "execution.b.4.requested", "execution.a.5.completed", "execution.b.6.completed")
    assert purges(messages, selected(messages)) == [
        ("execution.b.6.>", 15),
        ("execution.a.>", 14),  # where a job has an open one, it holds up its own only
        ("execution.>", 12),
    ]


def test_how_things_stand_is_purged_by_subject() -> None:
    messages = stream("cron.a.triggered", "cron.b.triggered", "cron.a.triggered", "cron.a.triggered")
    assert purges(messages, selected(messages)) == [("cron.a.triggered", 3)]


def test_answers_are_archived_like_requests() -> None:
    messages = stream("cron.answer.a.1", "cron.triggered.a", "cron.answer.b.2", "cron.triggered.a")
    assert purges(messages, selected(messages)) == [("cron.answer.>", 3), ("cron.triggered.a", 2)]


def test_job_named_like_a_filter_purges_no_other() -> None:
    messages = stream(
        *("dead-letter.a.1.dead-lettered", "dead-letter.*.2.refused", "dead-letter.*.2.resolved"),
        *(
            "lock.*.acquired",
            "lock.b.acquired",
            "lock.*.acquired",
            "dead-letter.a.3.refused",
            "dead-letter.a.3.resolved",
        ),
    )
    assert purges(messages, selected(messages)) == [("dead-letter.a.3.>", 8)]


def test_requests_of_all_programs_leave_by_one_filter() -> None:
    messages = stream("outside.shop.trigger.a", "outside.*.trigger.b.c", "outside.billing.cancel.a.1")
    assert purges(messages, selected(messages)) == [("outside.*.trigger.>", 2), ("outside.*.cancel.>", 3)]


@pytest.mark.parametrize("durable", ["planner-public-triggers", "dag-advancer-public-cancels", "mq-bridge-completions"])
def test_refused_messages_of_outsiders_leave_unresolved(durable: str) -> None:
    outside, other = f"dead-letter.a.{durable}-0-7", "dead-letter.a.planner-triggers-0-7"
    messages = stream(f"{outside}.refused", f"{other}.refused")
    assert purges(messages, selected(messages)) == [("dead-letter.>", 1)]
    messages = stream(f"{outside}.refused", f"{outside}.replayed.1")
    assert not selected(messages)
    messages = stream(f"{outside}.refused", f"{outside}.replayed.1", f"{outside}.resolved")
    assert len(selected(messages)) == 3


@pytest.mark.parametrize("is_event", [True, False])
def test_refused_events_leave_unresolved(*, is_event: bool) -> None:
    source = ("nats", "orders.>", "", "refused")
    origin = EventOrigin(source=source, subject="orders.new", refusal_code="unreadable-event")
    request = Trigger(idempotency_key="1", event_trigger=origin if is_event else None)
    letter = PoisonMessage.of("a", "planner-triggers", "trigger.a", 7, request.encode(), "no JSON")
    [message] = stream("dead-letter.a.planner-triggers-0-7.refused")
    assert selected([replace(message, body=letter.encode())]) == ({1} if is_event else set())


def test_dead_letters_are_purged_first() -> None:
    messages = stream("execution.a.1.completed", "dead-letter.a.2.refused", "dead-letter.a.2.resolved")
    assert purges(messages, selected(messages)) == [("dead-letter.>", 3), ("execution.>", 1)]


def test_stale_replica_showing_purged_messages_is_not_trusted() -> None:
    first, last = stream("cron.a.triggered", "cron.a.triggered")
    removal = PurgeFilters([last])
    removal.take(first)
    with pytest.raises(LogUnavailable, match=r"stale read of cron\.a\.triggered"):
        removal.take(last)


def test_restored_messages_at_archived_sequences_stay() -> None:
    [archived] = stream("report.a.1")
    removal = PurgeFilters([archived])
    removal.take(stream("report.a.2")[0])
    assert list(removal.purges()) == []
