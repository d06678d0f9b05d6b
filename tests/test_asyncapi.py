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
from tocsin.domain.events import CronAlert, CronAnswer, CronMissed, CronSkipped, CronTriggered
from tocsin.settings import Settings
from tocsin.stages import STAGES

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
        Draft202012Validator(message.get("headers", {})).validate(example.get("headers", {}))


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
    assert {event.__name__ for event in (CronTriggered, CronSkipped, CronMissed, CronAnswer, CronAlert)} <= published


STAGES_DOCUMENT: Final[dict[str, Any]] = json.loads(
    (Path(__file__).parents[1] / "schemas" / "stages.asyncapi.json").read_text(encoding="utf-8")
)


def test_document_of_the_stages_follows_asyncapi() -> None:
    parsed = ApplicationSchema.model_validate(STAGES_DOCUMENT)
    assert parsed.operations.keys() == parsed.channels.keys() == STAGES_DOCUMENT["channels"].keys()


def test_document_has_every_filter_of_every_durable() -> None:
    settings = Settings.model_validate(
        {"queues": {"outside": {"transport": "mq"}, "matched": {"transport": "matched"}}}
    )
    consumed = {
        (subscription.durable, Names().to_wire(subject))
        for stage in STAGES
        for subscription in stage.subscriptions
        for subject in subscription.spec(settings).filters
    }
    described = {
        (durable, channel["address"])
        for channel in STAGES_DOCUMENT["channels"].values()
        for durable in channel["messages"]
    }
    assert described == consumed


@pytest.mark.parametrize(
    "log", sorted((Path(__file__).parent / "histories").glob("*.expected.json")), ids=lambda path: path.name
)
def test_stored_messages_fit_the_document(log: Path) -> None:
    """A message is one event or input, although a stage receives a batch."""
    checked = 0
    for line in log.with_name(log.name.replace(".expected.json", ".jsonl")).read_text(encoding="utf-8").splitlines():
        stored = json.loads(line)
        for channel in STAGES_DOCUMENT["channels"].values():
            if subjects.matches(channel["address"], Names().to_wire(stored["subject"])):
                (durable,) = channel["messages"]
                payload = STAGES_DOCUMENT["components"]["messages"][durable]["payload"]
                schema = {**payload, "components": STAGES_DOCUMENT["components"]}
                Draft202012Validator(schema).validate(stored["body"])
                checked += 1
    assert checked > 10
