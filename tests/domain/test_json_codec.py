"""Both readers of bodies agree about every class, every value and every damaged body; so do both writers."""

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from http import HTTPStatus
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.strategies import DataObject, SearchStrategy
from msgspec import structs
from pydantic import AwareDatetime, BaseModel, JsonValue, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import to_json

from tests.properties import examples
from tocsin import subjects
from tocsin.domain import events, json_codec
from tocsin.domain.definition import (
    Batch,
    Concurrency,
    Debounce,
    EventTrigger,
    JobDefinition,
    JobDependency,
    Notify,
    RecoveryPolicy,
    RetryPolicy,
    Step,
)
from tocsin.domain.definition.command import Command
from tocsin.domain.definition.container_work import Container, Resources
from tocsin.domain.definition.http_request import HttpRequest
from tocsin.domain.definition.partition import Partition
from tocsin.domain.definition.sql_work import ProcedureCall, SqlStatement
from tocsin.domain.events import Admitted, Due, Message, OwnMessage, Plan, PlannedStep, Trigger
from tocsin.domain.job_record import Registration
from tocsin.domain.json_codec import MAX_PART_BYTES
from tocsin.domain.schedule import DstPolicy

CLASSES: Final = (
    *(
        model
        for _, model in sorted(vars(events).items())
        if isinstance(model, type) and issubclass(model, Message) and model is not Message
    ),
    JobDefinition,
    Registration,
)
OWN: Final = tuple(kind for kind in CLASSES if isinstance(kind, type) and issubclass(kind, OwnMessage))
NOON: Final = datetime(2026, 3, 1, 12, tzinfo=UTC)
TEXTS: Final = st.text(st.characters(codec="utf-8"), max_size=8)
NUMBERS: Final = st.integers() | st.integers(-3, 300)
FLOATS: Final = st.floats(allow_nan=False, allow_infinity=False)
JSON: Final = st.recursive(
    st.none() | st.booleans() | NUMBERS | FLOATS | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
ZONES: Final = st.sampled_from([UTC, timezone(timedelta(hours=5, minutes=30)), timezone(timedelta(hours=-3))])
TIMES: Final = st.datetimes(min_value=datetime(1900, 1, 1), timezones=ZONES)  # noqa: DTZ001 - the zone is added
_DEFINITION: Final[Mapping[str, SearchStrategy[Any]]] = {
    "name": st.sampled_from(["a", "nightly-report"]),
    "schedule": st.sampled_from(["0 7 * * *", "no schedule any more"]),
    "timezone": st.sampled_from(["UTC", "Europe/Berlin", "Nowhere/Else"]),
    "function": st.sampled_from(["f", "reports.build"]),
    **dict.fromkeys(
        ("exclude", "only"),
        st.lists(
            st.fixed_dictionaries({"name": st.just("cz"), "days": st.just(["2026-12-24/2026-12-26"])}), max_size=2
        ),
    ),
    "blackout": st.lists(st.just({"from": "2026-12-20T18:00", "to": "2026-12-21T06:00", "reason": "é"}), max_size=2),
    "depends_on": st.lists(st.sampled_from(["a", "b"]), max_size=2),
    "queue": st.sampled_from(["default", "gpu"]),
    "tags": st.lists(st.sampled_from(["x", "y"]), max_size=2),
    "viewers": st.lists(st.sampled_from(["x", "y"]), max_size=2),
    "description": st.sampled_from(["", "é", "long " * 100]),
    "owner": st.just("ops"),
    "catch_up_limit": st.integers(1, 1_000),
    "max_waiting": st.integers(1, 100_000),
    "acknowledgements": st.none() | st.integers(1, 100),
    "priority": st.integers(-100, 100),
    "dst": st.builds(DstPolicy, st.sampled_from(["skip", "shift"]), st.sampled_from(["once", "both"])),
    **dict.fromkeys(
        (
            *("timeout", "execution_timeout", "starting_deadline", "retention", "catch_up_max_age"),
            *("dependency_timeout", "acknowledgement_timeout", "jitter"),
        ),
        st.floats(0.5, 1e6),
    ),
}
CHECKED: Final[Mapping[type[BaseModel], Mapping[str, SearchStrategy[Any]]]] = {
    RecoveryPolicy: {"max_deaths": st.integers(1, 20)},
    RetryPolicy: {
        "max_attempts": st.integers(1, 100),
        "initial_delay": st.floats(0, 1e6),
        "multiplier": st.floats(1, 1e6),
        "max_delay": st.floats(0, 1e6),
        "jitter": st.floats(0, 1),
        "non_retryable_errors": st.lists(st.sampled_from(["E", "a.*"]), max_size=2),
    },
    Command: {
        **dict.fromkeys(("argv", "interpreter"), st.lists(st.sampled_from(["x", "é"]), max_size=2)),
        **dict.fromkeys(("script", "cwd"), st.none() | st.sampled_from(["/x", "é"])),
        "env": st.dictionaries(st.sampled_from(["A", "B"]), st.sampled_from(["x", "é"]), max_size=2),
        "grace": st.floats(0, 30),
        "retryable_exit_codes": st.none() | st.lists(st.integers(1, 255), max_size=2),
        "max_cpu": st.none() | st.floats(0.5, 1e6),
        "max_memory": st.none() | st.integers(1_048_576, 2**40),
    },
    HttpRequest: {
        "url": st.sampled_from(["x", "é"]),
        "headers": st.dictionaries(st.sampled_from(["A", "B"]), st.sampled_from(["x", "é"]), max_size=2),
        "body": st.none() | st.sampled_from(["x", {"a": [1, None]}, [1.5]]),
        "success": st.lists(st.sampled_from(["200", "200-299"]), max_size=2),
    },
    SqlStatement: {
        "connection": st.just("dwh"),
        "statement": st.sampled_from(["SELECT 1", "é"]),
        "max_rows": st.integers(0, 1_000),
    },
    ProcedureCall: {"connection": st.just("dwh"), "name": st.sampled_from(["x", "é"])},
    Resources: dict.fromkeys(
        ("requests", "limits"),
        st.dictionaries(st.sampled_from(["cpu", "memory"]), st.sampled_from(["1", "2Gi"]), max_size=2),
    ),
    Container: {
        "image": st.sampled_from(["etl:1", "é"]),
        **dict.fromkeys(("command", "args"), st.lists(st.sampled_from(["x", "é"]), max_size=2)),
        "env": st.dictionaries(st.sampled_from(["A", "B"]), st.sampled_from(["x", "é"]), max_size=2),
        **dict.fromkeys(("namespace", "service_account", "template"), st.none() | st.just("batch")),
        "retryable_exit_codes": st.none() | st.lists(st.integers(1, 255), max_size=2),
        "grace": st.floats(0, 30),
    },
    events.UniqueRule: {"key": st.sampled_from(["0" * 64, "9f" * 32]), "period": st.none() | st.floats(0.5, 1e6)},
    Partition: {
        "single_shard": st.none() | st.just("north"),
        "shard_set": st.lists(st.sampled_from(["north", "south"]), unique=True, max_size=2),
        "shard_key": st.none() | st.sampled_from(["input.customer", "input.a.b-c"]),
    },
    JobDependency: {"job": st.sampled_from(["a", "b"]), "within": st.none() | st.floats(0.5, 1e6)},
    EventTrigger: {
        **dict.fromkeys(("nats", "stream", "job", "when", "key"), st.none() | st.sampled_from(["a", "body.id"])),
        **dict.fromkeys(("webhook", "secret", "kv", "object"), st.none() | st.sampled_from(["/hooks/a", "${env:A}"])),
        **dict.fromkeys(("signature_header", "delivery_header"), st.none() | st.just("X-Id")),
        "input": st.dictionaries(st.sampled_from(["a", "b"]), st.sampled_from(["body", "é"]), max_size=2),
    },
    Debounce: {"quiet": st.floats(1, 1e4), "at_most": st.none() | st.floats(1, 1e4)},
    Batch: {"max": st.integers(1, 500), "within": st.floats(0.1, 600)},
    Concurrency: {"limit": st.integers(1, 100_000), "key": st.sampled_from(["input.customer", "meta.a.b-c"])},
    Notify: {
        "channels": st.lists(st.sampled_from(["ops", "mail"]), unique=True, max_size=2),
        "must_complete_by": st.none() | st.just("07:00"),
        **dict.fromkeys(("late_after", "duration_over"), st.none() | st.floats(0.5, 1e6)),
    },
    Trigger: {"priority": st.integers(-100, 100)},
    Step: _DEFINITION,
    JobDefinition: {name: values for name, values in _DEFINITION.items() if name != "depends_on"},
    events.Enqueued: {"definition": st.just(JobDefinition(name="j", function="f", overlap_policy="allow"))},
}


def values_of(annotation: Any) -> SearchStrategy[Any]:  # noqa: ANN401, PLR0911 - a type as annotated; a case for each kind
    """Return values of a type, which the constraints of its field may still refuse."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        constraints = [c for one in arguments[1:] for c in (one.metadata if isinstance(one, FieldInfo) else (one,))]
        least = max(
            (getattr(one, "ge", None) or getattr(one, "min_length", None) or 0 for one in constraints), default=0
        )
        return st.integers(least) if arguments[0] is int else values_of(arguments[0])
    if origin in {Union, UnionType}:
        return st.one_of(*(values_of(member) for member in arguments))
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin is tuple:
        return st.lists(values_of(arguments[0]), max_size=2).map(tuple)
    if origin is dict:
        return st.dictionaries(TEXTS, values_of(arguments[1]), max_size=3)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel | Message):
        return messages(annotation)
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return st.sampled_from(annotation)
    plain = {NoneType: st.none(), str: TEXTS, int: NUMBERS, bool: st.booleans(), float: FLOATS}
    return {**plain, JsonValue: JSON, Any: JSON, datetime: TIMES, AwareDatetime: TIMES}[annotation]


def model_of(kind: Any) -> type[BaseModel]:  # noqa: ANN401 - a class of either kind
    """Return the pydantic model of a class."""
    model: type[BaseModel] = events.model_of(kind)
    return model


def messages(kind: Any) -> SearchStrategy[Any]:  # noqa: ANN401 - a class of either kind
    """Return valid messages of a class; each may leave out fields that have a default."""
    model = model_of(kind)
    own = CHECKED.get(model, {})
    required, optional = dict[str, SearchStrategy[Any]](), dict[str, SearchStrategy[Any]]()
    for name, field in model.model_fields.items():
        annotation = Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation
        strategy = own[name] if name in own else values_of(annotation)
        (required if field.is_required() else optional)[name] = strategy
    drawn = st.fixed_dictionaries(required, optional=optional)
    if model is Trigger:
        # Values that the constraints of these fields refuse, alone or together.
        unfit = {"backfill", "scheduled_time", "idempotency_key"}
        drawn = drawn.map(lambda given: {k: v for k, v in given.items() if k not in unfit})
        drawn |= st.just({"idempotency_key": "k"})
        drawn |= st.just({"backfill": "b", "scheduled_time": NOON})
    return drawn.map(lambda given: events.validated(kind, given))


def validated(kind: type, body: bytes) -> Any:  # noqa: ANN401 - a message of either kind
    """Read a body with pydantic alone; None: it refuses."""
    try:
        return events.validated(kind, body)
    except ValidationError:
        return None


def dumped(message: Any) -> bytes:  # noqa: ANN401 - a message of either kind
    """Write a message with pydantic alone, without the fields that have their default."""
    return re.sub(rb"(\d)e\+(\d)", rb"\1e\2", to_json(_kept(message)))  # pydantic writes 1e+16, msgspec 1e16


def _kept(value: Any) -> Any:  # noqa: ANN401 - a value of a field
    if isinstance(value, tuple):
        return [_kept(one) for one in value]
    if isinstance(value, OwnMessage):
        own = value.document()
    elif isinstance(value, BaseModel):
        own = json.loads(value.model_dump_json(exclude=_parts(value)))
    else:
        return value
    model = model_of(type(value))
    factories = structs.fields(value) if isinstance(value, OwnMessage) else ()
    written = {one.name for one in factories if callable(one.default_factory) and one.default_factory is not dict}
    kept = dict[str, Any]()
    for name, field in model.model_fields.items():
        part = getattr(value, name)
        default = field.get_default(call_default_factory=True)
        is_constant = get_origin(field.annotation) is Literal and len(get_args(field.annotation)) == 1
        is_default = not field.is_required() and part == default
        if part is not None and (not is_default or is_constant or name == "v" or name in written):
            shown = field.alias or name
            kept[shown] = _kept(part) if _has_parts(part) else own[shown]
    return kept


def _has_parts(value: Any) -> bool:  # noqa: ANN401 - a value of a field
    return isinstance(value, BaseModel | Message) or (isinstance(value, tuple) and any(map(_has_parts, value)))


def _parts(message: BaseModel) -> set[str]:
    return {name for name in type(message).model_fields if _has_parts(getattr(message, name))}


def same(left: Any, right: Any) -> bool:  # noqa: ANN401 - messages of either kind
    """Return whether two messages are equal, and their values of the same types."""
    return left == right and _text(left) == _text(right)


def _text(message: Any) -> str:  # noqa: ANN401 - a message of either kind
    text: str = events.as_model(message).model_dump_json()
    return text


def document(message: Any) -> dict[str, Any]:  # noqa: ANN401 - a message of either kind
    fields: dict[str, Any] = events.as_model(message).model_dump(mode="json", exclude_none=True)
    return fields


@pytest.mark.parametrize("model", CLASSES, ids=lambda model: model.__name__)
@settings(max_examples=examples(30))
@given(data=st.data())
def test_codecs_agree_on_every_message(model: type[Any], data: DataObject) -> None:
    message = data.draw(messages(model))
    body = json_codec.written(message)
    assert re.sub(rb"(\d)e\+(\d)", rb"\1e\2", body) == dumped(message)
    for stored in (
        body,
        json.dumps(document(message)).encode(),
    ):  # an old version stored the second
        read = json_codec.read(model, stored) if model in OWN else validated(model, stored)
        assert read is not None, "msgspec reads every body of a struct that Tocsin writes"
        again = validated(model, stored)
        assert again is not None
        assert same(read, again)
        assert same(read, message)
        assert json_codec.written(read) == body


UNREAD: Final = b"1" * 5_000
"""An integer that pydantic's parser refuses wherever it stands."""
ODD: Final = (
    *(b"null", b"true", b"0", b"1", b"2", b"-1", b"1.0", b"1e2", b"1.5", b"-0", b"-0.0", b"1e400", b"NaN", b"Infinity"),
    *(b'"1"', b'"true"', b'""', b'"x"', b"[]", b"{}", b"[1]", b'{"a":1}', b"[[]]", b"[null]", b"1" * 30, UNREAD),
    *(b'"\\ud800"', b'"\xff"', b'"\xed\xa0\x80"', b'"\\u0000"', b'"a\x01"', b'"' + b"x" * 300 + b'"', b'"\\q"'),
    *(b'"2026-01-01T00:00:00Z"', b'"2026-01-01T00:00:00"', b'"2026-01-01"', b'"2026-01-01 00:00:00+02:00"'),
    *(b'"2026-01-01T00:00:00.9999990Z"', b'"2026-01-01T24:00:00Z"', b"1767225600", b'"1767225600"', b'"30s"'),
    *(b"[" * depth + b"]" * depth for depth in (150, 199, 250, 1_200)),
    *(b'{"a":' * depth + b"1" + b"}" * depth for depth in (150, 199, 250, 1_200)),
)
"""Values that readers of JSON disagree about, or that few fields accept."""


@pytest.mark.parametrize("model", OWN, ids=lambda model: model.__name__)
@settings(max_examples=examples(30))
@given(data=st.data())
def test_codecs_agree_on_every_damaged_body(model: type[Any], data: DataObject) -> None:
    fields = json.loads(json_codec.written(data.draw(messages(model))))
    body = data.draw(_damaged(model, fields))
    read, expected = json_codec.read(model, body), validated(model, body)
    if read is not None:  # otherwise pydantic decides, as it does here
        assert expected is not None, "msgspec accepts no body that pydantic rejects"
        assert same(read, expected)


@st.composite
def _damaged(draw: st.DrawFn, model: type, fields: dict[str, Any]) -> bytes:
    """Return a body with one thing changed: a value, a field, or bytes."""
    names = [*model_of(model).model_fields, "unknown"]
    how = draw(st.sampled_from(["value", "inner value", "drop", "twice", "bytes", "cut"]))
    body = json.dumps(fields, ensure_ascii=False).encode()
    if how == "bytes":
        at = draw(st.integers(0, len(body)))
        return body[:at] + draw(st.binary(max_size=3)) + body[at + draw(st.integers(0, 3)) :]
    if how == "cut":
        return body[: draw(st.integers(0, len(body)))]
    name, odd = draw(st.sampled_from(names)), draw(st.sampled_from(ODD))
    if how == "twice":
        pair = json.dumps(name).encode() + b":" + odd
        rest = body[1:] if len(body) == 2 else b"," + body[1:]
        is_first = draw(st.booleans()) and odd != UNREAD  # of two values, the fast reader reads the last
        return b"{" + pair + rest if is_first else body[:-1] + b"," * bool(fields) + pair + b"}"
    if how == "drop":
        return json.dumps({key: value for key, value in fields.items() if key != name}).encode()
    within = fields
    while how == "inner value" and (inner := _objects(within)):
        within = draw(st.sampled_from(inner))
        name = draw(st.sampled_from([*within, "unknown"]))
    within[name] = "@odd@"
    return json.dumps(fields, ensure_ascii=False).encode().replace(b'"@odd@"', odd)


def _objects(fields: dict[str, Any]) -> list[dict[str, Any]]:
    values = [one for value in fields.values() for one in (value if isinstance(value, list) else [value])]
    return [one for one in values if isinstance(one, dict)]


def test_defaults_are_not_written() -> None:
    due = Due(job="j", scheduled_time=NOON, definition=3, catch_up=False)
    assert due.encode() == b'{"v":1,"job":"j","type":"due","scheduled_time":"2026-03-01T12:00:00Z","definition":3}'


def test_public_events_are_written_whole() -> None:
    skipped = events.CronSkippedData(
        cron_name="j", cron_expression="* * * * *", timezone="UTC", reason="disabled", scheduled_time=NOON
    )
    envelope = events.EnvelopeData(
        job_name="j",
        execution_id="x",
        function="f",
        attempt=1,
        timeout=1,
        step="s",
        token="t",
        scheduled_time=NOON,
        trigger="cron",
        fence=3,
    )
    assert json.loads(skipped.encode()) == skipped.document(exclude_none=True)
    assert json.loads(envelope.encode()) == envelope.document(exclude_none=True)
    given_fields = {name: value for name, value in structs.asdict(envelope).items() if name != "input"}
    assert events.EnvelopeData(**given_fields).input is not envelope.input


NO_JSON: Final = (object(), 1j, b"\xff", {b"\xff"}, [object()], [{"a": object()}], events.Foreign)
"""Values that no field accepts."""
DERIVED: Final = {
    base: type(f"Derived{base.__name__}", (base,), {}) for base in (str, int, float, datetime, dict, list)
}


@pytest.mark.parametrize("kind", OWN, ids=lambda k: k.__name__)
@settings(max_examples=1)
@given(data=st.data())
def test_wrong_value_never_becomes_a_body(kind: type[Any], data: DataObject) -> None:
    message = data.draw(messages(kind))
    for field in structs.fields(kind):
        for value in NO_JSON:
            with pytest.raises(events.InvalidMessage, match=f"^{kind.__name__}: `{field.encode_name}"):
                message.changed(**{field.name: value}).encode()
        for value in (None, 42, 1.5, "x", b"x", [], {}, (1,), NOON, Decimal("1.5"), UUID(int=1), float("nan"), 2**70):
            try:
                body = message.changed(**{field.name: value}).encode()
            except events.InvalidMessage as error:
                assert f"`{field.encode_name}" in str(error)  # noqa: PT017 - it may be accepted, too
            else:
                assert json_codec.read(kind, body) is not None
                assert validated(kind, body) is not None


def test_deep_value_never_becomes_a_body() -> None:
    deep: list[Any] = []
    loop = deep
    for _ in range(250):
        deep = [deep]
    for _ in range(2):
        with pytest.raises(events.InvalidMessage, match=r"[Rr]ecursion"):
            events.Failure(type="E", details={"deep": deep}).encode()
        loop.append(deep)


def test_part_of_a_checked_message_is_checked() -> None:
    wrong: Any = 42
    with pytest.raises(ValidationError, match=r"by\.identity"):
        Trigger(by=events.Actor(identity=wrong))


@pytest.mark.parametrize(
    ("value", "kind", "field"),
    [
        (DERIVED[str]("no route"), events.Failure, "message"),
        (DERIVED[float](1.5), events.Failure, "retry_after"),
        (DERIVED[int](3), events.StartRate, "limit"),
        (HTTPStatus.OK, events.StartRate, "limit"),
        (DERIVED[datetime](2026, 3, 1, 12, tzinfo=UTC), events.Death, "at"),
        (DERIVED[datetime](2026, 3, 1, 12, tzinfo=UTC), Due, "scheduled_time"),
        (DERIVED[dict](a=[DERIVED[str]("x")]), events.Failure, "details"),
        ({"a": DERIVED[list]([DERIVED[int](1)])}, events.Failure, "details"),
    ],
)
def test_derived_values_are_written_as_their_base(value: Any, kind: type[Any], field: str) -> None:  # noqa: ANN401
    given = {"type": "E", "key": "k", "limit": 1, "per": 1.0, "burst": 1, "agent": "a", "job": "j", "definition": 1}
    known = getattr(kind, "__struct_fields__", ("job", "definition"))
    message = kind(**{name: own for name, own in given.items() if name in known} | {field: value})
    read = validated(kind, message.encode())
    assert getattr(read, field) == value
    assert type(getattr(read, field)) in value.__class__.__mro__
    assert b"+00:00" not in message.encode()


def plan(**fields: Any) -> Plan:  # noqa: ANN401 - any field of a plan
    return Plan(definition=7, steps=(PlannedStep(name="main", function="f", timeout=300.0),), **fields)


def admitted(execution_id: str, plan: Plan) -> Admitted:
    return Admitted(job="j", execution_id=execution_id, scheduled_time=NOON, trigger="api", plan=plan)


def test_equal_plans_are_read_as_one_object() -> None:
    first, second = (json_codec.read(Admitted, admitted(name, plan()).encode()) for name in ("a", "b"))
    assert first is not None
    assert second is not None
    assert first.plan is second.plan


def test_large_plans_are_not_kept() -> None:
    large = admitted("a", plan(input={"text": "x" * MAX_PART_BYTES})).encode()
    first, second = json_codec.read(Admitted, large), json_codec.read(Admitted, large)
    assert first == second
    assert first is not None
    assert second is not None
    assert first.plan is not second.plan


def test_plan_read_from_body_is_written_alike() -> None:
    old = json.dumps(admitted("a", plan()).document(exclude_none=True)).encode()
    read = json_codec.read(Admitted, old)
    assert read is not None
    assert read.encode() == admitted("a", plan()).encode()


def test_copy_of_read_message_can_change() -> None:
    read = validated(Trigger, b'{"reason":"r"}')
    assert read is not None
    assert read.model_copy(update={"reason": "s"}) == Trigger(reason="s")
    assert read == Trigger(reason="r")


@pytest.mark.parametrize(
    "body",
    [
        {"traceparent": "00-a"},
        {"priority": 5},
        {"priority": 5, "traceparent": "00-a"},
        {"priority": 5, "traceparent": None},
        {"priority": None},
        {"v": 1, "type": "trigger", "priority": 5},
        {"reason": "r", "traceparent": "00-a"},
        {"input": None, "priority": 5},
        {"input": {}, "priority": 5},
        {},
    ],
)
def test_shared_names_alone_are_an_input(body: dict[str, object]) -> None:
    read = subjects.decode("trigger.nightly", json.dumps(body).encode())
    is_bare = any(body.values()) and body.keys() <= {"priority", "traceparent"}
    assert (read.document()["input"] == body) is is_bare
