"""Grants of agents: what operators allow and revoke."""

import pytest

from tocsin.domain.agent_grants import MAX_PATTERNS, TooManyGrants, allow, may_get, revoke
from tocsin.domain.events import AgentGranted, QueueGrant

MAIL = AgentGranted(name="a", grants=(QueueGrant(queue="mail", functions=("mail/*",)),))


def grants(facts: list[AgentGranted]) -> dict[str, tuple[str, ...]]:
    [fact] = facts
    return {grant.queue: grant.functions for grant in fact.grants}


def test_functions_of_a_queue_add_up() -> None:
    assert grants(allow(MAIL, "a", ["mail", "gpu"], ["load"])) == {"gpu": ("load",), "mail": ("load", "mail/*")}
    assert grants(allow(MAIL, "a", ["mail"])) == {"mail": ("*",)}


def test_repeated_grant_changes_nothing() -> None:
    assert allow(MAIL, "a", ["mail"], ["mail/*"]) == []
    assert revoke(MAIL, "a", ["gpu"]) == []
    assert revoke(None, "a", ["gpu"]) == []
    assert revoke(AgentGranted(name="a"), "a") == []


def test_revocation_of_everything_leaves_nothing() -> None:
    assert grants(revoke(MAIL, "a")) == {}
    assert grants(revoke(None, "a")) == {}
    assert grants(revoke(MAIL, "a", functions=["mail/*"])) == {}


def test_only_the_star_has_a_meaning() -> None:
    grants = (*MAIL.grants, QueueGrant(queue="*", functions=("x[1]",)))
    cases = [("mail", "mail/send"), ("mail", "load"), ("gpu", "mail/send"), ("any", "x[1]"), ("any", "x1")]
    assert [may_get(grants, *case) for case in cases] == [True, False, False, True, False]


def test_number_of_patterns_is_limited() -> None:
    with pytest.raises(TooManyGrants):
        allow(None, "a", ["mail"], [f"f{number}" for number in range(MAX_PATTERNS + 1)])
