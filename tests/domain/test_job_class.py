"""Classes of jobs: their spellings, their default, and what is refused."""

from typing import Any

import pytest

from tocsin.domain.definition import DefinitionError, DefinitionProblem
from tocsin.domain.formats import read

HIP: dict[str, Any] = {"name": "a", "function": "f", "schedule": "@daily"}
OJS: dict[str, Any] = {"name": "b", "type": "x.y", "cron": "@daily"}


def problems(document: object) -> tuple[DefinitionProblem, ...]:
    with pytest.raises(DefinitionError) as caught:
        read(document)
    return caught.value.problems


@pytest.mark.parametrize("document", [HIP, OJS])
@pytest.mark.parametrize("spelling", ["QUORUM_REQUIRED", "quorum_required", "quorum-required", " Quorum Required"])
def test_class_has_several_spellings(document: dict[str, Any], spelling: str) -> None:
    [definition] = read({**document, "job_class": spelling})
    assert definition.job_class == "QUORUM_REQUIRED"


def test_default_is_not_written() -> None:
    [definition] = read({**HIP, "job_class": "local-safe"})
    assert definition == read(HIP)[0]
    assert "job_class" not in definition.model_dump(exclude_defaults=True)


@pytest.mark.parametrize(
    ("written", "code"),
    [("QUORUM", "unknown-choice"), ("", "unknown-choice"), (None, "unknown-choice"), (3, "unknown-choice")],
)
def test_unknown_class_is_refused(written: object, code: str) -> None:
    [problem] = problems({**HIP, "job_class": written})
    assert (problem.field, problem.code) == ("job_class", code)
    assert "`QUORUM_REQUIRED`" in problem.reason


QUORUM = {"job_class": "quorum-required"}


@pytest.mark.parametrize("document", [HIP, OJS])
def test_acknowledgements_belong_to_quorum(document: dict[str, Any]) -> None:
    [definition] = read({**document, **QUORUM, "acknowledgements": 2, "acknowledgement_timeout": 5})
    assert (definition.acknowledgements, definition.acknowledgement_timeout) == (2, 5.0)
    [problem] = problems({**document, "acknowledgements": 2})
    assert (problem.field, problem.value, problem.code) == ("acknowledgements", "2", "exclusive-fields")
    [problem] = problems({**document, **QUORUM, "acknowledgement_timeout": 5})
    assert (problem.field, problem.code) == ("acknowledgement_timeout", "exclusive-fields")


@pytest.mark.parametrize(
    ("written", "code"),
    [(0, "out-of-range"), (-1, "out-of-range"), (101, "out-of-range"), ("2", "wrong-type"), (True, "wrong-type")],
)
def test_number_of_acknowledgements_is_bounded(written: object, code: str) -> None:
    [problem] = problems({**HIP, **QUORUM, "acknowledgements": written})
    assert (problem.field, problem.code) == ("acknowledgements", code)


def test_job_without_acknowledgements_is_stored_as_before() -> None:
    [definition] = read({**HIP, **QUORUM})
    assert set(definition.model_dump(exclude_defaults=True)) == {"name", "function", "schedule", "job_class"}
