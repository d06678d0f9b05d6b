"""The scheduler policy: versions, changes, and the timeouts of definitions."""

import pytest

from tests.domain.given import recorded
from tocsin.domain import policy
from tocsin.domain.definition import DefinitionError, JobDefinition
from tocsin.domain.events import Actor, Message, PolicyDefined
from tocsin.domain.formats import read_job
from tocsin.domain.policy import NO_POLICY, SCRATCHBIRD, Policy, PolicyError, check_timeouts, with_timeout

ANN = Actor(identity="ann")
HIP62 = {"name": "a", "function": "f"}
BIRD = {"job_name": "a", "function": "f"}


def test_newest_event_is_the_policy() -> None:
    events: list[Message] = [PolicyDefined(job_timeout=60.0), PolicyDefined(max_concurrent_jobs=5)]
    assert policy.fold(recorded(events)) == Policy(max_concurrent_jobs=5)
    assert policy.fold([]) == NO_POLICY
    assert policy.fold(recorded([PolicyDefined(max_concurrent_jobs=10**9)])).max_concurrent_jobs == 10**9


def test_change_keeps_other_fields() -> None:
    assert policy.changed(SCRATCHBIRD, {"job_timeout": "30m", "enable_job_history": None}) == Policy(
        max_concurrent_jobs=10, job_timeout=1_800.0, job_history_retention_days=30
    )
    assert policy.changed(SCRATCHBIRD, {"polling_interval": "10s"}) == SCRATCHBIRD


@pytest.mark.parametrize(
    ("field", "value", "code"),
    [
        ("max_concurrent_jobs", 0, "out-of-range"),
        ("max_concurrent_jobs", 1_000_001, "out-of-range"),
        ("max_concurrent_jobs", True, "wrong-type"),
        ("max_concurrent_jobs", "5", "wrong-type"),
        ("max_concurrent_jobs", 2.5, "wrong-type"),
        ("job_timeout", 0, "out-of-range"),
        ("job_timeout", "1x", "invalid-duration"),
        ("job_timeout", "90000w", "duration-out-of-range"),
        ("job_history_retention_days", 0, "out-of-range"),
        ("job_history_retention_days", 36_501, "out-of-range"),
        ("enable_job_history", "maybe", "wrong-type"),
        ("enable_job_history", 1, "wrong-type"),
        ("job_timeouts", 1, "unknown-field"),
        ("version", 1, "unknown-field"),
    ],
)
def test_wrong_change_is_refused(field: str, value: object, code: str) -> None:
    with pytest.raises(PolicyError) as refused:
        policy.changed(NO_POLICY, {field: value})
    [problem] = refused.value.problems
    assert (problem.field, problem.code) == (field, code)


def test_misspelt_field_is_guessed() -> None:
    with pytest.raises(PolicyError, match="did you mean `job_timeout`"):
        policy.changed(NO_POLICY, {"job_timeouts": 1})


@pytest.mark.parametrize(
    ("document", "job_timeout", "timeout"),
    [
        (HIP62, None, 42.0),
        (HIP62, 60.0, 60.0),
        (HIP62 | {"timeout": "5m"}, None, 300.0),
        (HIP62 | {"timeout": "5m"}, 60.0, 300.0),
        ({"name": "a", "cron": "@daily", "type": "f"}, None, 42.0),
        ({"name": "a", "cron": "@daily", "type": "f"}, 60.0, 60.0),
        (BIRD, None, 3_600.0),
        (BIRD, 60.0, 60.0),
        (BIRD, 7_200.0, 7_200.0),
        (BIRD | {"timeout": "1h"}, 7_200.0, 3_600.0),
    ],
)
def test_timeout_of_a_definition(document: dict[str, object], job_timeout: float | None, timeout: float) -> None:
    definition = with_timeout(read_job(document), Policy(job_timeout=job_timeout), 42.0)
    assert definition.timeout == timeout
    written = {"options": {"timeout": timeout}} if "cron" in document else {"timeout": timeout}
    assert definition == read_job({**document, **written})


def test_longer_timeouts_are_refused() -> None:
    jobs = [
        JobDefinition.model_validate({"name": "short", "function": "f", "timeout": 60}),
        JobDefinition.model_validate({"name": "long", "function": "f", "timeout": "61s"}),
        JobDefinition.model_validate(
            {
                "name": "graph",
                "timeout": 10,
                "dag": [{"name": "a", "function": "f"}, {"name": "b", "function": "f", "timeout": "2m"}],
            }
        ),
    ]
    check_timeouts(jobs, NO_POLICY)
    check_timeouts(jobs, Policy(job_timeout=120.0))
    with pytest.raises(DefinitionError) as refused:
        check_timeouts(jobs, Policy(job_timeout=60.0))
    assert [(p.job, p.step, p.field, p.value, p.code) for p in refused.value.problems] == [
        ("job `long`", None, "timeout", "1m1s", "timeout-above-policy"),
        ("job `graph`", "b", "timeout", "2m", "timeout-above-policy"),
    ]
    assert all("1m" in problem.reason for problem in refused.value.problems)
