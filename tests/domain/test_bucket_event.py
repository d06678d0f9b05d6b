"""Events of buckets: entries and objects, as expressions see them."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import JsonValue

from tocsin.domain.bucket_event import entry_event, object_event, object_name, upload_of
from tocsin.domain.event_trigger import UnreadableEvent, judge
from tocsin.domain.formats import read_job

AT = datetime(2026, 11, 26, 10, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("data", "headers", "body", "operation"),
    [
        (b'{"on": true}', {}, {"on": True}, "put"),
        (b"blue", {}, "blue", "put"),
        (b"7", {}, 7, "put"),
        (b"NaN", {}, "NaN", "put"),
        (b"", {}, None, "put"),
        (b"", {"KV-Operation": "DEL"}, None, "delete"),
        (b"", {"KV-Operation": "PURGE"}, None, "delete"),
        (b"", {"Nats-Marker-Reason": "MaxAge"}, None, "delete"),
    ],
)
def test_entry_is_an_event(data: bytes, headers: dict[str, str], body: JsonValue, operation: str) -> None:
    event = entry_event(data, headers, AT, bucket="flags", key="a.b", revision=7)
    assert (event.body, event.subject) == (body, "flags/a.b")
    assert event.details == {"operation": operation, "key": "a.b", "revision": 7}


@pytest.mark.parametrize("data", [b"\xff", b"x" * 65_537])
def test_unreadable_entry_is_refused(data: bytes) -> None:
    with pytest.raises(UnreadableEvent):
        entry_event(data, {}, AT, bucket="flags", key="a", revision=1)


METADATA: dict[str, Any] = {
    "name": "in/a.csv",
    "bucket": "up",
    "nuid": "n1",
    "size": 3,
    "chunks": 1,
    "digest": "SHA-256=x",
}


def test_upload_and_deletion_are_two_events() -> None:
    put = object_event(json.dumps(METADATA).encode(), AT, bucket="up")
    gone = object_event(json.dumps({**METADATA, "deleted": True}).encode(), AT, bucket="up")
    renamed = object_event(json.dumps({**METADATA, "description": "d"}).encode(), AT, bucket="up")
    assert put.subject == "up/in/a.csv"
    assert [event.details["operation"] for event in (put, gone)] == ["put", "delete"]
    assert upload_of(put, "m1") == upload_of(renamed, "m2") != upload_of(gone, "m3")
    assert upload_of(object_event(b'{"name": "a"}', AT, bucket="up"), "m1") == "m1"


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b'{"name": 7}'])
def test_wrong_metadata_is_unreadable(data: bytes) -> None:
    with pytest.raises(UnreadableEvent):
        object_event(data, AT, bucket="up")


@pytest.mark.parametrize(("token", "name"), [("aW4vw7w_LmNzdg==", "in/ü?.csv"), ("!", None), ("_w==", None), ("", "")])
def test_subject_has_the_name_of_its_object(token: str, name: str | None) -> None:
    assert object_name(f"$O.up.M.{token}") == name


def test_expressions_see_details() -> None:
    fields = {
        "when": 'operation == "put" && object.size > 2',
        "input": {"name": "object.name", "digest": "object.digest"},
    }
    job = read_job(
        {"name": "j", "function": "f", "triggers": [{"object": "up", **fields}, {"kv": "flags/>", "key": "revision"}]}
    )
    upload, entry = job.triggers
    found = judge(upload, object_event(json.dumps(METADATA).encode(), AT, bucket="up"))
    assert (found.outcome, found.input) == ("starts", {"name": "in/a.csv", "digest": "SHA-256=x"})
    assert judge(entry, entry_event(b"1", {}, AT, bucket="flags", key="a", revision=7)).key == "7"
