"""The AsyncAPI document is valid, complete, and true of the stages."""

import json
from pathlib import Path
from typing import Any, Final

import pytest
from faststream.specification.asyncapi.v3_0_0.schema import ApplicationSchema
from jsonschema import Draft202012Validator

from tests.stages.world import World
from tocsin import subjects
from tocsin.adapters.nats.client.names import Names
from tocsin.domain.events import CronAnswer, CronMissed, CronSkipped, CronTriggered

DOCUMENT: Final[dict[str, Any]] = json.loads(
    (Path(__file__).parents[1] / "schemas" / "asyncapi.json").read_text(encoding="utf-8")
)


def test_document_follows_asyncapi() -> None:
    parsed = ApplicationSchema.model_validate(DOCUMENT)
    assert set(parsed.channels) == set(DOCUMENT["channels"])
    assert parsed.asyncapi == "3.0.0"


@pytest.mark.parametrize("name", sorted(DOCUMENT["components"]["messages"]))
def test_examples_fit_their_schemas(name: str) -> None:
    message = DOCUMENT["components"]["messages"][name]
    schema = {"$ref": message["payload"]["$ref"], "components": DOCUMENT["components"]}
    validator = Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER)
    assert message["examples"]
    for example in message["examples"]:
        validator.validate(example["payload"])


@pytest.mark.parametrize("name", sorted(DOCUMENT["channels"]))
def test_examples_decode_as_their_message(name: str) -> None:
    channel = DOCUMENT["channels"][name]
    wire = (
        channel["address"]
        .replace("{job}", "daily-report")
        .replace("{execution_id}", "019b76da-a800-76fb-abdc-caef73f35cd6")
    )
    (message,) = channel["messages"]
    (example,) = DOCUMENT["components"]["messages"][message]["examples"]
    subject = Names().from_wire(wire)
    if message != "Envelope":  # Tocsin writes tasks and never reads them
        decoded = subjects.decode(subject, json.dumps(example["payload"]).encode())
        assert type(decoded).__name__ == message


def test_received_subjects_have_a_subscriber() -> None:
    names, world = Names(), World()
    filters = {
        names.to_wire(relative)
        for stage in (world.planner, world.dag_advancer, world.mq_bridge)
        for subscription in stage.subscriptions
        for relative in subscription.filters
    }
    for operation in DOCUMENT["operations"].values():
        if operation["action"] == "receive":
            channel = DOCUMENT["channels"][operation["channel"]["$ref"].rpartition("/")[2]]
            address = channel["address"].replace("{job}", "*").replace("{execution_id}", "*")
            assert any(subjects.matches(wire, address) for wire in filters), address


def test_every_public_event_has_a_channel() -> None:
    published = {name for channel in DOCUMENT["channels"].values() for name in channel["messages"]}
    assert {event.__name__ for event in (CronTriggered, CronSkipped, CronMissed, CronAnswer)} <= published
