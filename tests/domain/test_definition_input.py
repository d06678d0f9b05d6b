"""A job's input (hip-62, Job Input Sanitization): plain JSON, of a size, with well-formed references, after its schema."""

from typing import Any

import pytest
from pydantic import JsonValue, ValidationError

from tocsin.domain.definition import MAX_STEPS, STORED, DefinitionError, JobDefinition, Step, check_input

SCHEMA: dict[str, JsonValue] = {
    "type": "object",
    "properties": {"top_k": {"type": "integer"}, "models": {"type": "array", "items": {"$ref": "#/$defs/model"}}},
    "required": ["top_k"],
    "$defs": {"model": {"type": "string"}},
}


def refusals(**fields: Any) -> list[str]:  # noqa: ANN401 - the fields of a definition
    with pytest.raises(ValidationError) as refused:
        JobDefinition(**{"name": "job", "function": "f", "schedule": "@daily", **fields})
    found = []
    for details in refused.value.errors():
        cause = details["ctx"]["error"]
        found += [str(problem) for problem in cause.problems] if isinstance(cause, DefinitionError) else [str(cause)]
    return found


def problems_of(**fields: Any) -> list[tuple[str, str, str | None]]:  # noqa: ANN401 - the fields of a definition
    """The code, the field and the step of each problem."""
    with pytest.raises(ValidationError) as caught:
        JobDefinition(**{"name": "job", "schedule": "@daily", **fields})
    causes = [details["ctx"]["error"] for details in caught.value.errors()]
    return [(problem.code, problem.field, problem.step) for cause in causes for problem in cause.problems]


def loop() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


def laughs() -> list[Any]:
    """Thirty lines of YAML aliases can say this; written out it has 2^30 elements."""
    value: list[Any] = ["ha"]
    for _ in range(30):
        value = [value, value]
    return value


def test_input_limit_is_exactly_64_kib() -> None:
    room = 65_536 - len('{"a":""}')
    JobDefinition(name="job", function="f", input={"a": "x" * room})
    assert problems_of(function="f", input={"a": "x" * (room + 1)}) == [("too-large", "input", None)]


def test_input_and_args_are_counted_together_in_bytes() -> None:
    room = 65_536 - len('{"a":""}') - len('[""]')
    JobDefinition(name="job", function="f", input={"a": "ä" * 20_000}, args=("x" * (room - 40_000),))
    too_large = problems_of(function="f", input={"a": "ä" * 20_000}, args=("x" * (room - 39_999),))
    assert too_large == [("too-large", "input", None)]


def test_a_step_s_own_input_counts_for_itself() -> None:
    steps = (Step(name="small", function="f"), Step(name="large", function="f", input={"a": "x" * 70_000}))
    assert problems_of(dag=steps) == [("too-large", "input", "large")]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (float("nan"), "JSON has no infinity and no NaN"),
        (float("inf"), "JSON has no infinity and no NaN"),
        ({1: "a"}, "the key 1 is no text: put it in quotes"),
        ({True: "a"}, "the key true is no text: put it in quotes"),
        (2**64, "an integer of more than 64 bits: write it as text"),
        ("a\0b", "a character that cannot be stored (U+0000 or half a surrogate pair)"),
        ("\ud800", "a character that cannot be stored (U+0000 or half a surrogate pair)"),
        ({"\ud800": 1}, "a character that cannot be stored (U+0000 or half a surrogate pair)"),
        (b"x", "b'x' (bytes) is nothing that JSON knows: put it in quotes"),
        (loop(), "nested more than 64 levels deep"),
        (laughs(), "more than 65,536 values: keep large data in a store and refer to it"),
    ],
    ids=["nan", "inf", "key", "on", "large", "nul", "half", "half key", "bytes", "loop", "laughs"],
)
def test_only_plain_json(value: object, reason: str) -> None:
    assert refusals(input={"x": value}) == [reason]
    assert refusals(args=(value,)) == [reason]
    assert refusals(meta={"x": value}) == [reason]


def test_references_are_kept_and_malformed_references_refused() -> None:
    job = JobDefinition(name="job", function="f", input={"token": "${env:TOKEN}"})
    assert job.input == {"token": "${env:TOKEN}"}
    assert problems_of(function="f", input={"token": "${env:}"}, args=("${vault:X}",)) == [
        ("malformed-secret-reference", "input", None),
        ("malformed-secret-reference", "args", None),
    ]


def test_only_a_definition_refers_to_secrets() -> None:
    job = JobDefinition(name="job", function="f", input={"token": "${env:TOKEN}"}, args=("${env:TOKEN}",))
    check_input(job, {"token": "${env:TOKEN}", "price": "$${5}"}, ["${env:TOKEN}"])
    cases: list[tuple[dict[str, JsonValue], list[JsonValue] | None]] = [
        ({"name": "${env:TOKEN}"}, None),
        ({"a": [{"b": "x${env:OTHER}"}]}, None),
        ({}, ["${env:OTHER}"]),
    ]
    for given, args in cases:
        with pytest.raises(DefinitionError) as refused:
            check_input(job, given, args)
        assert [problem.code for problem in refused.value.problems] == ["secret-reference-not-allowed"]


def test_input_follows_its_schema() -> None:
    JobDefinition(name="job", function="f", input={"top_k": 5, "models": ["a"]}, input_schema=SCHEMA)
    assert problems_of(function="f", input={"models": ["a", 1]}, input_schema=SCHEMA) == [
        ("schema-mismatch", "input.models.1", None),
        ("schema-mismatch", "input", None),
    ]


ITEM: dict[str, JsonValue] = {
    "type": "object",
    "properties": {"sku": {"type": "string", "minLength": 1}},
    "required": ["sku", "price"],
}
CAT: dict[str, JsonValue] = {"type": "object", "properties": {"kind": {"const": "cat"}, "lives": {"type": "integer"}}}
DOG: dict[str, JsonValue] = {"type": "object", "properties": {"kind": {"const": "dog"}, "toys": {"type": "integer"}}}
PUPPY: dict[str, JsonValue] = {
    "properties": {"kind": {"enum": ["dog", "puppy"], "type": "string"}, "toys": {"type": "integer"}},
    "required": ["toys"],
}
E_MAIL: dict[str, JsonValue] = {"properties": {"format": {"enum": ["html", "text"]}}, "required": ["address"]}
TEXT_MESSAGE: dict[str, JsonValue] = {"properties": {"number": {"type": "string"}}, "required": ["number"]}
TREE: dict[str, JsonValue] = {
    "type": "object",
    "properties": {"left": {"anyOf": [{"$ref": "#/$defs/Tree"}, {"type": "null"}]}},
}


@pytest.mark.parametrize(
    ("alternatives", "value", "fields"),
    [
        ([{"type": "array", "items": ITEM}, {"type": "null"}], [{"sku": ""}], [".0", ".0.sku"]),
        ([{"$ref": "#/$defs/Tree"}, {"type": "null"}], {"left": {"left": 1}}, [".left.left"]),
        ([{"type": "integer", "maximum": 10}, {"type": "null"}], 11, [""]),
        ([{"type": "integer"}, {"const": "all"}, {"enum": ["none"]}], [1], [""]),
        ([ITEM, TREE | {"required": ["left"]}], {"sku": ""}, [""]),  # it could be either
        ([CAT, DOG], {"kind": "dog", "toys": "ball", "lives": 9}, [".toys"]),
        ([CAT, DOG], {"kind": "cow"}, [""]),
        ([CAT, PUPPY], {"kind": "cow"}, [""]),
        ([CAT, PUPPY], {"kind": "cat", "lives": "x"}, [".lives"]),
        ([CAT, PUPPY, {"type": "null"}], {"kind": "puppy", "toys": "x"}, [".toys"]),
        ([{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Puppy"}], {"kind": "cat", "lives": "x"}, [".lives"]),
        ([E_MAIL, TEXT_MESSAGE], {"address": "a", "format": "pdf"}, [""]),  # the format is no tag
        ([{"enum": ["a"]}, {"type": "string", "minLength": 2}], "b", [""]),
        ([False, ITEM], {"sku": ""}, ["", ".sku"]),
        ([False, {"type": "string"}], 1, [""]),
        ([False], 1, [""]),
    ],
)
def test_field_of_an_optional_value_is_named(
    alternatives: list[JsonValue], value: JsonValue, fields: list[str]
) -> None:
    for keyword in ("anyOf", "oneOf"):
        schema: dict[str, JsonValue] = {
            "properties": {"a": {keyword: alternatives}},
            "$defs": {"Tree": TREE, "Cat": CAT, "Puppy": PUPPY},
        }
        problems = problems_of(function="f", input={"a": value}, input_schema=schema)
        assert sorted(problems) == [("schema-mismatch", f"input.a{field}", None) for field in fields]


@pytest.mark.parametrize("literals", [{"enum": ["a", "b"], "type": "string"}, {"enum": ["a", "b"]}])
def test_values_of_an_optional_literal_are_named(literals: JsonValue) -> None:
    schema: dict[str, JsonValue] = {"properties": {"a": {"anyOf": [literals, {"type": "null"}]}}}
    with pytest.raises(ValidationError, match=r"\['a', 'b'\]\s"):
        JobDefinition(name="job", function="f", input={"a": "c"}, input_schema=schema)


@pytest.mark.parametrize(
    ("schema", "field"),
    [
        (
            {"type": "objet"},
            "input_schema.type",
        ),
        ({"pattern": "("}, "input_schema.pattern"),
        (
            {"$ref": "https://example.org/schema.json"},
            "input_schema.$ref",
        ),
        (
            {"$ref": "#/$defs/none"},
            "input_schema",
        ),
        ({"$ref": "#"}, "input_schema"),
    ],
)
def test_a_schema_is_checked_itself(schema: dict[str, JsonValue], field: str) -> None:
    assert problems_of(function="f", input_schema=schema) == [("invalid-json-schema", field, None)]


def test_own_input_is_checked_by_its_format() -> None:
    schema: dict[str, JsonValue] = {"properties": {"day": {"type": "string", "format": "date"}}}
    assert problems_of(function="f", input={"day": "2026-02-30"}, input_schema=schema) == [
        ("schema-mismatch", "input.day", None)
    ]
    stored = {"name": "job", "function": "f", "input": {"day": "2026-02-30"}, "input_schema": schema}
    assert JobDefinition.model_validate(stored, context=STORED).input == {"day": "2026-02-30"}


def test_trigger_input_is_checked_like_definition_input() -> None:
    job = JobDefinition(name="job", function="f", input={"top_k": 5}, input_schema=SCHEMA)
    check_input(job, {"top_k": 7})
    check_input(job, {"top_k": 7}, args=["x"])
    with pytest.raises(DefinitionError) as refused:
        check_input(job, {"top_k": "many", "token": "${env:}"})
    assert [(problem.code, problem.field, problem.job) for problem in refused.value.problems] == [
        ("malformed-secret-reference", "input", "job `job`"),
        ("schema-mismatch", "input.top_k", "job `job`"),
    ]
    with pytest.raises(DefinitionError) as refused:
        check_input(job, {"top_k": 7}, args=["${x}"])
    assert [(problem.code, problem.field) for problem in refused.value.problems] == [
        ("malformed-secret-reference", "args")
    ]


def test_input_that_is_too_large_is_reported_once() -> None:
    definition = {"name": "nightly", "function": "f", "input": {"a": "x" * 600_000}}
    assert problems_of(**definition) == [("too-large", "input", None)]


def test_definition_fits_one_message() -> None:
    dag = [{"name": f"s{n}", "function": "f", "input": {"a": "x" * 60_000}} for n in range(10)]
    assert problems_of(name="nightly", dag=dag) == [("too-large", "input", None)]
    names = [f"s{n:03d}-{'x' * 50}" for n in range(300)]
    edges = [{"name": name, "function": "f", "depends_on": names[:n]} for n, name in enumerate(names)]
    assert problems_of(name="nightly", dag=edges) == [("too-large", "dag", None)]
    assert problems_of(name="nightly", function="f", meta={"a": "x" * 600_000}) == [("too-large", "meta", None)]
    assert problems_of(name="nightly", function="f", description="x" * 600_000) == [("too-large", "description", None)]


def test_number_of_steps_is_limited() -> None:
    steps = [{"name": f"s{n}", "function": "f"} for n in range(MAX_STEPS + 1)]
    assert problems_of(name="nightly", dag=steps) == [("too-large", "dag", None)]
    assert len(JobDefinition.model_validate({"name": "nightly", "dag": steps[:-1]}).dag) == MAX_STEPS


def test_copies_of_an_input_are_limited() -> None:
    """A trigger's input is copied to each step that has an input of its own."""
    steps = [{"name": f"s{n}", "function": "f", "input": {"own": n}} for n in range(20)]
    job = JobDefinition.model_validate({"name": "job", "input": {"a": "x" * 60_000}, "dag": steps})
    check_input(job, {"b": "x"})
    with pytest.raises(DefinitionError) as refused:
        check_input(job, {"a": "x" * 20_000})
    assert [(problem.code, problem.field) for problem in refused.value.problems] == [("too-large", "input")]
    check_input(JobDefinition.model_validate({"name": "job", "function": "f"}), {"a": "x" * 60_000})


def test_required_input_of_scheduled_job_must_be_given() -> None:
    schema: dict[str, JsonValue] = {"required": ["day"], "properties": {"day": {"type": "string"}}}
    fields: dict[str, Any] = {"name": "a", "function": "f", "input_schema": schema}
    assert JobDefinition(**fields).input == {}
    with pytest.raises(ValidationError, match="required"):
        JobDefinition(**fields, schedule="@daily")
    with pytest.raises(ValidationError, match="string"):
        JobDefinition(**fields, input={"day": 1})


def test_policy_of_job_without_schedule() -> None:
    assert JobDefinition(name="a", function="f").overlap_policy == "enqueue"
    assert JobDefinition(name="a", function="f", overlap_policy="skip").overlap_policy == "skip"
    assert JobDefinition(name="a", function="f", schedule="@daily").overlap_policy == "skip"
    stored = JobDefinition.model_validate({"name": "a", "function": "f"}, context=STORED)
    assert stored.overlap_policy == "skip"
