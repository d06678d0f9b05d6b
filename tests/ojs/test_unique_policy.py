"""The key of a unique job is made of what its policy names, and of nothing else."""

from typing import Any

import pytest

from tocsin.adapters.http.ojs.job_policies import InvalidPolicy, UniquePolicy
from tocsin.domain.events import UniqueRule

DAY = 86_400.0
JOB: dict[str, Any] = {
    "type": "mail.send",
    "queue": "q",
    "args": [{"user": 42, "a": 1}, "x"],
    "meta": {"tenant": "acme"},
}


def rule(policy: dict[str, Any], **changes: Any) -> UniqueRule:  # noqa: ANN401
    return UniquePolicy.model_validate(policy).rule(**{**JOB, **changes}, remembered=DAY)


def test_key_is_that_of_the_specification() -> None:
    """SHA-256 of `{"args":{"user":42},"queue":"q","type":"mail.send"}`."""
    policy = {"keys": ["queue", "args"], "args_keys": ["user"]}
    assert rule(policy).key == "0f4585bd6190c6f5c1ca61d500815cd1b9934265c001eebd4535aab518965cb2"


@pytest.mark.parametrize(
    ("policy", "changes", "is_same"),
    [
        ({}, {"queue": "other", "args": [], "meta": {}}, True),
        ({}, {"type": "mail.other"}, False),
        ({"keys": ["args"]}, {"type": "mail.other"}, False),
        ({"keys": ["queue"]}, {"queue": "other"}, False),
        ({"keys": ["args"]}, {"args": [{"a": 1, "user": 42}, "x"]}, True),
        ({"keys": ["args"]}, {"args": ["x", {"a": 1, "user": 42}]}, False),
        ({"keys": ["args"], "args_keys": ["user"]}, {"args": [{"user": 42, "a": 2}]}, True),
        ({"keys": ["args"], "args_keys": ["user"]}, {"args": ["y", {"user": 42}]}, True),
        ({"keys": ["args"], "args_keys": ["user"]}, {"args": [{}, {"user": 42}, {"user": 43}]}, True),
        ({"keys": ["args"], "args_keys": ["user"]}, {"args": [{"user": "42"}]}, False),
        ({"keys": ["meta"], "meta_keys": ["tenant"]}, {"meta": {"tenant": "acme", "trace": 7}}, True),
        ({"keys": ["meta"], "meta_keys": ["tenant"]}, {"meta": {"tenant": "other"}}, False),
        ({"key": ["args"]}, {"args": []}, False),
    ],
)
def test_key_has_what_the_policy_names(policy: dict[str, Any], changes: dict[str, Any], is_same: bool) -> None:  # noqa: FBT001
    assert (rule(policy).key == rule(policy, **changes).key) is is_same


def test_defaults_are_those_of_the_specification() -> None:
    made = rule({"period": None, "states": None})
    assert (made.on_conflict, made.period) == ("reject", None)
    assert set(made.states) == {"available", "active", "scheduled", "retryable", "pending"}


def test_period_of_ended_jobs_is_limited() -> None:
    assert rule({"period": "P30D"}).period == 30 * DAY
    assert rule({"period": "P1D", "states": ["completed"]}).period == DAY
    with pytest.raises(InvalidPolicy) as caught:
        rule({"period": "P2D", "states": ["completed"]})
    assert caught.value.field == "period"
    assert "archive.hot_window" in caught.value.requirement


@pytest.mark.parametrize(
    ("policy", "field"),
    [
        ({"args_keys": ["user"]}, "args_keys"),
        ({"keys": ["args"], "args_keys": []}, "args_keys"),
        ({"keys": ["args"], "meta_keys": ["tenant"]}, "meta_keys"),
        ({"keys": ["meta"], "meta_keys": []}, "meta_keys"),
        ({"states": []}, "states"),
    ],
)
def test_field_without_an_effect_is_refused(policy: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidPolicy) as caught:
        rule(policy)
    assert caught.value.field == field


def test_values_nested_too_deeply_are_refused() -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(InvalidPolicy):
        rule({"keys": ["args"]}, args=deep)
