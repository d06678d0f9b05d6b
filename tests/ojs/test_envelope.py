"""Every invalid envelope has an answer: which field is wrong, why, and with which status."""

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import pytest

from tests.ojs.runner import cases
from tocsin.adapters.http.api.problems import Problem
from tocsin.adapters.http.ojs import envelope, workflow_envelope
from tocsin.adapters.http.ojs.envelope import _POLICIES, Defaults
from tocsin.domain.events import Actor, Enqueued

MADE: Final = "0193a5b0-0000-7000-8000-000000000001"
DEFAULTS: Final = Defaults(now=datetime(2026, 1, 1, tzinfo=UTC), timeout=300)
HUGE: Final = 10**400
OWN: Final = {name: field.description for name, field in envelope._Envelope.model_fields.items()}
OF_POLICIES: Final = {
    f"{p}.{n}": f.description for p, model in _POLICIES.items() for n, f in model.model_fields.items()
}
RULES: Final = OWN | OF_POLICIES
KINDS: Final = {"retry": (422, "invalid-retry-policy"), "pending": (422, "unsupported")}

INVALID: Final[list[tuple[Mapping[str, Any], str, str]]] = [
    ({"type": "A.b"}, "type", "type"),
    ({"type": "a..b"}, "type", "type"),
    ({"type": 1}, "type", "type"),
    ({"type": "a\n"}, "type", "type"),
    ({"type": "a" * 201}, "type", "type"),
    ({"args": {}}, "args", "args"),
    ({"args": None}, "args", "args"),
    ({"id": "1"}, "id", "id"),
    ({"options": []}, "options", "options"),
    ({"meta": "x"}, "meta", "meta"),
    ({"options": {"queue": "-a"}}, "options.queue", "queue"),
    ({"queue": "a" * 256}, "queue", "queue"),
    ({"options": {"priority": 101}}, "options.priority", "priority"),
    ({"priority": True}, "priority", "priority"),
    ({"priority": "high"}, "priority", "priority"),
    ({"rate_limit": 5}, "rate_limit", "rate_limit"),
    ({"options": {"pending": True}}, "options.pending", "pending"),
    ({"pending": "yes"}, "pending", "pending"),
    ({"pending": 0}, "pending", "pending"),
    ({"pending": True, "options": {"pending": False}}, "pending", "pending"),
    ({"pending": False, "options": {"pending": True}}, "options.pending", "pending"),
    ({"rate_limit": {"key": ""}}, "rate_limit.key", "rate_limit.key"),
    ({"rate_limit": {"max_per_second": 0.5}}, "rate_limit.max_per_second", "rate_limit.max_per_second"),
    ({"rate_limit": {"rate": {"limit": 1}}}, "rate_limit.rate", "rate_limit.rate"),
    ({"rate_limit": {"throttle": []}}, "rate_limit.throttle", "rate_limit.throttle"),
    ({"rate_limit": {"on_limit": "drop"}}, "rate_limit.on_limit", "rate_limit.on_limit"),
    ({"priority": 1.0}, "priority", "priority"),
    ({"options": {"tags": [1]}}, "options.tags", "tags"),
    ({"options": {"timeout_ms": -1}}, "options.timeout_ms", "timeout_ms"),
    ({"timeout_ms": HUGE}, "timeout_ms", "timeout_ms"),
    ({"options": {"visibility_timeout_ms": 0}}, "options.visibility_timeout_ms", "visibility_timeout_ms"),
    ({"timeout": "1s"}, "timeout", "timeout"),
    ({"timeout": True}, "timeout", "timeout"),
    ({"options": {"delay_until": "tomorrow"}}, "options.delay_until", "start_at"),
    ({"scheduled_at": "2026-11-20T10:00:00"}, "scheduled_at", "start_at"),
    ({"scheduled_at": "+P9000000D"}, "scheduled_at", "start_at"),
    ({"options": {"expires_at": "+5S"}}, "options.expires_at", "expires_at"),
    ({"retry": "no"}, "retry", "retry"),
    ({"retry": {"max_attempts": -1}}, "retry.max_attempts", "retry.max_attempts"),
    ({"options": {"retry": {"max_attempts": None}}}, "retry.max_attempts", "retry.max_attempts"),
    ({"retry": {"backoff_coefficient": 0.5}}, "retry.backoff_coefficient", "retry.backoff_coefficient"),
    ({"retry": {"backoff_coefficient": float("inf")}}, "retry.backoff_coefficient", "retry.backoff_coefficient"),
    ({"retry": {"backoff_strategy": "random"}}, "retry.backoff_strategy", "retry.backoff_strategy"),
    ({"retry": {"backoff_strategy": []}}, "retry.backoff_strategy", "retry.backoff_strategy"),
    ({"retry": {"jitter": 0.1}}, "retry.jitter", "retry.jitter"),
    ({"retry": {"on_exhaustion": "keep"}}, "retry.on_exhaustion", "retry.on_exhaustion"),
    ({"retry": {"non_retryable_errors": "X"}}, "retry.non_retryable_errors", "retry.non_retryable_errors"),
    ({"retry": {"initial_interval": "soon"}}, "retry.initial_interval", "retry.initial_interval"),
    ({"retry": {"initial_interval_ms": HUGE}}, "retry.initial_interval_ms", "retry.initial_interval_ms"),
    ({"retry": {"max_interval": []}}, "retry.max_interval", "retry.max_interval"),
    ({"retry": {"max_interval_ms": "1"}}, "retry.max_interval_ms", "retry.max_interval_ms"),
    ({"unique": []}, "unique", "unique"),
    ({"unique": {"keys": ["argz"]}}, "unique.keys", "unique.keys"),
    ({"unique": {"keys": ["type", "type"]}}, "unique.keys", "unique.keys"),
    ({"unique": {"keys": ["args"], "args_keys": ["user"]}}, "unique.args_keys", "unique.args_keys"),
    ({"unique": {"keys": ["meta"]}}, "unique.meta_keys", "unique.meta_keys"),
    ({"unique": {"keys": ["meta"], "meta_keys": []}}, "unique.meta_keys", "unique.meta_keys"),
    ({"unique": {"period": "1 hour"}}, "unique.period", "unique.period"),
    ({"options": {"unique": {"states": ["done"]}}}, "unique.states", "unique.states"),
    ({"unique": {"on_conflict": "drop"}}, "unique.on_conflict", "unique.on_conflict"),
]


def read(body: object) -> Enqueued:
    return envelope.read(body, MADE, DEFAULTS, Actor(identity="ada"))


def refused(body: object) -> Problem:
    with pytest.raises(Problem) as caught:
        read(body)
    return caught.value


def of_suite() -> Iterator[Any]:
    """Yield the bodies that the conformance suite expects to be refused."""
    for case in cases():
        for step in case.steps:
            status = str(step.get("assertions", {}).get("status"))
            if step.get("path") == "/ojs/v1/jobs" and "body" in step and any(code in status for code in ("400", "422")):
                yield pytest.param(step["body"], id=f"{case.id}-{step['id']}")


@pytest.mark.parametrize(("change", "field", "rule"), INVALID)
def test_invalid_field_is_answered_by_its_rule(change: Mapping[str, Any], field: str, rule: str) -> None:
    problem = refused({"type": "mail.send", "args": [], **change})
    [error] = problem.errors
    assert (error.field, error.right) == (field, RULES[rule])
    assert (problem.status, problem.kind) == KINDS.get(rule.partition(".")[0], (400, "invalid-request"))
    assert problem.detail == f"`{field}` is {error.value}: {error.right}"


def test_every_rule_has_an_invalid_example() -> None:
    assert {rule for _, _, rule in INVALID} == set(RULES)


@pytest.mark.parametrize("secret", ["${env:TOKEN}", "${file:/run/secrets/token}"])
@pytest.mark.parametrize("kind", ["job", "workflow"])
def test_args_refer_to_no_secret(kind: str, secret: str) -> None:
    """Args often have the text of an end user, who must not choose what a handler gets."""
    job = {"type": "mail.send", "args": [{"name": [f"Ada {secret}"]}]}
    if kind == "job":
        problem = refused(job)
        assert read({"type": "mail.send", "args": ["$${env:TOKEN} costs $5"]}).definition.args
    else:
        with pytest.raises(Problem) as caught:
            workflow_envelope.read({"type": "chain", "steps": [job]}, MADE, DEFAULTS, Actor(identity="ada"))
        problem = caught.value
    [error] = problem.errors
    assert (problem.status, error.value) == (400, f'"{secret}"')
    assert error.field == ("args" if kind == "job" else "steps[0].args")
    assert "$${" in (error.right or "")


@pytest.mark.parametrize("field", ["type", "args"])
def test_required_field_is_named_if_absent(field: str) -> None:
    problem = refused({name: value for name, value in {"type": "a", "args": []}.items() if name != field})
    assert (problem.status, problem.kind, problem.errors[0].field) == (400, "invalid-request", field)
    assert problem.errors[0].value is None


@pytest.mark.parametrize("body", list(of_suite()))
def test_suite_envelope_is_refused_with_its_field(body: dict[str, Any]) -> None:
    problem = refused(body)
    assert problem.status in {400, 422}
    assert problem.errors[0].field.removeprefix("options.").partition(".")[0] in {
        *("type", "args", "id", "priority", "queue", "retry", "unique")
    }


def test_options_precede_the_fields_next_to_them() -> None:
    body = {"type": "a", "args": [], "queue": "Invalid", "options": {"queue": "valid", "timeout_ms": 5}, "timeout": "x"}
    definition = read(body).definition
    assert (definition.queue, definition.timeout) == ("valid", 0.005)


def test_milliseconds_precede_iso_durations() -> None:
    retry = {"initial_interval_ms": 250, "initial_interval": "ignored", "max_interval": "PT1M"}
    policy = read({"type": "a", "args": [], "retry": retry}).definition.retry
    assert (policy.initial_delay, policy.max_delay) == (0.25, 60)


def test_first_invalid_field_decides_the_answer() -> None:
    assert refused({"type": "A", "args": 1, "retry": 1}).errors[0].field == "type"
    assert refused({"type": "a", "args": 1, "retry": 1}).status == 422


def test_expiry_is_kept_as_written_unless_relative() -> None:
    for written, kept in (("2027-01-01T00:00:00Z", "2027-01-01T00:00:00Z"), ("+PT5S", "2026-01-01T00:00:05Z")):
        meta = json.loads(read({"type": "a", "args": [], "expires_at": written}).model_dump_json())["definition"][
            "meta"
        ]
        assert meta["ojs"]["expires_at"] == kept


TRACEPARENT: Final = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.mark.parametrize(
    ("meta", "header", "expected"),
    [
        ({"traceparent": TRACEPARENT}, TRACEPARENT.replace("4736", "4737"), TRACEPARENT),
        ({}, TRACEPARENT, TRACEPARENT),
        ({"traceparent": 7}, TRACEPARENT, TRACEPARENT),
        ({"traceparent": "nonsense"}, None, None),
        ({}, "nonsense", None),
    ],
)
def test_job_continues_the_trace_of_its_sender(meta: dict[str, Any], header: str | None, expected: str | None) -> None:
    """ojs-distributed-tracing §6.1 and §6.2: it is read from `meta`, which stays as it was sent."""
    defaults = Defaults(now=DEFAULTS.now, timeout=DEFAULTS.timeout, traceparent=header)
    request = envelope.read({"type": "a", "args": [], "meta": meta}, MADE, defaults, Actor(identity="ada"))
    assert request.traceparent == expected
    assert {name: value for name, value in request.definition.meta.items() if name != envelope.META_KEY} == meta


@pytest.mark.parametrize(("name", "number"), [("HIGH", 3), ("NORMAL", 2), ("LOW", 1)])
def test_named_priorities_are_numbers(name: str, number: int) -> None:
    assert read({"type": "a", "args": [], "options": {"priority": name}}).definition.priority == number
