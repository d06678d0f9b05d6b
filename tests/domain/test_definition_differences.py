"""The fields in which two definitions differ, nested fields and steps included."""

from typing import Any

import pytest

from tocsin.domain.definition import JobDefinition
from tocsin.domain.definition_changes import DefinitionDiff, changed_fields


def job(**more: Any) -> JobDefinition:  # noqa: ANN401 - the fields of a definition
    return JobDefinition.model_validate({"name": "job", "function": "f", "overlap_policy": "skip"} | more)


STEPS: list[dict[str, Any]] = [
    {"name": "a", "function": "f"},
    {"name": "b", "function": "g", "depends_on": ["a"], "timeout": 5},
]


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        ({}, {}, []),
        ({"schedule": "@daily"}, {"schedule": "@hourly"}, [("schedule", "@daily", "@hourly")]),
        ({"schedule": "@daily"}, {}, [("schedule", "@daily", None)]),
        ({}, {"schedule": "@daily"}, [("schedule", None, "@daily")]),
        ({}, {"retry": {"max_attempts": 5}}, [("retry.max_attempts", 3, 5)]),
        ({"input": {"a": {"b": 1}}}, {"input": {"a": {"b": 2}}}, [("input.a.b", 1, 2)]),
        ({"input": {"a": {"b": 1}}}, {"input": {"a": 2}}, [("input.a", {"b": 1}, 2)]),
        ({"input": {"a": None}}, {}, [("input", {"a": None}, {})]),
        (
            {"input": {"a": {"b": 1}}},
            {"input": {"a": {"b": 2, "c": None}}},
            [("input.a", {"b": 1}, {"b": 2, "c": None})],
        ),
        ({"input": {"a": None}}, {"input": {"a": 1}}, [("input.a", None, 1)]),
        ({"input": {"a": None, "b": 1}}, {"input": {"a": None, "b": 2}}, [("input.b", 1, 2)]),
        ({"input": {"a": 1}}, {"input": {"a": True}}, [("input.a", 1, True)]),
        ({"input": {"a": [0]}}, {"input": {"a": [False]}}, [("input.a", [0], [False])]),
        ({"input": {"a": 1}}, {"input": {"a": 1.0}}, []),
        ({"tags": ["a"]}, {"tags": ["a", "b"]}, [("tags", ["a"], ["a", "b"])]),
        ({}, {"dst": {"gap": "shift"}}, [("dst", None, {"gap": "shift", "fold": "once"})]),
    ],
)
def test_each_field_that_differs_is_named(
    before: dict[str, Any], after: dict[str, Any], found: list[tuple[str, Any, Any]]
) -> None:
    assert list(changed_fields(job(**before), job(**after))) == [DefinitionDiff(*one) for one in found]


def test_steps_are_compared_by_name() -> None:
    before = job(function=None, dag=STEPS)
    inserted = job(function=None, dag=[{"name": "new", "function": "h"}, STEPS[0], STEPS[1] | {"timeout": 7}])
    assert list(changed_fields(before, inserted)) == [
        DefinitionDiff("dag.b.timeout", 5.0, 7.0),
        DefinitionDiff("dag.new", None, {"name": "new", "function": "h", "depends_on": []}),
    ]


def test_the_order_of_steps_makes_no_difference() -> None:
    assert list(changed_fields(job(function=None, dag=STEPS), job(function=None, dag=STEPS[::-1]))) == []
