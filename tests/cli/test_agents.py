"""`tocsin agents`, and the warning about functions that no agent has."""

import asyncio

import pytest

from tests.cli.conftest import World
from tests.domain.given import ID
from tocsin.cli.runtime.errors import Exit
from tocsin.domain.agent import AgentRecord, AgentState
from tocsin.domain.events import AgentDrainStarted, AgentGranted, AgentRegistered, AgentSwitched, OwnershipAssigned
from tocsin.domain.ownership import EXECUTOR
from tocsin.stages.agent_keeper.stage import AGENT_KEEPER
from tocsin.subjects import Bucket

JOBS = """
jobs:
  - { name: welcome, function: mail/sent, queue: mail }
  - { name: nightly, function: report, queue: mail }
"""


@pytest.fixture
def working(world: World) -> World:
    """An agent, as the agent keeper registered it."""

    async def register() -> None:
        fact = AgentRegistered(name="mail-1", agent_id=ID, queues=("mail",), functions=("mail/send",), host="h")
        await world.log.append(fact, expect=0)
        record = AgentRecord(
            name="mail-1", agent_id=ID, state=AgentState.ENABLED, queues=["mail"], functions=["mail/send"], host="h",
            max_concurrent_jobs=4, held=["e.main.1"], labels={"zone": "a"},
        )  # fmt: skip
        await world.projections.put(Bucket.AGENTS, f"mail-1.{ID}", record.model_dump_json().encode())

    asyncio.run(register())
    return world


def test_list_and_show(working: World) -> None:
    [agent] = working.call("agents", "list", "-o", "json").json
    assert (agent["name"], agent["state"], agent["held"]) == ("mail-1", "ENABLED", ["e.main.1"])
    assert "mail-1" in working.call("agents", "list").out
    for given in ("mail-1", ID):
        page = working.call("agents", "show", given).out
        assert "zone=a" in page
        assert "1 of 4" in page


def test_ceiling_of_the_policy_is_shown(working: World) -> None:
    working.call("policy", "set", "max_concurrent_jobs=2")
    [agent] = working.call("agents", "list", "-o", "json").json
    assert (agent["max_concurrent_jobs"], agent["slots"]) == (4, 2)
    assert "1 of 2" in working.call("agents", "list").out
    assert "2, by the scheduler policy; it announces 4" in working.call("agents", "show", "mail-1").out
    working.call("policy", "set", "max_concurrent_jobs=9")
    assert working.call("agents", "list", "-o", "json").json[0]["slots"] == 4
    assert "by the scheduler policy" not in working.call("agents", "show", "mail-1").out


def test_leader_is_shown(working: World) -> None:
    async def lead() -> None:
        record = AgentRecord(name="mail-1", agent_id=ID, state=AgentState.ENABLED, leader_candidate=True)
        await working.projections.put(Bucket.AGENTS, f"mail-1.{ID}", record.model_dump_json().encode())

    asyncio.run(lead())
    assert [agent["is_leader"] for agent in working.call("agents", "list", "-o", "json").json] == [False]
    assert "leader     no\n" in working.call("agents", "show", "mail-1").out
    fact = OwnershipAssigned(resource=EXECUTOR, name="mail-1", agent_id=ID, reason="vacant")
    asyncio.run(working.log.append(fact, expect=0))
    assert [agent["is_leader"] for agent in working.call("agents", "list", "-o", "json").json] == [True]
    assert "leader     yes" in working.call("agents", "show", "mail-1").out


@pytest.mark.parametrize("granted", [[], None])
def test_declared_shard_is_no_granted_one(working: World, granted: list[str] | None) -> None:
    record = AgentRecord(
        name="mail-1", agent_id=ID, state=AgentState.ENABLED, shards=["*"], granted_shards=granted, needs_grant=True
    )
    asyncio.run(working.projections.put(Bucket.AGENTS, f"mail-1.{ID}", record.model_dump_json().encode()))
    page = working.call("agents", "show", "mail-1").out
    assert "owns none; declares every shard" in page
    assert "may own    no shards" in page
    assert page.count("may own") == 1


def test_list_is_empty_without_agents(world: World) -> None:
    result = world.call("agents", "list")
    assert result.code == Exit.OK
    assert "no agents" in result.out
    assert f"`{AGENT_KEEPER.name}`" in result.out


def test_disable_and_enable_are_recorded_once(working: World) -> None:
    for verb, changed in (("disable", True), ("disable", False), ("enable", True), ("enable", False)):
        answer = working.call("agents", verb, "mail-1", "--reason", "disk", "-o", "json").json
        assert (answer["changed"], answer["agent"]) == (changed, "mail-1")
    facts = [r.message for r in working.recorded("agent.*.*.switched")]
    assert [fact.enabled for fact in facts if isinstance(fact, AgentSwitched)] == [False, True]
    assert all(isinstance(fact, AgentSwitched) and fact.by and fact.reason == "disk" for fact in facts)


def test_changes_are_in_the_audit_trail(working: World) -> None:
    working.call("agents", "disable", "mail-1", "--reason", "disk")
    working.call("agents", "drain", "mail-1")
    trail = working.call("events", "audit-trail")
    assert trail.code == Exit.OK
    assert "disabled" in trail.out
    assert "draining" in trail.out
    of_a_job = working.call("events", "audit-trail", "--job", "mail-1")
    assert "disabled" not in of_a_job.out


def test_disabled_name_can_be_enabled_without_an_agent(working: World) -> None:
    working.call("agents", "disable", "mail-1")
    asyncio.run(working.projections.remove(Bucket.AGENTS, f"mail-1.{ID}"))
    assert working.call("agents", "enable", "mail-1").code == Exit.OK


@pytest.mark.parametrize("given", ["mail-1", ID])
def test_drain_is_recorded_once(working: World, given: str) -> None:
    assert working.call("agents", "drain", given, "-o", "json").json["agents"] == [ID]
    assert working.call("agents", "drain", given, "-o", "json").json["agents"] == []
    [fact] = [r.message for r in working.recorded("agent.*.*.drain-started")]
    assert isinstance(fact, AgentDrainStarted)
    assert fact.by is not None


@pytest.mark.parametrize("verb", ["show", "drain", "disable", "enable"])
@pytest.mark.parametrize("name", ["mail-2", "*", "a.b", "", ">", "all"])
def test_unknown_agent_is_not_found(working: World, verb: str, name: str) -> None:
    result = working.call("agents", verb, name, "-o", "json")
    assert result.failure == (Exit.NOT_FOUND, "not-found")
    if name == "mail-2":
        assert "Did you mean 'mail-1'?" in result.error["message"]


def test_apply_warns_of_functions_without_an_agent(working: World) -> None:
    result = working.call("jobs", "apply", "-f", working.jobs(JOBS))
    assert result.code == Exit.OK
    assert "no live agent of queue `mail` has `mail/sent` (job welcome); did you mean `mail/send`?" in result.err
    assert "no live agent of queue `mail` has `report` (job nightly)" in result.err


@pytest.mark.parametrize("options", [(), ("--dry-run",)])
def test_apply_warns_of_a_queue_without_workers(world: World, options: tuple[str, ...]) -> None:
    result = world.call("jobs", "apply", "-f", world.jobs(JOBS), *options)
    assert result.code == Exit.OK
    assert result.err.count("warning:") == 1
    assert "no worker reads queue `mail` (jobs welcome, nightly)" in result.err
    [entry] = world.call("jobs", "apply", "-f", world.jobs(JOBS), *options, "-o", "json").json["unserved"]
    assert (entry["queue"], entry["function"]) == ("mail", None)


def test_allow_and_revoke_are_recorded_once(world: World) -> None:
    for args, changed, grants in (
        (("allow", "mail-1", "--queue", "mail", "--function", "mail/*"), True, [("mail", ["mail/*"])]),
        (("allow", "mail-1", "--queue", "mail", "--function", "mail/*"), False, [("mail", ["mail/*"])]),
        (("allow", "mail-1", "--queue", "gpu"), True, [("gpu", ["*"]), ("mail", ["mail/*"])]),
        (("revoke", "mail-1", "--queue", "gpu"), True, [("mail", ["mail/*"])]),
        (("revoke", "mail-1"), True, []),
        (("revoke", "mail-1"), False, []),
    ):
        answer = world.call("agents", *args, "--reason", "split", "-o", "json").json
        stored = [(grant["queue"], grant["functions"]) for grant in answer["grants"]]
        assert (answer["changed"], stored) == (changed, grants), args
    facts = [r.message for r in world.recorded("agent.mail-1.all.granted")]
    assert len(facts) == 4
    assert all(isinstance(fact, AgentGranted) and fact.by and fact.reason == "split" for fact in facts)
    assert "granted" in world.call("events", "audit-trail").out


def test_grants_are_shown(working: World) -> None:
    assert "what it announces: no grants" in working.call("agents", "show", "mail-1").out
    assert working.call("agents", "allow", "mail-1", "--queue", "*").out == "mail-1 may get * (*)\n"
    allowed = working.call("agents", "allow", "mail-1", "--shard", "s1", "--shard", "s2").out
    assert allowed == "mail-1 may get * (*), and own s1, s2\n"


def test_first_shard_needs_a_grant_of_tasks(world: World) -> None:
    """Without one, an agent gets what it announces, and an event about shards alone would take this away."""
    for verb in ("allow", "revoke"):
        assert world.call("agents", verb, "mail-1", "--shard", "*", "-o", "json").error["error_code"] == "invalid-grant"
    answers = [
        world.call("agents", *args, "-o", "json").json
        for args in (
            ("allow", "mail-1", "--queue", "mail", "--shard", "s1", "--shard", "s2"),
            ("revoke", "mail-1", "--shard", "s2"),
            ("revoke", "mail-1", "--queue", "mail"),
        )
    ]
    assert [(answer["shards"], len(answer["grants"])) for answer in answers] == [
        (["s1", "s2"], 1),
        (["s1"], 1),
        (["s1"], 0),
    ]
    assert world.call("agents", "allow", "mail-2", "--queue", "mail", "-o", "json").json["shards"] is None
    refused = world.call("agents", "revoke", "mail-2", "--shard", "s1", "-o", "json")
    assert refused.error["error_code"] == "every-shard-granted"


@pytest.mark.parametrize(
    "args",
    [
        ("allow", "a.b", "--queue", "mail"),
        ("allow", "mail-1", "--queue", "Mail_1"),
        ("allow", "mail-1", "--queue", "mail", "--function", ""),
        ("allow", "mail-1", "--queue", "mail", "--function", "a\x1b[2J"),
        ("revoke", "mail-1", "--queue", ">"),
        ("allow", "mail-1"),
        ("allow", "mail-1", "--queue", "mail", "--shard", "S_1"),
        ("revoke", "mail-1", "--queue", "mail", "--shard", "a" * 65),
    ],
)
def test_invalid_grant_is_refused(working: World, args: tuple[str, ...]) -> None:
    assert working.call("agents", *args, "-o", "json").error["error_code"] == "invalid-grant"
    assert working.recorded("agent.*.*.granted") == []


def test_too_many_patterns_are_refused(world: World) -> None:
    options = [option for number in range(501) for option in ("--function", f"f{number}")]
    result = world.call("agents", "allow", "mail-1", "--queue", "mail", *options, "-o", "json")
    assert result.error["error_code"] == "grant-too-large"


def test_apply_names_the_grant_that_is_missing(working: World) -> None:
    async def restrict() -> None:
        record = AgentRecord(
            name="mail-1", agent_id=ID, state=AgentState.ENABLED, queues=["mail"], functions=["report"], grants=[]
        )
        await working.projections.put(Bucket.AGENTS, f"mail-1.{ID}", record.model_dump_json().encode())

    asyncio.run(restrict())
    result = working.call("jobs", "apply", "-f", working.jobs(JOBS))
    assert "run `tocsin agents allow mail-1 --queue mail --function 'report'`" in result.err
