"""Documents of jobs: names nearly right, fields given twice, and places of mistakes."""

from typing import Any

import pytest

from tocsin.domain.definition import DefinitionError, DefinitionProblem, JobDefinition
from tocsin.domain.formats import read
from tocsin.domain.formats.document import listed, nearest

KNOWN = ("max_attempts", "initial_delay", "queue")


def cron_job(**fields: object) -> JobDefinition:
    (definition,) = read({"name": "job", "cron": "@daily", "type": "a.b", **fields})
    return definition


def problems(document: Any) -> list[DefinitionProblem]:  # noqa: ANN401 - a document
    with pytest.raises(DefinitionError) as refused:
        read(document)
    return list(refused.value.problems)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("maxAttempts", "max_attempts"),
        ("max-attempts", "max_attempts"),
        ("Max Attempts", "max_attempts"),
        ("MAX_ATTEMPTS", "max_attempts"),
        ("max_atempts", "max_attempts"),
        ("tries", "max_attempts"),
        ("qeue", "queue"),
        ("colour", None),
        ("", None),
    ],
)
def test_a_name_nearly_right_is_recognised(written: str, meant: str | None) -> None:
    assert nearest(written, KNOWN, {"tries": "max_attempts", "colour": "color"}) == meant


def test_a_synonym_of_an_unknown_name_suggests_nothing() -> None:
    assert nearest("tries", ("queue",), {"tries": "max_attempts"}) is None
    assert nearest("tries", KNOWN) is None


@pytest.mark.parametrize(("names", "text"), [("a", "`a`"), ("ab", "`a` and `b`"), ("abc", "`a`, `b` and `c`")])
def test_names_are_listed(names: str, text: str) -> None:
    assert listed(tuple(names)) == text


@pytest.mark.parametrize(("milliseconds", "seconds"), [(1000, 1.0), (1500, 1.5), (90_000, 90.0)])
def test_a_timeout_may_be_in_milliseconds(milliseconds: int, seconds: float) -> None:
    assert cron_job(options={"timeout_ms": milliseconds}).timeout == seconds


def test_meta_may_stand_beside_the_options() -> None:
    assert cron_job(meta={"team": "x"}).meta == {"team": "x"}
    assert cron_job(meta={"team": "x"}, options={"queue": "q"}).queue == "q"
    assert cron_job(meta={"team": "x"}, options={"meta": {"team": "y"}}).meta == {"team": "y"}


def test_a_template_is_laid_out_below_the_job() -> None:
    template = {"type": "x.y", "args": [1]}
    (definition,) = read({"name": "job", "expression": "@daily", "job_template": template})
    assert (definition.function, definition.args, definition.schedule) == ("x.y", (1,), "@daily")
    [problem] = problems({"name": "job", "cron": "@daily", "job_template": template | {"colour": 1}})
    assert (problem.field, problem.unknown) == ("job_template.colour", True)


@pytest.mark.parametrize(
    ("name", "addressed"),
    [("a", "job `a`"), ("", "[0]"), ("a\nb", "[0]"), (7, "[0]"), ("x" * 300, None)],
)
def test_a_job_is_addressed_by_name_or_place(name: object, addressed: str | None) -> None:
    found = problems([{"name": name, "function": "f", "timeout": -1}])
    assert {problem.job for problem in found} == {addressed} or addressed is None
    assert all(problem.job is not None and len(problem.job) < 300 for problem in found)


def test_a_step_is_named_once() -> None:
    found = problems({"name": "a", "dag": [{"step": "s", "name": "s", "function": "f"}]})
    assert [(problem.field, problem.step, problem.job) for problem in found] == [("name", "s", "job `a`")]


def test_a_mistake_in_a_retry_names_its_step() -> None:
    step = {"step": "s", "function": "f", "retry": {"colour": 1}}
    [problem] = problems({"name": "a", "dag": [step]})
    assert (problem.field, problem.step, problem.unknown) == ("retry.colour", "s", True)
