"""Documents of jobs: their formats, all problems of all jobs, and an answer to any JSON."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.properties import examples
from tocsin.domain.definition import DefinitionError, DefinitionProblem, JobDefinition, RetryPolicy, Step
from tocsin.domain.formats import read
from tocsin.domain.formats.document import nearest

HIP: dict[str, Any] = {"name": "a", "function": "f", "schedule": "@daily"}
OJS: dict[str, Any] = {"name": "b", "type": "x.y", "cron": "@daily"}


@pytest.mark.parametrize(
    "document",
    [
        {"jobs": [HIP, OJS]},
        [HIP, OJS],
        {"jobs": [HIP, OJS], "x-defaults": {"anything": 1}, "$schema": "job-file.json"},
    ],
)
def test_many_jobs_in_either_spelling(document: object) -> None:
    assert [definition.name for definition in read(document)] == ["a", "b"]


@pytest.mark.parametrize("document", [HIP, HIP | {"$schema": "job.json"}])
def test_one_job(document: object) -> None:
    assert [definition.name for definition in read(document)] == ["a"]


@pytest.mark.parametrize("document", [[], {"jobs": []}])
def test_empty_list_of_jobs_is_allowed(document: object) -> None:
    assert read(document) == ()


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        (None, ("empty-document", None, "", None, "")),
        (7, ("wrong-type", None, "", None, "`jobs`")),
        ({"jobs": HIP}, ("wrong-type", None, "jobs", "a mapping", "")),
        ({"jobs": [], "version": 1}, ("unknown-field", None, "version", None, "`jobs`")),
        ({"jobs": ["a"]}, ("wrong-type", "jobs[0]", "", None, "")),
        ([HIP, {"function": "f"}], ("required", "[1]", "name", None, "")),
        ({"jobs": [HIP, OJS, HIP]}, ("duplicate-name", "job `a`", "", None, "jobs[2]")),
        ({}, ("required", "the job", "name", None, "")),
    ],
)
def test_problem_of_a_document_names_its_place(
    document: object, problem: tuple[str, str | None, str, str | None, str]
) -> None:
    with pytest.raises(DefinitionError) as caught:
        read(document)
    *expected, hint = problem
    actual = caught.value.problems[0]
    assert [actual.code, actual.job, actual.field, actual.value] == expected
    assert hint in actual.reason


@pytest.mark.parametrize("key", ["job", "Jobs", "tasks"])
def test_misspelt_list_is_the_only_problem(key: str) -> None:
    with pytest.raises(DefinitionError) as refused:
        read({key: [HIP]}, source="jobs.yaml")
    [problem] = refused.value.problems
    assert (problem.code, problem.field, problem.job) == ("unknown-field", key, None)
    assert "`jobs`" in problem.reason


def test_problems_are_addressed_for_programs_too() -> None:
    document = {
        "jobs": [HIP | {"timeout": -1}, HIP | {"name": "c", "dag": [{"step": "s", "function": "f", "dependson": []}]}]
    }
    with pytest.raises(DefinitionError) as refused:
        read(document, source="jobs.yaml")
    assert refused.value.problems == (
        DefinitionProblem("a duration cannot be negative", "timeout", "-1", job="job `a`", source="jobs.yaml"),
        DefinitionProblem(
            ", did you mean `depends_on`?", "dependson", step="s", job="job `c`", source="jobs.yaml", unknown=True
        ),
        DefinitionProblem("`function` and `dag` exclude each other: give one", job="job `c`", source="jobs.yaml"),
    )


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("dependson", "depends_on"),
        ("dependsOn", "depends_on"),
        ("Depends-On", "depends_on"),
        ("needs", "depends_on"),
        ("x", None),
    ],
)
def test_the_nearest_name(written: str, meant: str | None) -> None:
    assert nearest(written, {"depends_on", "timeout"}, {"needs": "depends_on"}) == meant


SCALAR = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["@daily", "a.b", "5m"])
)
NAMES = [*JobDefinition.model_fields, *RetryPolicy.model_fields, *Step.model_fields]
KEY = st.text(max_size=5) | st.sampled_from(
    [*NAMES, "lock", "step", "jobs", "cron", "type", "options", "initial_interval"]
)
JSON = st.recursive(
    SCALAR, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEY, inner, max_size=6), max_leaves=25
)
STEP = st.fixed_dictionaries(
    {"step": st.sampled_from("abc"), "function": st.just("f")},
    optional={
        "depends_on": st.lists(st.sampled_from("abc"), max_size=2),
        "timeout": st.just("5m") | JSON,
        "input": JSON,
    },
)
NEARLY = st.fixed_dictionaries(
    {"name": st.just("job")},
    optional={
        "function": st.just("f") | JSON,
        "dag": st.lists(STEP, max_size=3) | JSON,
        "schedule": st.sampled_from(["@daily", "@every 5m"]) | JSON,
        "input": st.dictionaries(st.text(max_size=3), JSON, max_size=2),
        "input_schema": JSON,
        "retry": JSON,
        "cron": JSON,
        "type": st.just("a.b"),
        "args": JSON,
        "options": JSON,
        "lock": JSON,
        "meta": JSON,
    },
)


@settings(max_examples=examples(400))
@given(JSON | NEARLY | st.lists(NEARLY, max_size=2))
def test_any_document_yields_definitions_or_a_refusal(document: object) -> None:
    definitions, problems = answer(document)
    assert all(str(problem).strip() for problem in problems)
    for definition in definitions:
        assert JobDefinition.model_validate_json(definition.model_dump_json()) == definition
        assert all(step.timeout and step.retry and step.queue is not None for step in definition.steps())


def answer(document: object) -> tuple[tuple[JobDefinition, ...], tuple[DefinitionProblem, ...]]:
    try:
        return read(document), ()
    except DefinitionError as error:
        return (), error.problems


@pytest.mark.parametrize(
    ("change", "field", "code"),
    [
        ({"timeot": 5}, "timeot", "unknown-field"),
        ({"function": None, "dag": [{"step": "a"}]}, "function", "required"),
        ({"timeout": "soon"}, "timeout", "invalid-duration"),
        ({"retry": {"max_attempts": 0}}, "retry.max_attempts", "out-of-range"),
        ({"enabled": "yes"}, "enabled", "wrong-type"),
        ({"overlap_policy": "maybe"}, "overlap_policy", "unknown-choice"),
        ({"schedule": "every blue moon"}, "schedule", "invalid-phrase"),
        ({"schedule": "0 0 30 2 *"}, "schedule", "never-fires"),
        ({"schedule": "99 * * * *"}, "schedule", "invalid-field"),
        ({"timezone": "Mars/Olympus"}, "timezone", "invalid-timezone"),
        ({"lock": True, "overlap_policy": "allow"}, "lock", "exclusive-fields"),
        ({"input": {"x": "${env:}"}}, "input", "malformed-secret-reference"),
        (
            {"function": None, "dag": [{"step": "a", "function": "f", "depends_on": ["a"]}]},
            "depends_on",
            "dependency-cycle",
        ),
        (
            {"function": None, "dag": [{"step": "a", "function": "f", "depends_on": ["b"]}]},
            "depends_on",
            "unknown-step",
        ),
    ],
)
def test_each_problem_has_a_code(change: dict[str, object], field: str, code: str) -> None:
    written = {name: value for name, value in ({"name": "a", "function": "f"} | change).items() if value is not None}
    with pytest.raises(DefinitionError) as error:
        read(written)
    assert [(problem.field, problem.code) for problem in error.value.problems] == [(field, code)]
