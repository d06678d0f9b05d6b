"""A message that no stage stored is noticed by its headers, and a removed beginning by the archive's end (I9)."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from tocsin.domain.events import LeadershipGained
from tocsin.ports import StoredMessage
from tocsin.services.audit import Auditor, auditor
from tocsin.subjects import DECISION_STREAMS, Stream, stream_of

NOW = datetime(2026, 1, 1, tzinfo=UTC)
EXPECTED = "Nats-Expected-Last-Subject-Sequence"


def guarded(scope: str) -> dict[str, str]:
    return {EXPECTED: "7", f"{EXPECTED}-Subject": f"tocsin.0.{scope}"}


def message(subject: str, headers: Mapping[str, str], stream: Stream | None = None) -> StoredMessage:
    return StoredMessage(stream or stream_of(subject), 8, NOW, subject, headers, b"{}")


DECISIONS = {
    "ledger.j.due": "ledger.j.>",
    "agent.n.0198.registered": "agent.n.0198.>",
    "queue.q.paused": "queue.q.>",
    "execution.j.0198.started.main.1.1": "execution.j.0198.>",
    "execution.j.0198.completed": "execution.j.0198.>",
    "dead-letter.j.0198.replayed.1": "dead-letter.j.0198.>",
    "lock.j.acquired": "lock.j.*",
    "lock.j.shard-1.acquired": "lock.j.shard-1.*",
    "cron.triggered.j": "cron.triggered.j",
    "cron.answer.j.seq-1": "cron.answer.j.seq-1",
}


@pytest.mark.parametrize(("subject", "scope"), DECISIONS.items())
def test_decision_under_its_guard_is_in_order(subject: str, scope: str) -> None:
    assert list(auditor.foreign(message(subject, guarded(scope)))) == []


@pytest.mark.parametrize("subject", DECISIONS)
@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        ({}, "without a guard"),
        ({"Nats-Msg-Id": "m"}, "without a guard"),
        ({EXPECTED: "0"}, "without a guard"),
        ({f"{EXPECTED}-Subject": "tocsin.0.ledger.j.>"}, "without a guard"),
        (guarded("execution.another.0198.>"), "another scope"),
        (guarded("execution.j.0199.>"), "another scope"),
        (guarded(">"), "another scope"),
    ],
)
def test_any_other_message_is_foreign(subject: str, headers: dict[str, str], reason: str) -> None:
    [violation] = auditor.foreign(message(subject, headers))
    assert (violation.invariant, violation.entity) == ("I9", f"message 8 of {stream_of(subject)}")
    assert reason in violation.reason


@pytest.mark.parametrize(("subject", "scope"), DECISIONS.items())
def test_reply_is_foreign_with_any_guard(subject: str, scope: str) -> None:
    [violation] = auditor.foreign(message(subject, {**guarded(scope), "Nats-Stream": "TOCSIN_REPORTS"}))
    assert "reply of the server" in violation.reason


@pytest.mark.parametrize(
    "subject",
    ["trigger.j", "cancel.j.0198", "enqueue.j.0198", "report.j.0198.completed.main.1.1"],
)
def test_inputs_need_no_guard(subject: str) -> None:
    assert list(auditor.foreign(message(subject, {}))) == []


def test_change_of_leader_is_judged_by_its_body() -> None:
    gained = LeadershipGained(lease="ticker", holder="one", at=NOW)
    stored = message("leadership.ticker.gained", {})
    assert list(auditor.foreign(replace(stored, body=gained.encode()))) == []
    [violation] = auditor.foreign(stored)
    assert "no event of a leader lease" in violation.reason


@pytest.mark.parametrize("stream", DECISION_STREAMS)
@pytest.mark.parametrize("subject", ["trigger.j", "report.j.0198.completed.main.1.1", "_INBOX.x", "cron.trigger.j"])
def test_subject_of_another_stream_is_foreign(subject: str, stream: Stream) -> None:
    [violation] = auditor.foreign(message(subject, {}, stream))
    assert violation.entity == f"message 8 of {stream}"


@pytest.mark.parametrize(("first", "archived", "violations"), [(1, 0, 0), (2, 0, 1), (8, 7, 0), (3, 7, 0), (9, 7, 1)])
@pytest.mark.parametrize("stream", DECISION_STREAMS)
def test_missing_beginning_is_noticed(stream: Stream, first: int, archived: int, violations: int) -> None:
    found = [violation.entity for violation in auditor.removed(stream, first=first, archived=archived)]
    assert found == [f"stream {stream}"] * violations


@pytest.mark.parametrize("stream", [Stream.TIMERS, Stream.REPORTS])
def test_streams_of_inputs_may_begin_anywhere(stream: Stream) -> None:
    assert list(auditor.removed(stream, first=9, archived=0)) == []


def test_only_an_unreadable_decision_is_a_violation() -> None:
    auditor = Auditor()
    auditor.judge_guards()
    auditor.unreadable(message("execution.j.0198.completed", guarded("execution.j.0198.>")))
    auditor.unreadable(message("trigger.j", {}, Stream.REQUESTS))
    report = auditor.report()
    assert [violation.invariant for violation in report.violations] == ["I9"]
    [remark] = report.remarks
    assert "trigger.j (REQUESTS 8)" in remark
