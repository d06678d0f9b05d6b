"""Effects of events on triggers, and refused triggers."""

from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import JsonValue

from tocsin import subjects
from tocsin.domain import cel
from tocsin.domain.definition import DefinitionError, EventTrigger, JobDefinition
from tocsin.domain.event_trigger import UnreadableEvent, in_circles, judge, read_event
from tocsin.domain.formats import read_job

AT = datetime(2026, 11, 26, 10, 0, tzinfo=UTC)


def definition(*triggers: dict[str, Any], name: str = "job") -> JobDefinition:
    return read_job({"name": name, "function": "f", "triggers": [*triggers]})


def trigger(**fields: Any) -> EventTrigger:  # noqa: ANN401 - fields as they are written
    return definition({"nats": "orders.>", **fields}).triggers[0]


@pytest.mark.parametrize(
    ("fields", "body", "verdict"),
    [
        ({}, {}, ("starts", None, {})),
        ({"when": "body.n > 1"}, {"n": 2}, ("starts", None, {})),
        ({"when": "body.n > 1"}, {"n": 1}, ("condition_false", None, None)),
        ({"when": "body.n"}, {"n": 1}, ("evaluation_failed", None, None)),
        ({"when": "body.n > 1"}, {}, ("evaluation_failed", None, None)),
        ({"key": "body.n"}, {"n": 7}, ("starts", "7", {})),
        ({"key": "body.n"}, {"n": "7"}, ("starts", "7", {})),
        ({"key": "body.n"}, {"n": True}, ("evaluation_failed", None, None)),
        ({"key": "body.n"}, {"n": 7.5}, ("evaluation_failed", None, None)),
        ({"key": "body.n"}, {"n": ""}, ("evaluation_failed", None, None)),
        ({"key": "body.n"}, {"n": "x" * 256}, ("evaluation_failed", None, None)),
        ({"input": {"a": "body.n", "b": "'x'"}}, {"n": [1, None]}, ("starts", None, {"a": [1, None], "b": "x"})),
        ({"input": {"a": "time"}}, {}, ("starts", None, {"a": "2026-11-26T10:00:00+00:00"})),
        ({"input": {"a": "[{'at': time}]"}}, {}, ("starts", None, {"a": [{"at": "2026-11-26T10:00:00+00:00"}]})),
        ({"input": {"a": "time - timestamp(body)"}}, "2026-11-26T09:58:59.5Z", ("starts", None, {"a": "60.5s"})),
        ({"input": {"a": "time - time"}}, {}, ("starts", None, {"a": "0s"})),
        ({"input": {"a": "{1: 2}"}}, {}, ("evaluation_failed", None, None)),
        ({"input": {"a": "body", "b": "body"}}, "x" * 40_000, ("evaluation_failed", None, None)),
    ],
)
def test_event_is_judged(fields: dict[str, Any], body: JsonValue, verdict: tuple[object, ...]) -> None:
    found = judge(trigger(**fields), cel.Event(body, "orders.new", {}, AT))
    assert (found.outcome, found.key, found.input) == verdict
    assert (found.reason is None) == (found.outcome == "starts")


@pytest.mark.parametrize(
    ("fields", "field", "code"),
    [
        ({}, "triggers[0]", "required"),
        ({"nats": "a", "job": "b"}, "triggers[0]", "exclusive-fields"),
        ({"job": "job"}, "triggers[0].job", "dependency-cycle"),
        ({"job": "b", "stream": "S"}, "triggers[0].stream", "exclusive-fields"),
        ({"nats": "a", "on": "failed"}, "triggers[0].on", "exclusive-fields"),
        ({"nats": "a", "on": "ended"}, "triggers[0].on", "unknown-choice"),
        ({"nats": ">"}, "triggers[0].nats", "invalid-subject"),
        ({"nats": "*.new"}, "triggers[0].nats", "invalid-subject"),
        ({"nats": "$JS.API.>"}, "triggers[0].nats", "invalid-subject"),
        ({"nats": "_INBOX.a"}, "triggers[0].nats", "invalid-subject"),
        ({"nats": "a..b"}, "triggers[0].nats", "invalid-subject"),
        ({"nats": "a b"}, "triggers[0].nats", "invalid-subject"),
        ({"nats": "a.>.b"}, "triggers[0].nats", "invalid-subject"),
        ({"nats": "a." * 200 + "b"}, "triggers[0].nats", "invalid-subject"),
        ({"nats": "a", "stream": "A.B"}, "triggers[0].stream", "invalid-value"),
        ({"nats": "a", "when": "body.x >"}, "triggers[0].when", "invalid-expression"),
        ({"nats": "a", "when": "'yes'"}, "triggers[0].when", "invalid-expression"),
        ({"nats": "a", "key": "[1]"}, "triggers[0].key", "invalid-expression"),
        ({"nats": "a", "input": {"x": "nope"}}, "triggers[0].input.x", "invalid-expression"),
        ({"nats": "a", "webhook": "/hooks/a"}, "triggers[0]", "exclusive-fields"),
        ({"nats": "a", "secret": "${env:A}"}, "triggers[0].secret", "exclusive-fields"),
        ({"job": "b", "signature": "stripe"}, "triggers[0].signature", "exclusive-fields"),
        ({"webhook": "/hooks/a", "on": "failed"}, "triggers[0].on", "exclusive-fields"),
        ({"webhook": "/hook/a"}, "triggers[0].webhook", "invalid-value"),
        ({"webhook": "/hooks/"}, "triggers[0].webhook", "invalid-value"),
        ({"webhook": "/hooks/../a"}, "triggers[0].webhook", "invalid-value"),
        ({"webhook": "/hooks/a b"}, "triggers[0].webhook", "invalid-value"),
        ({"webhook": "/hooks/" + "a" * 300}, "triggers[0].webhook", "invalid-value"),
        ({"webhook": "/hooks/a", "secret": "s3cret"}, "triggers[0].secret", "malformed-secret-reference"),
        ({"webhook": "/hooks/a", "secret": "x${env:A}"}, "triggers[0].secret", "malformed-secret-reference"),
        ({"webhook": "/hooks/a", "signature": "md5"}, "triggers[0].signature", "unknown-choice"),
        ({"webhook": "/hooks/a", "signature_header": "a b"}, "triggers[0].signature_header", "invalid-value"),
        (
            {"webhook": "/hooks/a", "signature": "standard-webhooks", "signature_header": "X"},
            "triggers[0].signature_header",
            "exclusive-fields",
        ),
        ({"webhook": "/hooks/a", "signature": "stripe"}, "triggers[0].key", "required"),
        ({"kv": "flags"}, "triggers[0].kv", "invalid-value"),
        ({"kv": "flags/"}, "triggers[0].kv", "invalid-value"),
        ({"kv": "a.b/>"}, "triggers[0].kv", "invalid-value"),
        ({"kv": "flags/a b"}, "triggers[0].kv", "invalid-value"),
        ({"kv": "flags/>.a"}, "triggers[0].kv", "invalid-value"),
        ({"object": "a b"}, "triggers[0].object", "invalid-value"),
        ({"object": "/prefix"}, "triggers[0].object", "invalid-value"),
        ({"nats": "a", "when": "operation == 'put'"}, "triggers[0].when", "invalid-expression"),
        ({"kv": "flags/>", "when": "object.size > 1"}, "triggers[0].when", "invalid-expression"),
        ({"nats": "a", "input": {str(n): "1" for n in range(51)}}, "triggers[0].input", "too-large"),
        ({"nats": "a", "record": "none"}, "triggers[0].record", "unknown-choice"),
        ({"nats": "a", "debounce": "0.9s"}, "triggers[0].debounce.quiet", "out-of-range"),
        ({"nats": "a", "debounce": "25h"}, "triggers[0].debounce.quiet", "out-of-range"),
        ({"nats": "a", "debounce": {"quiet": 30, "at_most": 29}}, "triggers[0].debounce.at_most", "out-of-range"),
        ({"nats": "a", "debounce": {"quiet": 30, "at_most": "25h"}}, "triggers[0].debounce.at_most", "out-of-range"),
        (
            {"nats": "a", "input": {"a": "1"}, "batch": {"max": 3, "within": 0}},
            "triggers[0].batch.within",
            "out-of-range",
        ),
        ({"nats": "a", "batch": {"max": 3, "within": 5}}, "triggers[0].input", "required"),
        (
            {"nats": "a", "input": {"a": "1"}, "key": "body.id", "batch": {"max": 3, "within": 5}},
            "triggers[0].key",
            "exclusive-fields",
        ),
        (
            {"nats": "a", "input": {"a": "1"}, "debounce": 5, "batch": {"max": 3, "within": 5}},
            "triggers[0].debounce",
            "exclusive-fields",
        ),
    ],
)
def test_wrong_trigger_is_refused(fields: dict[str, Any], field: str, code: str) -> None:
    with pytest.raises(DefinitionError) as refused:
        definition(fields)
    assert [(problem.field, problem.code) for problem in refused.value.problems] == [(field, code)]


def test_refused_stored_expression_fails_for_its_event() -> None:
    trigger = EventTrigger.model_construct(nats="orders.>", when='body.matches("[\\\\pL]{300}")')
    verdict = judge(trigger, cel.Event("x", "orders.new", {}, AT))
    assert (verdict.outcome, verdict.field) == ("evaluation_failed", "when")


def test_same_source_is_refused_twice() -> None:
    with pytest.raises(DefinitionError) as refused:
        definition({"nats": "a", "when": "body.x == 1"}, {"nats": "a"})
    assert [problem.code for problem in refused.value.problems] == ["duplicate-trigger"]
    with pytest.raises(DefinitionError) as many:
        definition(*({"nats": f"a.{number}"} for number in range(21)))
    assert [problem.code for problem in many.value.problems] == ["too-large"]


@pytest.mark.parametrize(
    "data", [b"{", b"[" * 70_000, b"[" * 70 + b"]" * 70, b"\xff", b'"\\ud800"', b"1" * 70_000, b"NaN"]
)
def test_message_that_is_no_event_is_unreadable(data: bytes) -> None:
    with pytest.raises(UnreadableEvent):
        read_event(data, "a", None, AT)


def test_headers_of_the_server_are_left_out() -> None:
    event = read_event(b"", "a", {"Nats-Msg-Id": "m", "nats-ttl": "1", "X": "y"}, AT)
    assert (event.body, event.headers) == (None, {"X": "y"})


def test_only_circles_are_found() -> None:
    jobs = {"a": ["b"], "b": ["c"], "c": ["a"], "d": ["a"], "e": ["d"], "f": []}
    definitions = [definition(*({"job": job} for job in upstream), name=name) for name, upstream in jobs.items()]
    assert in_circles(definitions) == {"a", "b", "c"}


@pytest.mark.parametrize(
    ("opened", "wanted", "is_covered"),
    [
        ("a.>", "a.b", True),
        ("a.>", "a.>", True),
        ("a.>", "a.*.c", True),
        ("a.>", "a", False),
        ("a.*", "a.*", True),
        ("a.*", "a.>", False),
        ("a.*", "a.b.c", False),
        ("a.b", "a.*", False),
        ("a.b", "a.b", True),
        ("a.*.c", "a.b.c", True),
        ("a.b.c", "a.b", False),
    ],
)
def test_filter_covers_another(opened: str, wanted: str, is_covered: bool) -> None:  # noqa: FBT001 - an expectation
    assert subjects.covers(opened, wanted) is is_covered


def test_refused_secret_is_not_shown() -> None:
    with pytest.raises(DefinitionError) as refused:
        definition({"webhook": "/hooks/a", "secret": "s3cret-of-github"})
    assert "s3cret" not in str(refused.value)
    assert "s3cret" not in repr(refused.value.problems)
