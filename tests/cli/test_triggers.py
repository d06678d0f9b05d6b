"""`tocsin triggers test`, beside the log and over HTTP."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import pytest

from tests.cli.conftest import CallResult
from tests.cli.conftest import World as LocalWorld
from tests.cli.test_remote import call
from tests.domain.given import NOON
from tests.http.conftest import World
from tests.http.served import served
from tocsin import subjects
from tocsin.domain.definition import JobDefinition
from tocsin.domain.event_trigger import ignored_event
from tocsin.domain.events import EventReference
from tocsin.ports import EventLog
from tocsin.services.jobs import Registry

Call: TypeAlias = Callable[..., CallResult]
TRIGGERS = [
    {"nats": "orders.>", "when": "body.total > 100", "input": {"order": "body.id"}, "key": "body.id"},
    {"job": "extract", "on": "finished", "input": {"day": "body.day"}},
]


async def prepare(registry: Registry) -> None:
    schema = {"properties": {"order": {"type": "string"}}}
    fields = {"name": "invoice", "function": "f", "triggers": TRIGGERS, "input_schema": schema}
    await registry.define(JobDefinition.model_validate(fields))
    await registry.define(JobDefinition(name="plain", function="f"))


async def record(log: EventLog) -> None:
    """Two events that started nothing, the second with hostile texts."""
    for number, key in ((7, None), (8, "a\x1b[31m")):
        place = EventReference(stream="ORDERS", sequence=number, subject="orders.new", time=NOON)
        ignored = ignored_event("invoice", "0" * 32, place, "duplicate" if key else "condition_false", key, "0198")
        await log.publish(subjects.subject_of(ignored), ignored, message_id=f"{number}")


@pytest.fixture(params=["local", "remote"])
def tocsin(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Call]:
    if request.param == "local":
        world: LocalWorld = request.getfixturevalue("world")
        world.do(prepare(world.registry))
        world.do(record(world.log))
        yield world.call
        return

    async def prepared(world: World) -> None:
        await prepare(world.registry)
        await record(world.log)

    with served(tmp_path, prepared) as url:
        yield lambda *args: call(url, *args)


@pytest.mark.parametrize(
    ("event", "outcomes"),
    [
        ({"subject": "orders.new", "body": {"id": "a", "total": 120}}, ["starts", "other_source"]),
        ({"subject": "orders.new", "body": {"id": "a", "total": 12}}, ["condition_false", "other_source"]),
        ({"subject": "orders.new", "body": {}}, ["evaluation_failed", "other_source"]),
        ({"subject": "orders.new", "body": {"id": 7, "total": 120}}, ["refused", "other_source"]),
        ({"subject": "orders.new", "body": {"id": "a", "total": 120, "text": "x" * 70_000}}, ["evaluation_failed"] * 2),
        ({"subject": "extract.failed", "body": {"day": 1}}, ["other_source", "starts"]),
        ({"subject": "extract.skipped", "body": {"day": 1}}, ["other_source", "other_source"]),
    ],
)
def test_each_trigger_is_explained(tocsin: Call, tmp_path: Path, event: object, outcomes: list[str]) -> None:
    file = tmp_path / "event.json"
    file.write_text(json.dumps(event))
    answers = tocsin("triggers", "test", "invoice", "--event", str(file), "-o", "json").json
    assert [answer["outcome"] for answer in answers] == outcomes
    for answer in answers:
        assert (answer["reason"] is None) == (answer["outcome"] == "starts")
    page = tocsin("triggers", "test", "invoice", "--event", f"@{file}").out
    assert all(outcome in page for outcome in outcomes)


def test_events_with_one_key_name_one_execution(tocsin: Call) -> None:
    events = [json.dumps({"subject": "orders.new", "body": {"id": "a", "total": total}}) for total in (101, 102)]
    answers = [tocsin("triggers", "test", "invoice", "--event", event, "-o", "json").json[0] for event in events]
    assert answers[0] == answers[1]
    assert (answers[0]["key"], answers[0]["input"]) == ("a", {"order": "a"})
    assert answers[0]["execution_id"]


def test_events_that_started_nothing_are_listed(tocsin: Call) -> None:
    events = tocsin("triggers", "ignored", "invoice", "-o", "json").json
    assert [(event["sequence"], event["reason"]) for event in events] == [(7, "condition_false"), (8, "duplicate")]
    assert "\x1b" not in events[1]["key"]
    [last] = tocsin("triggers", "ignored", "invoice", "--limit", "1", "-o", "json").json
    assert last == events[1]
    [named] = tocsin("triggers", "ignored", "invoice", "--sequence", "7", "-o", "json").json
    assert named == events[0]
    page = tocsin("triggers", "ignored", "invoice").out
    assert "condition_false" in page
    assert "\x1b[31m" not in page
    assert "No event that started nothing" in tocsin("triggers", "ignored", "plain").out
    assert tocsin("triggers", "ignored", "nothing", "-o", "json").failure[1] == "job-not-found"


def test_job_without_triggers_says_so(tocsin: Call) -> None:
    assert "plain has no triggers" in tocsin("triggers", "test", "plain", "--event", '{"subject": "a"}').out


@pytest.mark.parametrize(
    ("event", "code"),
    [
        ("{", "invalid-json"),
        ("{}", "invalid-event"),
        ('{"subject": 1}', "invalid-event"),
        ("no-file", "unreadable-file"),
    ],
)
def test_wrong_event_is_refused(tocsin: Call, event: str, code: str) -> None:
    assert tocsin("triggers", "test", "invoice", "--event", event, "-o", "json").failure[1] == code
