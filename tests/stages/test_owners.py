"""The executor leader: which agent gets the tasks of `LEADER_ONLY` jobs, and how another takes over."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any, Final

import pytest

from tests.stages.test_matcher import ONE, TWO, Hall
from tests.stages.test_operator_decisions import decide
from tocsin import subjects
from tocsin.domain.agent import agent_key
from tocsin.domain.events import (
    AgentDrainStarted,
    AgentForgotten,
    AgentSwitched,
    Completed,
    OwnershipAssigned,
    Recorded,
    Released,
    Started,
)
from tocsin.domain.ownership import EXECUTOR
from tocsin.services.audit import audit
from tocsin.stages.matcher.agents import SILENCE_S
from tocsin.testing import settle

KINDS: Final = ("ledger", "trigger", "execution", "lock", "cron", "ownership", "report", "timer")


@pytest.fixture
async def hall() -> AsyncIterator[Hall]:
    async with AsyncExitStack() as stack:
        yield Hall(stack)


async def terms(hall: Hall) -> list[tuple[str, str]]:
    """The name of each owner, and the reason for it."""
    return [(fact.name, fact.reason) for fact in await hall.world.stored(OwnershipAssigned)]


async def violations(hall: Hall) -> list[str]:
    """Findings of the audit in all that is stored."""
    stored = [recorded for kind in KINDS for recorded in await hall.world.log.read(f"{kind}.>", limit=10_000)]
    return list(map(str, audit(sorted(stored, key=lambda recorded: (recorded.time, recorded.sequence))).violations))


async def claims(hall: Hall) -> list[Recorded[Started]]:
    return await hall.world.recorded(Started)


async def test_one_of_two_agents_gets_all_tasks(hall: Hall) -> None:
    await hall.job(job_class="LEADER_ONLY")
    await hall.matcher()
    first = await hall.agent(ONE, "a", max_concurrent_jobs=9)
    second = await hall.agent(TWO, "b", max_concurrent_jobs=99)
    assert await terms(hall) == []
    for _ in range(5):
        await hall.trigger()
    assert await terms(hall) == [("a", "vacant")]
    assert (len(first.got), second.got) == (5, [])
    [owner] = await hall.world.recorded(OwnershipAssigned)
    assert {claim.message.epoch for claim in await claims(hall)} == {owner.sequence}
    assert {assignment.epoch for assignment, _ in first.got} == {owner.sequence}
    for index in range(5):
        await first.reports(index)
    assert len(await hall.world.stored(Completed)) == 5
    assert await violations(hall) == []


async def test_other_jobs_store_no_owner(hall: Hall) -> None:
    await hall.job()
    await hall.matcher()
    agent = await hall.agent(leader_candidate=False)
    await hall.trigger()
    assert [assignment.epoch for assignment, _ in agent.got] == [None]
    assert await terms(hall) == []
    [claim] = await claims(hall)
    assert b"epoch" not in claim.message.encode()


async def test_task_waits_while_no_agent_stands(hall: Hall) -> None:
    await hall.job(job_class="LEADER_ONLY")
    await hall.job("other")
    await hall.matcher()
    await hall.agent(ONE, "a", leader_candidate=False)
    await hall.trigger()
    assert (await terms(hall), await claims(hall)) == ([], [])
    await hall.trigger("other")
    assert [claim.message.job for claim in await claims(hall)] == ["other"]
    await hall.agent(TWO, "b")
    assert await terms(hall) == [("b", "vacant")]
    assert [claim.message.worker for claim in await claims(hall)] == ["a", "b"]


async def test_leader_without_the_function_holds_the_task(hall: Hall) -> None:
    await hall.job(job_class="LEADER_ONLY")
    await hall.job("first", job_class="LEADER_ONLY", function="other")
    await hall.matcher()
    leader = await hall.agent(ONE, "a", functions=["other"], max_concurrent_jobs=2)
    await hall.agent(TWO, "b")
    await hall.trigger("first")
    await hall.trigger()
    assert await terms(hall) == [("a", "vacant")]
    assert [(claim.message.worker, claim.message.job) for claim in await claims(hall)] == [("a", "first")]
    await leader.announce(functions=["load", "other"])
    await hall.work()
    assert [claim.message.worker for claim in await claims(hall)] == ["a", "a"]


@pytest.mark.parametrize("fields", [{"functions": ["tocsin.sql"]}, {"queues": ["mail"]}], ids=["function", "queue"])
async def test_agent_without_the_function_does_not_lead(fields: dict[str, list[str]], hall: Hall) -> None:
    """The first agent keeps the lease, so it must be one that can take a task that waits."""
    await hall.job(job_class="LEADER_ONLY")
    await hall.matcher()
    await hall.agent(ONE, "a", **fields)
    await hall.trigger()
    assert (await terms(hall), await claims(hall)) == ([], [])
    await hall.agent(TWO, "b")
    await hall.trigger()
    assert await terms(hall) == [("b", "vacant")]
    assert [claim.message.worker for claim in await claims(hall)] == ["b"]


async def test_leader_has_most_functions_not_most_tasks(hall: Hall) -> None:
    await hall.matcher()
    common: dict[str, Any] = {"max_concurrent_jobs": 9, "leader_candidate": False}
    agents = [
        await hall.agent(ONE, "a", functions=["load"], **common),
        await hall.agent(TWO, "b", functions=["mail", "pay"], **common),
    ]
    for name, function in (("many", "load"), ("one", "pay"), ("two", "mail")):
        await hall.job(name, job_class="LEADER_ONLY", function=function)
    for name in ("many", "many", "many", "one", "two"):
        await hall.trigger(name)
    assert await terms(hall) == []
    for agent in agents:
        await agent.announce(leader_candidate=True)
    await hall.work()
    assert await terms(hall) == [("b", "vacant")]
    assert [claim.message.job for claim in await claims(hall)] == ["one", "two"]


async def test_busy_leader_keeps_its_tasks(hall: Hall) -> None:
    await hall.job(job_class="LEADER_ONLY")
    await hall.matcher()
    leader = await hall.agent(ONE, "a")
    await hall.agent(TWO, "b", max_concurrent_jobs=9)
    for _ in range(2):
        await hall.trigger()
    assert len(leader.got) == 1
    await leader.reports()
    assert len(leader.got) == 2
    assert await terms(hall) == [("a", "vacant")]


async def test_silent_leader_is_replaced_and_its_task_released(hall: Hall) -> None:
    await hall.job(job_class="LEADER_ONLY")
    await hall.matcher()
    leader = await hall.agent(ONE, "a")
    heir = await hall.agent(TWO, "b", max_concurrent_jobs=2)
    await hall.trigger()
    await leader.holds(leader.got[0][1])
    await hall.trigger()
    await hall.passes(SILENCE_S - 1)
    await heir.announce()
    await hall.work()
    assert (await terms(hall), heir.got) == ([("a", "vacant")], [])
    await hall.passes(2)
    assert await terms(hall) == [("a", "vacant"), ("b", "silent")]
    assert len(await hall.world.stored(Released)) == 1
    assert len(heir.got) == 2
    old, new = await hall.world.recorded(OwnershipAssigned)
    assert [claim.message.epoch for claim in await claims(hall)] == [old.sequence, new.sequence, new.sequence]
    await heir.reports(0)
    await heir.reports(1)
    assert len(await hall.world.stored(Completed)) == 2
    assert await violations(hall) == []


@pytest.mark.parametrize("reason", ["draining", "disabled", "ended", "withdrawn"])
async def test_leader_that_leaves_is_replaced_at_once(reason: str, hall: Hall) -> None:
    await hall.job(job_class="LEADER_ONLY")
    await hall.matcher()
    leader = await hall.agent(ONE, "a")
    await hall.agent(TWO, "b")
    await hall.trigger()
    await leader.reports()
    changes: dict[str, dict[str, object]] = {
        "draining": {"mode": "draining"},
        "disabled": {"mode": "disabled"},
        "ended": {"ended": True},
        "withdrawn": {"leader_candidate": False},
    }
    await leader.announce(**changes[reason])
    await hall.trigger()
    assert await terms(hall) == [("a", "vacant"), ("b", reason)]
    assert [claim.message.worker for claim in await claims(hall)] == ["a", "b"]


@pytest.mark.parametrize(
    ("decision", "reason"),
    [
        (AgentSwitched(name="a", enabled=False), "disabled"),
        (AgentDrainStarted(name="a", agent_id=ONE), "draining"),
    ],
)
async def test_operator_takes_the_lease_before_the_agent_knows(
    decision: AgentSwitched | AgentDrainStarted, reason: str, hall: Hall
) -> None:
    await hall.job(job_class="LEADER_ONLY")
    await hall.matcher()
    await hall.agent(ONE, "a", max_concurrent_jobs=9)
    await hall.agent(TWO, "b", max_concurrent_jobs=9)
    await hall.trigger()
    await decide(hall, decision)
    await hall.trigger()
    assert await terms(hall) == [("a", "vacant"), ("b", reason)]


async def test_forgotten_agent_is_no_longer_remembered(hall: Hall) -> None:
    matcher = await hall.matcher()
    for fact in (AgentDrainStarted(name="a", agent_id=ONE), AgentDrainStarted(name="b", agent_id=TWO)):
        await decide(hall, fact)
    await decide(hall, AgentForgotten(name="a", agent_id=ONE))
    assert matcher._decisions._draining == {agent_key("b", TWO)}


async def test_next_matcher_knows_the_leader(hall: Hall) -> None:
    await hall.job(job_class="LEADER_ONLY")
    matcher = await hall.matcher()
    leader = await hall.agent(ONE, "b", max_concurrent_jobs=9)
    await hall.trigger()
    await leader.reports()
    await hall.stop(matcher)
    other = await hall.agent(TWO, "a", max_concurrent_jobs=9)
    await hall.matcher()
    for agent in (leader, other):
        await agent.announce()
    await hall.trigger()
    assert await terms(hall) == [("b", "vacant")]
    assert (len(leader.got), other.got) == (2, [])


async def test_claim_for_an_earlier_leader_is_released(hall: Hall) -> None:
    """A matcher that leads beside another, and does not know the new leader, claims for its predecessor."""
    await hall.job(job_class="LEADER_ONLY")
    late = await hall.matcher()
    old = await hall.agent(ONE, "a", max_concurrent_jobs=9)
    new = await hall.agent(TWO, "b", max_concurrent_jobs=9)
    await hall.trigger()
    await old.reports()
    async with hall.lagging(late):
        [first] = await hall.world.recorded(OwnershipAssigned)
        fact = OwnershipAssigned(resource=EXECUTOR, name="b", agent_id=TWO, reason="silent")
        await hall.world.log.append(fact, expect=first.sequence)
        await hall.world.trigger("nightly", message_id="late")
        await hall.world.run(hall.world.planner)
        for task in await hall.world.log.read("execution.*.*.admitted.>", after=first.sequence):
            late.learn(task)
        await late.run_once()
    stale = (await claims(hall))[-1]
    assert (stale.message.worker, stale.message.epoch) == ("a", first.sequence)
    assert len(old.got) == 1
    await hall.work()
    assert [fact.reason for fact in await hall.world.stored(Released)] == ["handed_back"]
    assert len(new.got) == 1
    await new.reports()
    assert len(await hall.world.stored(Completed)) == 2
    assert await violations(hall) == []


async def test_keys_of_agents_and_owners_agree() -> None:
    await settle()
    assert agent_key("a", ONE) == f"a.{ONE}"
    assert subjects.ownership(EXECUTOR) == "ownership.executor.>"
