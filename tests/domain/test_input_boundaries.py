"""References within a schema, and the depth and size of an input."""

from typing import Any

import pytest
from pydantic import JsonValue, ValidationError

from tocsin.domain.definition import DefinitionError, DefinitionProblem, JobDefinition, check_input
from tocsin.domain.definition.fields import MAX_DEPTH, MAX_INPUT_BYTES, json_problem, size_of

ELSEWHERE = "https://example.org/schema.json"


def problems(**fields: Any) -> list[DefinitionProblem]:  # noqa: ANN401 - the fields of a definition
    with pytest.raises(ValidationError) as refused:
        JobDefinition(name="job", **({"function": "f"} | fields))
    cause = refused.value.errors()[0]["ctx"]["error"]
    assert isinstance(cause, DefinitionError)
    return list(cause.problems)


@pytest.mark.parametrize("keyword", ["$ref", "$dynamicRef", "$recursiveRef"])
@pytest.mark.parametrize(
    "wrap",
    [
        lambda reference: reference,
        lambda reference: {"properties": {"a": reference}},
        lambda reference: {"allOf": [{}, reference]},
        lambda reference: {"$defs": {"never": {"items": {"anyOf": [{"not": reference}]}}}},
    ],
    ids=["at the top", "in a property", "in a list", "deep in a part"],
)
def test_no_schema_refers_to_the_outside(keyword: str, wrap: Any) -> None:  # noqa: ANN401 - a function
    [problem] = problems(input_schema=wrap({keyword: ELSEWHERE}))
    assert (problem.field, problem.value) == ("input_schema.$ref", f'"{ELSEWHERE}"')


@pytest.mark.parametrize("name", ["$ref", "$dynamicRef", "$recursiveRef"])
def test_a_property_may_be_called_like_a_reference(name: str) -> None:
    schema: dict[str, JsonValue] = {"properties": {name: {"type": "string"}}}
    JobDefinition(name="job", function="f", input={name: ELSEWHERE}, input_schema=schema)
    [problem] = problems(input={name: 1}, input_schema=schema)
    assert problem.field == f"input.{name}"


def test_a_schema_follows_the_newest_draft() -> None:
    schema: dict[str, JsonValue] = {"properties": {"a": {"prefixItems": [{"type": "string"}]}}}
    [problem] = problems(input={"a": [1]}, input_schema=schema)
    assert problem.field == "input.a.0"


def test_a_schema_names_its_field() -> None:
    assert [problem.field for problem in problems(input_schema={"$ref": "#"})] == ["input_schema"]
    assert [problem.field for problem in problems(input_schema={"$ref": "#/none"})] == ["input_schema"]


@pytest.mark.parametrize("own", [{"args": ["${x}"]}, {"input": {"a": "${x}"}}])
def test_what_a_step_gives_is_checked(own: dict[str, Any]) -> None:
    [problem] = problems(function=None, dag=[{"name": "a", "function": "f"}, {"name": "b", "function": "f", **own}])
    assert (problem.step, problem.field) == ("b", next(iter(own)))


def test_what_a_step_inherits_is_named_once() -> None:
    [problem] = problems(function=None, dag=[{"name": "a", "function": "f"}], input={"a": "${x}"})
    assert (problem.step, problem.field) == (None, "input")


def test_inputs_of_all_steps_name_their_field() -> None:
    steps = [{"name": f"s{n}", "function": "f", "input": {"a": "x" * 60_000}} for n in range(9)]
    [problem] = problems(function=None, dag=steps)
    assert (problem.field, problem.step) == ("input", None)


def nested(levels: int, *, by: str) -> JsonValue:
    value: JsonValue = "x"
    for _ in range(levels):
        value = [value] if by == "list" else {"a": value}
    return value


@pytest.mark.parametrize("by", ["list", "mapping"])
def test_an_input_may_be_nested_64_levels(by: str) -> None:
    assert json_problem(nested(MAX_DEPTH, by=by)) is None
    assert json_problem(nested(MAX_DEPTH + 1, by=by)) is not None


def test_an_input_may_hold_65536_values() -> None:
    assert json_problem([0] * (MAX_INPUT_BYTES - 1)) is None
    assert json_problem([0] * MAX_INPUT_BYTES) is not None


@pytest.mark.parametrize(
    ("value", "size"), [({}, 2), ([], 2), ({"a": [1, 2]}, 11), ({"ä": "€"}, 12), ([None, True, 1.5], 15)]
)
def test_a_size_is_in_bytes_of_compact_json(value: Any, size: int) -> None:  # noqa: ANN401 - a JSON value
    assert size_of(value) == size


@pytest.mark.parametrize(
    ("value", "fits"), [(2**64 - 1, True), (2**64, False), (-(2**64) + 1, True), (-(2**64), False)]
)
def test_an_integer_has_64_bits(value: int, *, fits: bool) -> None:
    assert (json_problem([value]) is None) is fits


@pytest.mark.parametrize("args", [[float("nan")], [2**64]])
def test_args_of_a_trigger_name_their_field(args: list[Any]) -> None:
    with pytest.raises(DefinitionError) as refused:
        check_input(JobDefinition(name="job", function="f"), {}, args)
    assert [(problem.field, problem.job) for problem in refused.value.problems] == [("args", "job `job`")]


def test_a_shifted_moment_is_a_schedule() -> None:
    """02:30 does not exist in New York on that day, and the policy shifts it."""
    gap: dict[str, Any] = {"schedule": "at 2027-03-14T02:30", "timezone": "America/New_York"}
    JobDefinition(name="job", function="f", **(gap | {"dst": {"gap": "shift"}}))
    assert [problem.field for problem in problems(**gap)] == ["schedule"]
