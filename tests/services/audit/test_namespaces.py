"""The audit judges the versions of the namespaces."""

from datetime import timedelta

import pytest

from tests.domain.given import NOON, admitted, plan
from tocsin import subjects
from tocsin.domain.daily_use import over_quota
from tocsin.domain.events import Message, Namespace, NamespacesDefined, Recorded
from tocsin.services.audit import Report, audit

A, B = (Namespace(name="a"),), (Namespace(name="b"),)


def judged(*facts: Message) -> Report:
    recorded = [
        Recorded(fact, subjects.subject_of(fact), number, NOON + timedelta(milliseconds=number))
        for number, fact in enumerate(facts, 1)
    ]
    return audit(recorded, until=NOON + timedelta(seconds=30))


def test_chain_of_declarations_is_clean() -> None:
    assert judged(NamespacesDefined(namespaces=A), NamespacesDefined(previous=1, namespaces=B)).is_clean


@pytest.mark.parametrize(
    "facts",
    [
        [NamespacesDefined()],
        [NamespacesDefined(namespaces=A), NamespacesDefined(previous=1, namespaces=A)],
        [NamespacesDefined(namespaces=A), NamespacesDefined(namespaces=B)],
        [NamespacesDefined(previous=4, namespaces=A)],
    ],
)
def test_impossible_declaration_is_found(facts: list[NamespacesDefined]) -> None:
    assert {violation.invariant for violation in judged(*facts).violations} == {"I4"}


@pytest.mark.parametrize(
    ("quota", "violates"), [({"executions_per_day": 1}, False), ({"bytes_per_day": 1}, False), ({}, True)]
)
def test_skip_needs_a_daily_quota(quota: dict[str, int], *, violates: bool) -> None:
    declared = NamespacesDefined(namespaces=(Namespace.model_validate({"name": "a", **quota}),))
    skipped = over_quota(admitted(plan()).model_copy(update={"job": "a.mail", "trigger": "manual"}))
    reasons = [violation.reason for violation in judged(declared, skipped).violations]
    assert any("never had one" in reason for reason in reasons) is violates
