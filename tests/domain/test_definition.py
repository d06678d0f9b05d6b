"""The model: defaults, inheritance of steps, what the constructor refuses, and what the log may hold nevertheless."""

import json

import pytest
from pydantic import ValidationError

from tocsin.domain.definition import STORED, DefinitionError, DefinitionProblem, JobDefinition, RetryPolicy, Step, show


def problems_of(error: ValidationError) -> list[str]:
    cause = error.errors()[0]["ctx"]["error"]
    assert isinstance(cause, DefinitionError)
    return [str(problem) for problem in cause.problems]


def test_defaults_are_those_of_the_specifications() -> None:
    job = JobDefinition(name="job", function="do/it", schedule="@daily")
    assert job.retry == RetryPolicy(
        max_attempts=3, initial_delay=30, multiplier=2, max_delay=300, jitter=0.1, backoff="exponential"
    )
    assert (job.timezone, job.timeout, job.overlap_policy, job.queue, job.catch_up) == (
        "UTC",
        300,
        "skip",
        "default",
        "once",
    )
    assert (job.enabled, job.dead_letter, job.input, job.args) == (True, False, {}, ())


def test_durations_are_read_wherever_one_is_expected() -> None:
    job = JobDefinition.model_validate(
        {
            "name": "job",
            "timeout": "1h30m",
            "retry": {"initial_delay": "PT30S", "max_delay": "5m"},
            "dag": [{"name": "a", "function": "f", "timeout": "500ms"}],
        }
    )
    assert (job.timeout, job.retry.initial_delay, job.retry.max_delay, job.dag[0].timeout) == (5400, 30, 300, 0.5)


def test_a_plain_job_is_one_step_called_main() -> None:
    retry = RetryPolicy(max_attempts=1)
    job = JobDefinition(name="job", function="do/it", input={"a": 1}, args=("x",), timeout=5, queue="q", retry=retry)
    (step,) = job.steps()
    expected = Step(
        name="main", function="do/it", input={"a": 1}, args=("x",), timeout=5, queue="q", retry=retry, priority=0
    )
    assert step == expected


def test_steps_inherit_what_they_leave_unsaid() -> None:
    own = Step(
        name="b", function="g", depends_on=("a",), timeout=1, input={"b": 2}, args=(), queue="fast", retry=RetryPolicy()
    )
    retry = RetryPolicy(max_attempts=5)
    job = JobDefinition(
        name="job", dag=(Step(name="a", function="f"), own), input={"a": 1}, args=(1,), timeout=9, retry=retry
    )
    assert job.steps() == (
        Step(name="a", function="f", timeout=9, input={"a": 1}, args=(1,), queue="default", retry=retry, priority=0),
        own.model_copy(update={"priority": 0}),
    )


def test_a_definition_is_frozen_and_closed() -> None:
    job = JobDefinition(name="job", function="f")
    with pytest.raises(ValidationError):
        job.name = "other"  # type: ignore[misc]
    with pytest.raises(ValidationError):
        JobDefinition.model_validate({"name": "job", "function": "f", "colour": "red"})


@pytest.mark.parametrize("name", ["a", "9", "daily-report", "a.b.c", "a--b", "x" * 255])
def test_a_name(name: str) -> None:
    assert JobDefinition(name=name, function="f").name == name


@pytest.mark.parametrize("name", ["", "A", "-a", ".a", "a_b", "a b", "a/b", "ä", "a\n", "x" * 256])
def test_no_name(name: str) -> None:
    with pytest.raises(ValidationError) as refused:
        JobDefinition(name=name, function="f")
    reason = refused.value.errors()[0]["msg"]
    assert reason == (
        r"Value error, must match [a-z0-9][a-z0-9\-\.]*, lower-case letters, digits, hyphens and dots, the first a letter or "
        "a digit, at most 255 characters"
    )


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (
            {},
            "give either `function` or `dag`, or a built-in function, one of `command`, `http`, `sql`, `procedure`, `container`",
        ),
        (
            {"dag": ()},
            "give either `function` or `dag`, or a built-in function, one of `command`, `http`, `sql`, `procedure`, `container`",
        ),
        (
            {"function": "f", "dag": (Step(name="a", function="f"),)},
            "`function` and `dag` exclude each other: give one",
        ),
        (
            {"dag": (Step(name="a", function="f", depends_on=("a",)),)},
            "`depends_on` in step `a`: a step cannot depend on itself",
        ),
        (
            {"dag": (Step(name="a", function="f"), Step(name="a", function="g"))},
            "`name` in step `a`: 2 steps have this name, and each needs its own",
        ),
        (
            {
                "dag": (
                    Step(name="a", function="f", depends_on=("b",)),
                    Step(name="b", function="f", depends_on=("c",)),
                    Step(name="c", function="f", depends_on=("a",)),
                )
            },
            "`depends_on` in step `a`: the steps depend on each other in a circle: a → b → c → a",
        ),
    ],
)
def test_function_or_graph(fields: dict[str, object], expected: str) -> None:
    with pytest.raises(ValidationError) as refused:
        JobDefinition.model_validate({"name": "job", **fields})
    assert problems_of(refused.value) == [expected]


@pytest.mark.parametrize("schedule", ["", "61 * * * *", "* * * *", "every blue moon", "0 0 31 2 *", "*/0 * * * *"])
def test_no_schedule(schedule: str) -> None:
    with pytest.raises(ValidationError) as refused:
        JobDefinition(name="job", function="f", schedule=schedule)
    (problem,) = problems_of(refused.value)
    assert problem.startswith(f"`schedule` is {json.dumps(schedule)}: ")


@pytest.mark.parametrize("timezone", ["EST", "UTC+5", "+05:00", "Mars/Olympus", "america/new_york"])
@pytest.mark.parametrize("schedule", ["0 9 * * *", None])
def test_no_timezone(timezone: str, schedule: str | None) -> None:
    with pytest.raises(ValidationError) as refused:
        JobDefinition(name="job", function="f", schedule=schedule, timezone=timezone)
    (problem,) = problems_of(refused.value)
    assert problem.startswith(f"`timezone` is {json.dumps(timezone)}: ")


def test_timezone_and_schedule_are_reported_together() -> None:
    with pytest.raises(ValidationError) as refused:
        JobDefinition(name="job", function="f", schedule="61 * * * *", timezone="Mars/Olympus")
    (details,) = refused.value.errors()
    error = details["ctx"]["error"]
    assert isinstance(error, DefinitionError)
    assert [(problem.field, problem.code) for problem in error.problems] == [
        ("timezone", "invalid-timezone"),
        ("schedule", "invalid-field"),
    ]


def test_what_was_recorded_stays_readable() -> None:
    recorded = {
        "name": "job",
        "function": "f",
        "schedule": "every blue moon",
        "timezone": "Atlantis/Capital",
        "input": {"large": "x" * 100_000, "old": "${vault:X}"},
        "retry": {"max_attempts": 2, "a_field_of_next_year": 1},
        "a_field_of_next_year": {"x": 1},
    }
    with pytest.raises(ValidationError):
        JobDefinition.model_validate(recorded)
    read = JobDefinition.model_validate_json(json.dumps(recorded), context=STORED)
    assert (read.schedule, read.retry.max_attempts) == ("every blue moon", 2)


@pytest.mark.parametrize(
    ("problem", "line"),
    [
        (DefinitionProblem("why"), "why"),
        (DefinitionProblem("why", job="job `a`"), "job `a`: why"),
        (DefinitionProblem("why", field="x"), "`x`: why"),
        (
            DefinitionProblem("why", field="x", value="1", step="s", job="job `a`", source="f"),
            "f: job `a`: `x` in step `s` is 1: why",
        ),
        (
            DefinitionProblem(", did you mean `y`?", field="x", step="s", unknown=True),
            "unknown field `x` in step `s`, did you mean `y`?",
        ),
    ],
)
def test_a_problem_is_one_line(problem: DefinitionProblem, line: str) -> None:
    assert str(problem) == line


def test_an_error_lists_all_its_problems() -> None:
    assert str(DefinitionError(DefinitionProblem("one"), DefinitionProblem("two"))) == "one\ntwo"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        (1.5, "1.5"),
        ("ä", '"ä"'),
        ("x" * 99, f'"{"x" * 56}…'),
        ([], "an empty list"),
        ({"a": 1}, "a mapping"),
        (2**64 - 1, "18446744073709551615"),
        (2**64, "a very large number"),
    ],
)
def test_values_are_shown_short(value: object, text: str) -> None:
    assert show(value) == text
