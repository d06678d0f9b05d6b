"""Checks by a JSON Schema take bounded work, and find what the library finds."""

import json
from typing import Any, Final

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from tocsin.domain.definition import schema_check
from tocsin.domain.definition.inputs import input_problems

KIND: Final = jsonschema.Draft202012Validator
LEVELS: Final = 60
DOUBLING: Final[dict[str, JsonValue]] = {
    "$ref": "#/$defs/0",
    "$defs": {
        **{str(level): {"allOf": [{"$ref": f"#/$defs/{level + 1}"}] * 2} for level in range(LEVELS)},
        str(LEVELS): True,
    },
}
DRAFTS: Final = (
    "http://json-schema.org/draft-04/schema#",
    "http://json-schema.org/draft-07/schema#",
    "https://json-schema.org/draft/2020-12/schema",
)


def problems(schema: dict[str, JsonValue], value: JsonValue = None) -> list[tuple[str | None, str | None]]:
    """Return the code and the field of each problem of `{"a": value}`."""
    return [(problem.code, problem.field) for problem in input_problems({"a": value}, (), schema)]


def of_a(schema: dict[str, JsonValue]) -> dict[str, JsonValue]:
    return {"properties": {"a": schema}}


def often(schema: dict[str, JsonValue]) -> dict[str, JsonValue]:
    """Return a schema that applies another to `a` ten thousand times."""
    twice: JsonValue = {"allOf": [{"$ref": "#/$defs/x"}] * 100}
    return of_a({"allOf": [{"$ref": "#/$defs/y"}] * 100}) | {"$defs": {"x": schema, "y": twice}}


@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize(
    "schema",
    [
        of_a({"pattern": "^(a+)+$"}),
        {"properties": {"a": {"patternProperties": {"^(a+)+$": {}}, "additionalProperties": False}}},
        {"definitions": {"again": of_a({"pattern": "^(a+)+$"})}, "allOf": [{"$ref": "#/definitions/again"}]},
        {"definitions": {"whole": {"$ref": "#"}}, **of_a({"pattern": "^(a+)+$"})},
    ],
    ids=["value", "name", "reference", "whole"],
)
def test_search_takes_linear_time(draft: str, schema: dict[str, JsonValue]) -> None:
    """Python's own search would take years."""
    text = "a" * 5_000 + "b"
    value: JsonValue = {text: 1} if "patternProperties" in str(schema) else text
    assert problems({"$schema": draft, **schema}, value) == [("schema-mismatch", "input.a")]


@pytest.mark.parametrize("draft", DRAFTS)
def test_references_that_double_are_refused(draft: str) -> None:
    assert problems({"$schema": draft, **DOUBLING}) == [("invalid-json-schema", "input_schema")]


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (of_a({"items": {"enum": [*range(4_000)]}}), [{"x": number} for number in range(4_000)]),
        (of_a({"anyOf": [{"type": "string"}] * 2_000}), ["x" * 1_000] * 50),
        (of_a({"pattern": "(?:x{0,90}){0,90}y"}), "x" * 20_000),
        (of_a({"patternProperties": {f"{number}.*x": {} for number in range(2_000)}}), {"a": 1}),
        (of_a({"allOf": [{"pattern": f"\\w{{200}}{number}"} for number in range(50)]}), "a"),
        ({"$defs": {"x": {"$anchor": "x"}}, "allOf": [{"$ref": "#x"}] * 2_000}, 1),
        (often({"const": [[0] * 4_000]}), [[0] * 4_000]),
        (often({"uniqueItems": True}), [[0] * 20_000]),
        (often({"items": {}}), [0] * 20_000),
        (often({"items": True}), [0] * 20_000),
        (often({"additionalProperties": True}), dict.fromkeys(map(str, range(5_000)), 0)),
        (often({f"x-{number}": 0 for number in range(4_000)}), 1),
    ],
    ids=[
        *("choices", "messages", "steps of a search", "expressions", "size of expressions", "anchors"),
        *("nested constant", "nested items", "empty schema", "schema that is true", "names", "unknown keywords"),
    ],
)
def test_large_work_is_refused(schema: dict[str, JsonValue], value: JsonValue) -> None:
    assert problems(schema, value)[-1] == ("invalid-json-schema", "input_schema")


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (of_a({"pattern": "(?=a)b"}), "look-around"),
        (of_a({"$schema": DRAFTS[1], "pattern": "^(a+)+$"}), "$schema"),
        ({"unevaluatedProperties": False}, "additionalProperties"),
        ({"allOf": [{"unevaluatedItems": False}]}, "items"),
    ],
)
def test_keyword_of_unbounded_work_is_refused(schema: dict[str, JsonValue], reason: str) -> None:
    [problem] = input_problems({}, (), schema)
    assert (problem.code, problem.field) == ("invalid-json-schema", "input_schema")
    assert reason in str(problem)


@pytest.mark.parametrize("name", ["const", "default", "enum", "examples"])
def test_property_may_have_the_name_of_data(name: str) -> None:
    schema: dict[str, JsonValue] = {"properties": {name: {"pattern": "^(a+)+$"}}}
    assert list(input_problems({name: "aa"}, (), schema)) == []
    [problem] = input_problems({name: "a" * 5_000 + "b"}, (), schema)
    assert (problem.code, problem.field) == ("schema-mismatch", f"input.{name}")


@pytest.mark.parametrize("name", ["unevaluatedItems", "unevaluatedProperties"])
def test_property_may_be_named_like_refused_keyword(name: str) -> None:
    schemas: list[dict[str, JsonValue]] = [
        {"properties": {name: {"type": "string"}}, "required": [name]},
        {"allOf": [{"patternProperties": {name: {"type": "string"}}}]},
        {"$defs": {name: {"properties": {name: {"type": "string"}}}}, "$ref": f"#/$defs/{name}"},
    ]
    for schema in schemas:
        assert list(input_problems({name: "x"}, (), schema)) == []
        [problem] = input_problems({name: 1}, (), schema)
        assert (problem.code, problem.field) == ("schema-mismatch", f"input.{name}")
    reference: dict[str, JsonValue] = {"$ref": "#/properties", "properties": {name: {}}}
    [problem] = input_problems({"a": 1}, (), reference)
    assert problem.code == "invalid-json-schema"


@pytest.mark.parametrize(
    "schema",
    [
        {"examples": [{"$schema": DRAFTS[1], **of_a({"pattern": "^(a+)+$"})}], "$ref": "#/examples/0"},
        {
            "properties": {
                "default": {"$schema": DRAFTS[1], "pattern": "^(a+)+$"},
                "a": {"$ref": "#/properties/default"},
            }
        },
    ],
)
def test_part_in_data_may_name_no_draft(schema: dict[str, JsonValue]) -> None:
    """The library would check it by itself, with its own regular expressions."""
    assert problems(schema, "a" * 5_000 + "b") == [("invalid-json-schema", "input_schema")]


@pytest.mark.parametrize(
    "part", [5, [1], "text", {"properties": 5}, {"pattern": 5}, {"$id": 5}, {"multipleOf": 0}, {"type": [{}]}]
)
def test_reference_to_no_schema_is_refused(part: JsonValue) -> None:
    assert problems({"x": part, **of_a({"$ref": "#/x"})}, {"a": 1}) in (
        [("invalid-json-schema", "input_schema")],
        [],  # the part says nothing of this value
    )
    assert problems({"x": part, **of_a({"$ref": "#/x/y"})})[-1:] == [("invalid-json-schema", "input_schema")]


def test_parts_with_ids_are_found_once() -> None:
    part: dict[str, JsonValue] = {"$id": "http://x.test/", "allOf": [{"$ref": "#/$defs/y"}] * 100}
    part["$defs"] = {"y": {}, **{str(number): {"not": {"not": {}}} for number in range(1_000)}}
    assert problems({"$defs": {"x": part}, "allOf": [{"$ref": "#/$defs/x"}] * 100}) == []


def test_dynamic_references_beside_ids_are_refused() -> None:
    part: JsonValue = {"$id": "http://x.test/", "$dynamicAnchor": "y"}
    schema: dict[str, JsonValue] = {"$defs": {"x": part}, "$dynamicRef": "#y"}
    assert problems(schema) == [("invalid-json-schema", "input_schema")]


def test_large_schema_is_refused() -> None:
    schema: dict[str, JsonValue] = {"properties": {str(number): {} for number in range(schema_check.MAX_VALUES)}}
    assert problems(schema) == [("too-large", "input_schema")]


def test_usual_input_of_many_items_is_checked() -> None:
    item: dict[str, JsonValue] = {"type": "object", "required": ["x"], **of_a({"pattern": "^[\\w-]{1,64}$"})}
    items: list[JsonValue] = [{"x": number, "a": f"order-{number}"} for number in range(1_500)]
    schema = of_a({"items": item, "uniqueItems": True})
    assert problems(schema, items) == []
    assert problems(schema, [*items, {"x": 1, "a": "an order"}]) == [("schema-mismatch", "input.a.1500.a")]


def test_data_in_a_schema_is_no_keyword() -> None:
    data: JsonValue = {"pattern": "(?=a)", "$schema": DRAFTS[1], "unevaluatedItems": 1}
    assert problems(of_a({"const": data, "default": data, "examples": [data], "enum": [data]}), data) == []


VALUES: Final = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-2, 2), st.sampled_from([0.0, 1.0, 1.5]), st.text("ab1", max_size=3)
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text("ab1", max_size=2), inner, max_size=3)
    ),
    max_leaves=8,
)
PATTERNS: Final = st.sampled_from(["a", "^a", "b$", "[ab]+1", "^$", "a|1", "(a+)+b"])
LEAVES: Final = st.one_of(
    st.fixed_dictionaries({"pattern": PATTERNS}),
    st.fixed_dictionaries({"uniqueItems": st.booleans()}),
    st.fixed_dictionaries({"type": st.sampled_from(["string", "array", "object", "number"])}),
)
SCHEMAS: Final = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.fixed_dictionaries(
            {},
            optional={
                "properties": st.dictionaries(st.text("ab1", max_size=2), inner, max_size=2),
                "patternProperties": st.dictionaries(PATTERNS, inner, max_size=2),
                "additionalProperties": st.one_of(st.booleans(), inner),
                "items": inner,
            },
        ),
        st.fixed_dictionaries({"anyOf": st.lists(inner, min_size=1, max_size=2)}),
        st.fixed_dictionaries({"not": inner}),
    ),
    max_leaves=6,
)


@given(SCHEMAS, st.dictionaries(st.text("ab1", max_size=2), VALUES, max_size=3))
def test_same_errors_as_the_library(schema: dict[str, Any], value: dict[str, Any]) -> None:
    def told(errors: Any) -> list[tuple[Any, ...]]:  # noqa: ANN401
        return sorted((error.validator, str(list(error.absolute_path))) for error in errors)

    assert told(schema_check.errors_of(KIND, json.dumps(schema), value)) == told(KIND(schema).iter_errors(value))
