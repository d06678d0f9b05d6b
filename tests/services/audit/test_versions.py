"""The audit judges the versions of the scheduler policy and of the namespaces."""

from typing import Any, Final

import pytest

from tests.domain.given import admitted, plan
from tests.services.audit.test_queues import judged
from tocsin.domain.events import Namespace, NamespacesDefined, PolicyDefined, Skipped, validated

KINDS: Final = [
    (PolicyDefined, {"job_timeout": 1.0}, {"job_timeout": 2.0}),
    (NamespacesDefined, {"namespaces": (Namespace(name="a"),)}, {"namespaces": (Namespace(name="b"),)}),
]


@pytest.mark.parametrize(("kind", "one", "two"), KINDS)
def test_chain_of_versions_is_clean(kind: Any, one: dict[str, Any], two: dict[str, Any]) -> None:  # noqa: ANN401
    assert judged(kind(**one), kind(previous=1, **two), kind(previous=2), kind(previous=3, **one)).is_clean


@pytest.mark.parametrize(("kind", "one", "two"), KINDS)
def test_impossible_version_is_found(kind: Any, one: dict[str, Any], two: dict[str, Any]) -> None:  # noqa: ANN401
    same, apart = [kind(**one), kind(previous=1, **one)], [kind(**one), kind(**two)]
    for facts in ([kind()], same, apart, [kind(previous=4, **one)]):
        assert {violation.invariant for violation in judged(*facts).violations} == {"I4"}


@pytest.mark.parametrize(
    ("quota", "violates"), [({"executions_per_day": 1}, False), ({"bytes_per_day": 1}, False), ({}, True)]
)
def test_skip_needs_a_daily_quota(quota: dict[str, int], *, violates: bool) -> None:
    declared = NamespacesDefined(namespaces=(validated(Namespace, {"name": "a", **quota}),))
    first = admitted(plan()).changed(job="a.mail", trigger="manual")
    skipped = Skipped.of(first, "namespace_quota")
    reasons = [violation.reason for violation in judged(declared, skipped).violations]
    assert any("never had one" in reason for reason in reasons) is violates
