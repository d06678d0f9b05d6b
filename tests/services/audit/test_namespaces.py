"""The audit judges the versions of the namespaces."""

from datetime import timedelta

import pytest

from tests.domain.given import NOON
from tocsin import subjects
from tocsin.domain.events import Namespace, NamespacesDefined, Recorded
from tocsin.services.audit import Report, audit

A, B = (Namespace(name="a"),), (Namespace(name="b"),)


def judged(*facts: NamespacesDefined) -> Report:
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
