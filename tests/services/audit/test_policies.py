"""The audit judges the versions of the scheduler policy."""

from datetime import timedelta

import pytest

from tests.domain.given import NOON
from tocsin import subjects
from tocsin.domain.events import PolicyDefined, Recorded
from tocsin.services.audit import Report, audit


def judged(*facts: PolicyDefined) -> Report:
    recorded = [
        Recorded(fact, subjects.subject_of(fact), number, NOON + timedelta(milliseconds=number))
        for number, fact in enumerate(facts, 1)
    ]
    return audit(recorded, until=NOON + timedelta(seconds=30))


def test_chain_of_versions_is_clean() -> None:
    assert judged(
        PolicyDefined(job_timeout=1.0), PolicyDefined(previous=1), PolicyDefined(previous=2, job_timeout=1.0)
    ).is_clean


@pytest.mark.parametrize(
    "facts",
    [
        [PolicyDefined()],
        [PolicyDefined(job_timeout=1.0), PolicyDefined(previous=1, job_timeout=1.0)],
        [PolicyDefined(job_timeout=1.0), PolicyDefined(job_timeout=2.0)],
        [PolicyDefined(previous=4, job_timeout=1.0)],
    ],
)
def test_impossible_version_is_found(facts: list[PolicyDefined]) -> None:
    assert {violation.invariant for violation in judged(*facts).violations} == {"I4"}
