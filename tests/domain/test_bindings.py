"""Bindings of steps: what a definition may say, and the arguments that they make."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from tests.domain.given import KEY, NOON
from tocsin.domain import execution, execution_plan
from tocsin.domain.definition import STORED, DefinitionError, JobDefinition, Step
from tocsin.domain.definition.bindings import BindingError, bound_arguments
from tocsin.domain.events import Defined, Dispatched, Due, Plan, PlannedStep, Recorded, validated
from tocsin.domain.formats import read_job


def job(bind: object, **fields: Any) -> dict[str, Any]:  # noqa: ANN401 - any field
    load = {"step": "load", "function": "load", "depends_on": ["extract"], "bind": bind, **fields}
    return {
        "name": "daily",
        "dag": [{"step": "extract", "function": "extract"}, {"step": "other", "function": "f"}, load],
    }


BIND: dict[str, JsonValue] = {
    "rows": "upstream.extract",
    "parts": ["upstream.extract", "input.day"],
    "day": "input.day",
    "limit": {"value": 5},
    "none": {"value": None},
}


def test_bindings_are_read_and_stored() -> None:
    definition = read_job(job(BIND))
    assert definition.dag[2].bind == BIND
    stored = Defined(job="daily", definition=definition).encode()
    assert Defined.model_validate_json(stored, context=STORED).definition == definition


def test_no_bindings_and_no_arguments_differ() -> None:
    definition = read_job(job({}))
    assert [step.bind for step in definition.dag] == [None, None, {}]
    assert b'"bind":{}' in Defined(job="daily", definition=definition).encode()
    assert "bind" not in Step(name="a", function="f").model_dump(exclude_defaults=True)


def test_stored_bindings_of_a_newer_version_are_readable() -> None:
    step = Step.model_validate({"name": "a", "function": "f", "bind": {"rows": {"newer": 1}}}, context=STORED)
    assert step.bind == {"rows": {"newer": 1}}
    with pytest.raises(BindingError, match="upgrade the worker"):
        bound_arguments({"rows": 3}, {}, {}, lambda value: value)


@pytest.mark.parametrize(
    ("bind", "fields", "code", "field"),
    [
        ({"rows": "upstream.other"}, {}, "unknown-step", "bind.rows"),
        ({"rows": ["upstream.extract", "upstream.nowhere"]}, {}, "unknown-step", "bind.rows"),
        ({"rows": "extract"}, {}, "invalid-value", "bind"),
        ({"rows": "upstream."}, {}, "invalid-value", "bind"),
        ({"rows": 5}, {}, "invalid-value", "bind"),
        ({"rows": [5]}, {}, "invalid-value", "bind"),
        ({"rows": {"value": 5, "more": 1}}, {}, "invalid-value", "bind"),
        ({"rows": {"value": float("inf")}}, {}, "invalid-value", "bind"),
        ({5: "upstream.extract"}, {}, "invalid-value", "bind"),
        ("upstream.extract", {}, "wrong-type", "bind"),
        ({}, {"input": {"a": 1}}, "exclusive-fields", "input"),
        ({}, {"args": [1]}, "exclusive-fields", "args"),
        ({"rows": {"value": "${vault:X}"}}, {}, "malformed-secret-reference", "bind"),
        ({"rows": {"value": "x" * 70_000}}, {}, "too-large", "bind"),
        ({"rows": "upstream.extract"}, {"function": None, "command": ["true"]}, "exclusive-fields", "bind"),
    ],
)
def test_wrong_binding_is_explained(bind: object, fields: dict[str, Any], code: str, field: str) -> None:
    with pytest.raises(DefinitionError) as wrong:
        read_job(job(bind, **fields))
    assert [(problem.code, problem.field, problem.step) for problem in wrong.value.problems] == [(code, field, "load")]


def test_bindings_reach_the_task() -> None:
    definition = read_job({"name": "daily", "dag": [{"step": "a", "function": "f", "bind": {"day": "input.day"}}]})
    due = Due(job="daily", definition=1, scheduled_time=NOON)
    admitted = execution_plan.from_due(due, definition.model_copy(update={"overlap_policy": "allow"}))
    task = execution.admit_and_dispatch(admitted, key=KEY)  # type: ignore[arg-type]  # it may start at once
    assert isinstance(task, Dispatched)
    assert task.bind is None  # the plan of the admission has it
    assert task.task.bind == {"day": "input.day"}


def test_arguments_come_from_their_sources() -> None:
    arguments = bound_arguments(BIND, {"day": "monday", "other": 1}, {"extract": [1, 2]}, lambda value: value)
    assert arguments == {"rows": [1, 2], "parts": [[1, 2], "monday"], "day": "monday", "limit": 5, "none": None}


def test_absent_key_is_left_out_for_the_default() -> None:
    assert bound_arguments({"day": "input.day"}, {}, {}, lambda value: value) == {}


@pytest.mark.parametrize(
    "binding",
    [3, None, {"newer": 1}, {"value": 1, "newer": 2}, {}, "newer.extract", ["newer.extract"], [["input.day"]]],
)
def test_binding_of_newer_version_needs_an_upgrade(binding: JsonValue) -> None:
    with pytest.raises(BindingError, match="upgrade the worker"):
        bound_arguments({"rows": binding}, {"day": 1}, {"extract": 2}, lambda value: value)


@pytest.mark.parametrize("reference", ["upstream.extract", "input.day"])
def test_small_task_makes_no_huge_arguments(reference: str) -> None:
    value = "x" * 65_534  # 64 KiB of JSON
    values: dict[str, JsonValue] = {"extract": value, "day": value}
    most: dict[str, JsonValue] = {"parts": [reference] * 63, "more": reference}
    assert bound_arguments(most, values, values, lambda value: value) == {"parts": [value] * 63, "more": value}
    with pytest.raises(BindingError, match="pass each once"):
        bound_arguments({**most, "again": reference}, values, values, lambda value: value)


@pytest.mark.parametrize(
    ("bind", "text"), [({"parts": ["input.day"]}, "the input lacks"), ({"rows": "upstream.a"}, "too large together")]
)
def test_missing_value_is_explained(bind: dict[str, JsonValue], text: str) -> None:
    with pytest.raises(BindingError, match=text):
        bound_arguments(bind, {}, {}, lambda value: value)


@given(st.text(), st.text(), st.one_of(st.none(), st.integers(), st.text(), st.lists(st.text())))
def test_only_constants_are_resolved(name: str, key: str, value: JsonValue) -> None:
    bind: dict[str, JsonValue] = {name: f"upstream.{key}", f"{name}-": {"value": value}}
    resolved: list[JsonValue] = []
    arguments = bound_arguments(bind, {}, {key: "${env:SECRET}"}, resolved.append)
    assert arguments == {name: "${env:SECRET}", f"{name}-": None}
    assert resolved == [value]


def test_plan_of_an_old_version_has_no_bindings() -> None:
    plan = validated(Plan, {"definition": 1, "steps": [{"name": "a", "function": "f", "timeout": 1}]})
    assert plan.steps == (PlannedStep(name="a", function="f", timeout=1),)
    assert Recorded(plan, "", 1, NOON).message.steps[0].bind is None


def test_definition_without_bindings_is_stored_as_before() -> None:
    definition = JobDefinition(name="daily", dag=(Step(name="a", function="f"),))
    assert b"bind" not in Defined(job="daily", definition=definition).encode()
