"""A trial of an event says what the event listener does with it."""

from datetime import UTC, datetime
from typing import Any

import pytest

from tocsin.domain.formats import read_job
from tocsin.services.trigger_test import GivenEvent, TriggerAnswer, try_event

NOW = datetime(2026, 11, 26, 10, 0, tzinfo=UTC)
LIST = {"type": "object", "properties": {"events": {"type": "array"}}, "additionalProperties": False}


def answer(trigger: dict[str, Any], event: dict[str, Any], **job: object) -> TriggerAnswer:
    definition = read_job({"name": "j", "function": "f", "triggers": [trigger], **job})
    [found] = try_event(definition, GivenEvent.model_validate(event), NOW, max_hops=3)
    return found


def test_batch_has_its_events_as_input() -> None:
    trigger = {"nats": "clicks.>", "input": {"page": "body.page"}, "batch": {"max": 5, "within": "1s"}}
    found = answer(trigger, {"subject": "clicks.new", "body": {"page": "/"}}, input_schema=LIST)
    assert (found.outcome, found.input) == ("starts", {"events": [{"page": "/"}]})
    strict = {"properties": {"events": {"items": {"properties": {"page": {"type": "integer"}}}}}}
    refused = answer(trigger, {"subject": "clicks.new", "body": {"page": "/"}}, input_schema=strict)
    assert refused.outcome == "refused"


@pytest.mark.parametrize(("name", "outcome"), [("x-github-event", "starts"), ("X-GitHub-Event", "evaluation_failed")])
def test_names_of_webhook_headers_are_lower(name: str, outcome: str) -> None:
    trigger = {"webhook": "/hooks/github", "when": f'headers["{name}"] == "push"'}
    event = {"subject": "/hooks/github", "headers": {"X-GitHub-Event": "push"}}
    assert answer(trigger, event).outcome == outcome


def test_event_with_too_many_hops_is_named() -> None:
    event = {"subject": "orders.new", "headers": {"Ce-TocsinHops": "4"}}
    found = answer({"nats": "orders.*"}, event)
    assert found.outcome == "evaluation_failed"
    assert "4 executions" in (found.reason or "")
    assert answer({"nats": "orders.*"}, {**event, "headers": {"ce-tocsinhops": "3"}}).outcome == "starts"
    assert answer({"nats": "orders.*", "when": "false"}, event).outcome == "condition_false"


def test_ends_and_objects_have_no_headers() -> None:
    headers = {"ce-tocsinhops": "4"}
    assert answer({"job": "other"}, {"subject": "other.completed", "headers": headers}).outcome == "starts"
    assert answer({"object": "uploads"}, {"subject": "uploads/a", "headers": headers}).outcome == "starts"
