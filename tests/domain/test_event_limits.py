"""Limits of messages, fields that they leave out, and messages that are refused."""

from base64 import b64decode
from datetime import datetime
from typing import Any

import pytest
from pydantic import ValidationError

from tests.domain.given import ID, JOB, NOON, admitted, report
from tocsin.domain.definition import JobDefinition
from tocsin.domain.events import (
    MAX_BODY_BYTES,
    MAX_REASON_LENGTH,
    Admitted,
    Enqueued,
    Message,
    PoisonMessage,
    Report,
    Trigger,
    validated,
)


@pytest.mark.parametrize("excess", [0, 1, 1000])
def test_a_refused_message_is_cut_off(excess: int) -> None:
    letter = PoisonMessage.of(
        JOB, "planner", "trigger.job", 5, b"x" * (MAX_BODY_BYTES + excess), "y" * (MAX_REASON_LENGTH + excess)
    )
    assert (len(b64decode(letter.body)), len(letter.reason)) == (MAX_BODY_BYTES, MAX_REASON_LENGTH)
    assert (letter.id, letter.durable, letter.sequence) == ("planner-0-5", "planner", 5)


@pytest.mark.parametrize("message", [admitted(), report("completed"), Trigger()])
def test_what_is_absent_is_not_sent(message: Message) -> None:
    assert b"null" not in message.encode()
    assert validated(type(message), message.encode()) == message


def test_what_a_newer_version_adds_is_ignored() -> None:
    body = admitted().encode().replace(b"{", b'{"newer":1,', 1)
    assert validated(Admitted, body) == admitted()


@pytest.mark.parametrize("fields", [{"backfill": "november"}, {"scheduled_time": NOON}])
def test_a_backfill_needs_its_name_and_instant(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="`backfill` and `scheduled_time`"):
        Trigger(**fields)
    assert Trigger(backfill="november", scheduled_time=NOON).backfill == "november"


@pytest.mark.parametrize("name", ["", "x" * 256])
def test_a_backfill_has_a_name_of_some_length(name: str) -> None:
    with pytest.raises(ValidationError):
        Trigger(backfill=name, scheduled_time=NOON)


def test_an_instant_without_a_zone_is_refused() -> None:
    with pytest.raises(ValidationError):
        Trigger(backfill="november", scheduled_time=datetime(2026, 11, 20))  # noqa: DTZ001 - that is refused


@pytest.mark.parametrize("policy", ["skip", "enqueue", "cancel_previous"])
def test_what_is_registered_nowhere_has_no_lock(policy: str) -> None:
    def enqueued(overlap_policy: str) -> Enqueued:
        fields = {"name": JOB, "function": "f", "overlap_policy": overlap_policy}
        return Enqueued(execution_id=ID, definition=JobDefinition.model_validate(fields))

    assert enqueued("allow").execution_id == ID
    with pytest.raises(ValidationError, match="overlap_policy"):
        enqueued(policy)


def test_a_sequence_is_never_negative() -> None:
    with pytest.raises(ValidationError):
        validated(Report, {**report("completed").document(), "claim": -1})
