"""Namespaces: names, declarations and references."""

import pytest

from tocsin.domain import namespaces
from tocsin.domain.access import Permission, Principal, Role, audience_of
from tocsin.domain.definition import DefinitionError, JobDefinition
from tocsin.domain.events import Namespace
from tocsin.domain.job_record import Registration
from tocsin.domain.namespaces import WrongNamespaces, check_references, namespace_of

DECLARED = frozenset({"payments", "billing"})


def job(name: str, **fields: object) -> JobDefinition:
    return JobDefinition.model_validate({"name": name, "function": "f", "queue": "default", **fields})


def notify(*channels: str) -> dict[str, object]:
    return {"channels": [*channels], "on_failure": True}


def hook(path: str) -> dict[str, str]:
    return {"webhook": path}


@pytest.mark.parametrize(
    ("name", "namespace"),
    [("payments.nightly", "payments"), ("payments", None), ("a.b.c", "a"), ("payments-eu.x", "payments-eu")],
)
def test_first_part_is_the_namespace(name: str, namespace: str | None) -> None:
    assert namespace_of(name) == namespace


@pytest.mark.parametrize(
    "definition",
    [
        job("payments.a"),
        job("payments.a", queue="billing.x"),
        job("a", queue="payments.x"),
        job("undeclared.a", queue="payments.x"),
        job("payments.a", queue="payments.x", depends_on=[{"job": "billing.a", "within": "1h"}]),
        job("payments.a", queue="payments.x", triggers=[{"job": "b"}]),
        job("a", triggers=[hook("/hooks/payments/a")]),
        job("payments.a", queue="payments.x", triggers=[hook("/hooks/billing/a/b")]),
        job("payments.a", queue="payments.x", triggers=[hook("/hooks/payments")]),
        job("payments.a", queue="payments.x", notify=notify("payments.ops", "billing.ops")),
        job("payments.a", queue="payments.x", notify=notify("ops")),
        job("a", notify=notify("payments.ops")),
        job(
            "payments.a", function=None, queue="payments.x", dag=[{"name": "s", "function": "f", "queue": "billing.x"}]
        ),
        job("payments.a", function=None, dag=[{"name": "s", "function": "f"}]),
    ],
)
def test_reference_across_namespaces_is_refused(definition: JobDefinition) -> None:
    with pytest.raises(DefinitionError) as refused:
        check_references([definition], DECLARED)
    assert {problem.code for problem in refused.value.problems} == {"crosses-namespace"}
    check_references([definition], frozenset())


@pytest.mark.parametrize(
    "definition",
    [
        job("a"),
        job("undeclared.a", queue="other.x"),
        job("a", triggers=[hook("/hooks/payments"), hook("/hooks/other/payments/b")]),
        job("payments.a", queue="payments.x", triggers=[hook("/hooks/payments/a")]),
        job("payments.a", queue="payments.x", notify=notify("payments.ops")),
        job("a", notify=notify("ops", "undeclared.ops")),
        job("payments.a", queue="payments.x", depends_on=[{"job": "payments.b", "within": "1h"}]),
        job("payments.a", function=None, dag=[{"name": "s", "function": "f", "queue": "payments.x"}]),
    ],
)
def test_reference_within_a_namespace_is_accepted(definition: JobDefinition) -> None:
    check_references([definition], DECLARED)


@pytest.mark.parametrize(
    "names", [["Payments"], ["a.b"], [""], ["-a"], ["a-"], ["a", "a"], ["ojs"], ["a" * 41], ["a_b"], ["é"], ["a\n"]]
)
def test_wrong_name_is_refused(names: list[str]) -> None:
    with pytest.raises(WrongNamespaces):
        namespaces.checked([Namespace(name=name) for name in names])


@pytest.mark.parametrize("quota", [0, -1, 10_000_001])
def test_wrong_quota_is_refused(quota: int) -> None:
    with pytest.raises(WrongNamespaces):
        namespaces.checked([Namespace(name="a", max_jobs=quota)])
    with pytest.raises(WrongNamespaces):
        namespaces.read({"namespaces": [{"name": "a", "max_jobs": quota}]})


def test_quota_must_be_a_whole_number() -> None:
    for quota in ("7", 7.5, True):
        with pytest.raises(WrongNamespaces):
            namespaces.read({"namespaces": [{"name": "a", "max_jobs": quota}]})


@pytest.mark.parametrize(
    "document",
    [
        7,
        {},
        {"namespaces": 1},
        {"namespaces": [7]},
        {"namespaces": [], "x": 1},
        {"namespaces": [{"name": "a", "b": 1}]},
    ],
)
def test_wrong_document_is_refused(document: object) -> None:
    with pytest.raises(WrongNamespaces):
        namespaces.read(document)


def test_document_has_names_and_mappings() -> None:
    read = namespaces.read({"namespaces": ["b", {"name": "a", "description": "of A"}]})
    assert namespaces.checked(read) == (Namespace(name="a", description="of A"), Namespace(name="b"))


def registered(name: str, **fields: object) -> Registration:
    definition = job(name, **fields)
    return Registration(definition=definition, sequence=1, defined_at="2026-01-01T00:00:00Z")  # type: ignore[arg-type]


@pytest.mark.parametrize("role", list(Role))
def test_no_role_reaches_another_namespace(role: Role) -> None:
    bound = Principal("ada", frozenset({role}), namespaces=frozenset({"payments"}))
    assert Permission.ADMINISTER not in bound.permissions
    for name in ("billing.a", "payments", "a", "paymentsx.a"):
        other = registered(name, owner="user:ada")
        assert not bound.may_see(other)
        assert bound.permitted_with(other) == ()
        assert not bound.may_fetch_from(name)


def test_administrator_of_a_namespace_changes_its_jobs() -> None:
    bound = Principal("ada", frozenset({Role.ADMIN}), namespaces=frozenset({"payments"}))
    assert bound.may_with(Permission.REGISTER, registered("payments.a", owner="user:bea", viewers=("user:bea",)))


def test_identity_without_namespaces_reaches_nothing() -> None:
    bound = Principal("ada", frozenset(Role), namespaces=frozenset())
    assert not any(bound.may_see(registered(name)) for name in ("a", "payments.a"))


def test_audience_differs_by_namespace() -> None:
    assert audience_of(registered("payments.a")) == audience_of(registered("payments.b"))
    assert len({audience_of(registered(name)) for name in ("payments.a", "billing.a", "a")}) == 3
