"""The audit judges who takes a unique key, and when."""

from datetime import timedelta
from typing import Any

import pytest

from tests.domain.given import NOON
from tests.services.audit.test_queues import judged
from tocsin.domain.definition import JobDefinition
from tocsin.domain.events import Cancelled, Enqueued, KeyHolder, KeyTaken, Message, Skipped, UniqueRule

JOB, KEY = "ojs.work", "a" * 64


def taken(execution_id: str, *others: str, replaces: tuple[str, ...] = (), **more: Any) -> KeyTaken:  # noqa: ANN401
    holders = tuple(KeyHolder(execution_id=other, taken=1, enqueued_at=NOON) for other in others)
    fields = {"enqueued_at": NOON, **more}
    return KeyTaken(job=JOB, key=KEY, execution_id=execution_id, others=holders, replaces=replaces, **fields)


def cancelled(execution_id: str) -> Cancelled:
    return Cancelled(job=JOB, execution_id=execution_id, scheduled_time=NOON, trigger="api")


def reasons(*facts: Message) -> list[str]:
    """Return the violations that are about keys."""
    return [violation.reason for violation in judged(*facts).violations if "key" in violation.reason]


@pytest.mark.parametrize(
    "facts",
    [
        (taken("a"), cancelled("a"), taken("b")),
        (taken("a"), taken("b", "a", replaces=("a",)), cancelled("a")),
        (taken("a"), taken("b", "a", states=("scheduled",)), taken("c", "a", "b", states=("scheduled",))),
        (taken("a"), taken("b", "a", period=5.0, enqueued_at=NOON + timedelta(seconds=5))),
    ],
)
def test_honest_takers_are_clean(facts: tuple[Message, ...]) -> None:
    assert reasons(*facts) == []


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ((taken("a"), taken("b", "a")), "it took the unique key of a"),
        ((taken("a"), taken("b", "a", period=5.0)), "it took the unique key of a"),
        ((taken("a"), taken("b", states=("scheduled",))), "it took a key without regard to a"),
        ((taken("a"), taken("a")), "it took its key twice"),
        ((taken("b", replaces=("a",)),), "it replaces a without the key"),
    ],
)
def test_wrong_taker_is_found(facts: tuple[Message, ...], reason: str) -> None:
    assert reason in reasons(*facts)


def test_replaced_job_must_end() -> None:
    report = judged(taken("a"), taken("b", "a", replaces=("a",)))
    assert any("another job replaced it" in debt.reason for debt in report.debts)


def test_unique_request_is_taken_or_skipped() -> None:
    request = Enqueued(
        execution_id="a",
        definition=JobDefinition(name=JOB, function="work", overlap_policy="allow"),
        unique=UniqueRule(key=KEY),
    )
    skipped = Skipped(job=JOB, execution_id="a", reason="duplicate", scheduled_time=NOON, trigger="api", definition=0)
    for decision, is_open in ((None, True), (taken("a"), False), (skipped, False)):
        for facts in ((request, decision), (decision, request)):
            report = judged(*(fact for fact in facts if fact is not None))
            assert any("did not take its key" in debt.reason for debt in report.debts) is is_open
