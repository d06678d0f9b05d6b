"""Grants of agents: what operators allow and revoke."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.domain.agent_grants import (
    MAX_PATTERNS,
    EveryShardGranted,
    TooManyGrants,
    allow,
    granted_of,
    may_get,
    may_own,
    revoke,
)
from tocsin.domain.definition.partition import MAX_SHARDS
from tocsin.domain.events import AgentGranted, QueueGrant

MAIL = AgentGranted(name="a", grants=(QueueGrant(queue="mail", functions=("mail/*",)),))


def grants(fact: AgentGranted | None) -> dict[str, tuple[str, ...]]:
    assert fact is not None
    return {grant.queue: grant.functions for grant in fact.grants}


def test_functions_of_a_queue_add_up() -> None:
    assert grants(allow(MAIL, "a", ["mail", "gpu"], ["load"])) == {"gpu": ("load",), "mail": ("load", "mail/*")}
    assert grants(allow(MAIL, "a", ["mail"])) == {"mail": ("*",)}


def test_repeated_grant_changes_nothing() -> None:
    assert allow(MAIL, "a", ["mail"], ["mail/*"]) == MAIL
    assert revoke(MAIL, "a", ["gpu"]) == MAIL
    assert revoke(None, "a", ["gpu"]) is None
    assert revoke(AgentGranted(name="a"), "a") == AgentGranted(name="a")


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


def test_first_shard_limits_agents_that_owned_every_shard() -> None:
    fact = allow(MAIL, "a", (), shards=["s2", "s1"])
    assert fact is not None
    assert (fact.grants, fact.shards) == (MAIL.grants, ("s1", "s2"))
    fewer = revoke(fact, "a", shards=["s2"])
    assert fewer is not None
    assert (fewer.grants, fewer.shards) == (MAIL.grants, ("s1",))
    every = allow(fewer, "a", (), shards=["*"])
    assert every is not None
    assert every.shards == ("*",)
    with pytest.raises(EveryShardGranted):
        revoke(every, "a", shards=["s1"])
    none = revoke(every, "a", shards=["*"])
    assert none is not None
    assert none.shards == ()
    for requires_grant in (False, True):
        may = [may_own(fact.shards, "s1", requires_grant=requires_grant) for fact in (MAIL, fewer, every, none)]
        assert may == [not requires_grant, True, True, False]
    assert not may_own(fewer.shards, "s2", requires_grant=False)


def test_grants_of_tasks_keep_the_shards() -> None:
    fact = allow(MAIL, "a", (), shards=["s1"])
    assert fact is not None
    more = allow(fact, "a", ["gpu"])
    assert more is not None
    fewer = revoke(more, "a", ["mail"])
    assert fewer is not None
    assert (more.shards, fewer.shards) == (("s1",), ("s1",))


def test_number_of_shards_is_limited() -> None:
    with pytest.raises(TooManyGrants):
        allow(MAIL, "a", (), shards=[f"s{number}" for number in range(MAX_SHARDS + 1)])


NAMES = st.sampled_from(["a", "b", "a/x", "a/y", "*"])
GRANTS = st.builds(
    QueueGrant,
    queue=st.sampled_from(["q", "r", "*"]),
    functions=st.lists(st.sampled_from(["a", "a/*", "*", "z"]), min_size=1, max_size=3).map(tuple),
)


@given(st.lists(GRANTS, max_size=4), st.frozensets(st.sampled_from(["q", "r", "s", "*"])), st.frozensets(NAMES))
def test_granted_functions_are_those_that_each_grant_includes(
    grants: list[QueueGrant], queues: frozenset[str], functions: frozenset[str]
) -> None:
    expected = {queue: {name for name in functions if may_get(grants, queue, name)} for queue in queues}
    granted = granted_of(grants, queues, functions)
    assert dict(granted) == {queue: names for queue, names in expected.items() if names}
    assert [queue for queue, _ in granted] == sorted(dict(granted))


def test_queues_with_equal_functions_share_one_set() -> None:
    """An agent announces names at will."""
    queues, functions = frozenset(map(str, range(100))), frozenset(map(str, range(500)))
    granted = granted_of([QueueGrant(queue="*", functions=("*",))], queues, functions)
    assert {id(names) for _, names in granted} == {id(functions)}
