"""hip-62's job registry: the meaning of its fields, and the errors of mistakes."""

import re

import pytest

from tocsin.domain.definition import DefinitionError, JobDefinition, RetryPolicy, Step
from tocsin.domain.formats import read


def job(**fields: object) -> JobDefinition:
    (definition,) = read({"name": "job", "function": "f", **fields})
    return definition


def test_a_job() -> None:
    assert job(
        schedule="0 */6 * * *",
        timeout="300s",
        retry={"max_attempts": 3, "initial_delay": "30s", "multiplier": 2, "max_delay": "300s", "jitter": 0.2},
        lock=True,
        dead_letter=True,
        tags=["billing"],
        input={"top_k": 1000},
    ) == JobDefinition(
        name="job",
        function="f",
        schedule="0 */6 * * *",
        timeout=300,
        retry=RetryPolicy(jitter=0.2),
        overlap_policy="skip",
        dead_letter=True,
        tags=("billing",),
        input={"top_k": 1000},
    )


def test_a_graph() -> None:
    (definition,) = read(
        {
            "name": "etl",
            "dag": [
                {"step": "extract", "function": "f", "timeout": "30m"},
                {
                    "step": "load",
                    "function": "g",
                    "depends_on": ["extract"],
                    "retry": {"max_attempts": 1},
                    "queue": "slow",
                },
            ],
        }
    )
    assert definition.dag == (
        Step(name="extract", function="f", timeout=1800),
        Step(name="load", function="g", depends_on=("extract",), retry=RetryPolicy(max_attempts=1), queue="slow"),
    )


@pytest.mark.parametrize(
    ("fields", "policy"),
    [
        ({}, "enqueue"),
        ({"schedule": "@daily"}, "skip"),
        ({"lock": True}, "skip"),
        ({"lock": False}, "allow"),
        ({"concurrent": True}, "allow"),
        ({"concurrent": False}, "skip"),
        ({"overlap_policy": "enqueue"}, "enqueue"),
        ({"lock": True, "overlap_policy": "skip"}, "skip"),
        ({"lock": True, "overlap_policy": "enqueue"}, "enqueue"),
        ({"lock": True, "overlap_policy": "cancel_previous"}, "cancel_previous"),
        ({"lock": False, "overlap_policy": "allow"}, "allow"),
        ({"lock": False, "concurrent": True}, "allow"),
    ],
)
def test_the_lock_is_an_overlap_policy(fields: dict[str, object], policy: str) -> None:
    assert job(**fields).overlap_policy == policy


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        (
            {"lock": True, "overlap_policy": "allow"},
            ("exclusive-fields", "lock", "true", "`overlap_policy`"),
        ),
        (
            {"lock": False, "overlap_policy": "skip"},
            ("exclusive-fields", "lock", "false", "`overlap_policy`"),
        ),
        (
            {"lock": True, "concurrent": True},
            ("exclusive-fields", "concurrent", "true", "`overlap_policy`"),
        ),
        ({"lock": "yes"}, ("wrong-type", "lock", '"yes"', "")),
        ({"retires": {"max_attempts": 1}}, ("unknown-field", "retires", None, "`retry`")),
        ({"cron": "* * * * *"}, ("unknown-field", "cron", None, "`schedule`")),
        ({"deadLetter": True}, ("unknown-field", "deadLetter", None, "`dead_letter`")),
        ({"dead-letter": True}, ("unknown-field", "dead-letter", None, "`dead_letter`")),
        ({"retry": {"max_attempt": 2}}, ("unknown-field", "retry.max_attempt", None, "`max_attempts`")),
        ({"retry": {"max_attempts": 0}}, ("out-of-range", "retry.max_attempts", "0", "1")),
        ({"retry": {"max_attempts": 101}}, ("out-of-range", "retry.max_attempts", "101", "100")),
        ({"retry": {"max_attempts": "3"}}, ("wrong-type", "retry.max_attempts", '"3"', "")),
        ({"retry": {"max_attempts": 1.5}}, ("wrong-type", "retry.max_attempts", "1.5", "")),
        ({"retry": {"multiplier": 0.5}}, ("out-of-range", "retry.multiplier", "0.5", "1")),
        ({"retry": {"multiplier": "2"}}, ("wrong-type", "retry.multiplier", '"2"', "")),
        ({"retry": {"jitter": 2}}, ("out-of-range", "retry.jitter", "2", "1")),
        (
            {"retry": {"backoff": "cubic"}},
            ("unknown-choice", "retry.backoff", '"cubic"', "`none`"),
        ),
        ({"retry": 3}, ("wrong-type", "retry", "3", "")),
        ({"retry": None}, ("wrong-type", "retry", "null", "")),
        ({"timeout": 0}, ("out-of-range", "timeout", "0", "0")),
        ({"execution_timeout": "0s"}, ("out-of-range", "execution_timeout", '"0s"', "0")),
        ({"deadline": "1h"}, ("unknown-field", "deadline", None, "`execution_timeout`")),
        (
            {"timeout": "soon"},
            ("invalid-duration", "timeout", '"soon"', ""),
        ),
        ({"tags": "a"}, ("wrong-type", "tags", '"a"', "")),
        ({"tags": ["a", True]}, ("wrong-type", "tags[1]", "true", "")),
        ({"input": ["a"]}, ("wrong-type", "input", "a list", "")),
        ({"enabled": "on"}, ("wrong-type", "enabled", '"on"', "")),
        ({"schedule": 5}, ("wrong-type", "schedule", "5", "")),
        (
            {"function": "two words"},
            ("invalid-value", "function", '"two words"', ""),
        ),
        (
            {"overlap_policy": "concurrent"},
            ("unknown-choice", "overlap_policy", '"concurrent"', "`allow`"),
        ),
        ({"catch_up": "never"}, ("unknown-choice", "catch_up", '"never"', "`all`")),
        ({"dag": [{"step": "a", "function": "f"}]}, ("exclusive-fields", "", None, "`dag`")),
    ],
)
def test_mistake_names_its_field_and_value(
    fields: dict[str, object], problem: tuple[str, str, str | None, str]
) -> None:
    with pytest.raises(DefinitionError) as caught:
        job(**fields)
    code, field, value, hint = problem
    assert [(actual.code, actual.field, actual.value) for actual in caught.value.problems] == [(code, field, value)]
    assert hint in caught.value.problems[0].reason


def test_where_nothing_is_near_the_fields_are_listed() -> None:
    with pytest.raises(DefinitionError) as caught:
        job(retry={"zzz": 1})
    [problem] = caught.value.problems
    assert (problem.code, problem.field) == ("unknown-field", "retry.zzz")
    assert set(re.findall(r"`(\w+)`", problem.reason)) == set(RetryPolicy.model_fields)


def test_a_key_that_is_no_text() -> None:
    with pytest.raises(DefinitionError) as refused:
        read({"name": "job", "function": "f", True: "x"})
    (problem,) = refused.value.problems
    assert (problem.code, problem.field) == ("unknown-field", "true")


@pytest.mark.parametrize(
    ("steps", "problem"),
    [
        ("a", ("wrong-type", "dag", None, '"a"', "")),
        (["a"], ("wrong-type", "dag[0]", None, '"a"', "")),
        ([], ("required", "", None, None, "`dag`")),
        (
            [{"step": "extract", "function": "f"}, {"step": "load", "function": "g", "dependson": ["extract"]}],
            ("unknown-field", "dependson", "load", None, "`depends_on`"),
        ),
        (
            [{"step": "extract", "function": "f"}, {"step": "load", "function": "g", "depends_on": ["extrakt"]}],
            ("unknown-step", "depends_on", "load", None, "`extract`"),
        ),
        ([{"step": "a", "function": "f", "depends_on": "b"}], ("wrong-type", "depends_on", "a", '"b"', "")),
        ([{"step": "a"}], ("required", "function", "a", None, "")),
        ([{"function": "f"}], ("required", "step", "1", None, "")),
        (
            [{"step": "a b", "function": "f"}],
            ("invalid-value", "step", "a b", '"a b"', ""),
        ),
        (
            [{"step": "a", "name": "a", "function": "f"}],
            ("exclusive-fields", "name", "a", None, "`step`"),
        ),
        (
            [{"step": "a", "function": "f", "retry": {"jitter": -1}}],
            ("out-of-range", "retry.jitter", "a", "-1", "0"),
        ),
        (
            [
                {"step": "a", "function": "f", "depends_on": ["b"]},
                {"step": "b", "function": "f", "depends_on": ["c"]},
                {"step": "c", "function": "f", "depends_on": ["a"]},
            ],
            ("dependency-cycle", "depends_on", "a", None, "a → b → c → a"),
        ),
    ],
)
def test_mistake_in_a_step_names_the_step(steps: object, problem: tuple[str, str, str | None, str | None, str]) -> None:
    with pytest.raises(DefinitionError) as caught:
        read({"name": "job", "dag": steps})
    *expected, hint = problem
    [actual] = caught.value.problems
    assert [actual.code, actual.field, actual.step, actual.value] == expected
    assert actual.job == "job `job`"
    assert hint in actual.reason


def test_all_mistakes_are_reported_together() -> None:
    with pytest.raises(DefinitionError) as caught:
        job(timeout="soon", tags=[1], timezone="EST", retry={"max_attempts": 0}, input={"a": "${env:}"})
    problems = caught.value.problems
    assert {problem.job for problem in problems} == {"job `job`"}
    assert [(problem.code, problem.field, problem.value) for problem in problems] == [
        ("invalid-duration", "timeout", '"soon"'),
        ("out-of-range", "retry.max_attempts", "0"),
        ("wrong-type", "tags[0]", "1"),
        ("invalid-timezone", "timezone", '"EST"'),
        ("malformed-secret-reference", "input", None),
    ]
    assert len(str(caught.value).splitlines()) == len(problems)
