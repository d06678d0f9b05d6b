"""Owners of shards: which agent gets the tasks of a shard, and how the shard moves."""

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from typing import Any, Final

import pytest

from tests.stages.test_matcher import ONE, TWO, Agent, Hall
from tests.stages.test_operator_decisions import decide
from tests.stages.test_owners import claims, terms, violations
from tocsin.domain.events import (
    AgentGranted,
    AgentSwitched,
    Completed,
    OwnershipAssigned,
    QueueGrant,
    Released,
    Shard,
    Started,
)
from tocsin.services.shards import ShardMaps
from tocsin.stages.matcher.agents import SILENCE_S
from tocsin.stages.matcher.owners import LOOK_INTERVAL_S

THREE: Final = "01890f3e-0000-7000-8000-000000000003"
IDS: Final = ("s1", "s2", "s3", "s4")


@pytest.fixture
async def hall() -> AsyncIterator[Hall]:
    async with AsyncExitStack() as stack:
        yield Hall(stack)


async def shards(hall: Hall, ids: Sequence[str] = IDS) -> None:
    await ShardMaps(hall.world.log).apply(Shard(shard_id=shard) for shard in ids)


async def fan_out(hall: Hall, job: str = "nightly", ids: Sequence[str] = IDS, **fields: Any) -> None:  # noqa: ANN401
    """Define a map, and a job that runs on each of its shards."""
    await shards(hall, ids)
    await hall.job(job, partition="all_shards", overlap_policy="allow", **fields)


async def owners(hall: Hall) -> dict[str, str]:
    """The owner of each shard."""
    facts = await hall.world.stored(OwnershipAssigned)
    return {fact.resource.removeprefix("shard-"): fact.name for fact in facts}


def got(agent: Agent) -> Counter[str | None]:
    """The shards of the tasks that an agent got."""
    return Counter(task.shard for _, task in agent.got)


async def test_shard_that_no_agent_declares_is_free(hall: Hall) -> None:
    await fan_out(hall)
    await hall.matcher()
    agents = [await hall.agent(key, name, max_concurrent_jobs=2) for key, name in ((ONE, "a"), (TWO, "b"))]
    await hall.trigger()
    assert sum((got(agent) for agent in agents), Counter()) == Counter(IDS)
    assert [len(agent.got) for agent in agents] == [2, 2]
    assert await terms(hall) == []
    assert all(b"epoch" not in claim.message.encode() for claim in await claims(hall))
    assert await violations(hall) == []


async def test_declared_shards_are_spread_when_tasks_need_them(hall: Hall) -> None:
    await fan_out(hall)
    await hall.matcher()
    first = await hall.agent(ONE, "a", max_concurrent_jobs=9, shards=["*"])
    assert await terms(hall) == [("a", "vacant")] * 4
    second = await hall.agent(TWO, "b", max_concurrent_jobs=9, shards=list(IDS))
    other = await hall.agent(THREE, "c", max_concurrent_jobs=9)
    assert await owners(hall) == dict.fromkeys(IDS, "a")
    await hall.trigger()
    assert (await terms(hall))[4:] == [("b", "balanced")] * 2
    assert Counter((await owners(hall)).values()) == {"a": 2, "b": 2}
    assert (len(first.got), len(second.got), other.got) == (2, 2, [])
    by_sequence = {recorded.sequence: recorded.message for recorded in await hall.world.recorded(OwnershipAssigned)}
    for claim in await claims(hall):
        assert claim.message.epoch is not None
        assert by_sequence[claim.message.epoch].name == claim.message.worker
    for agent in (first, second):
        for index in range(2):
            await agent.reports(index)
    await hall.trigger()
    assert len(await terms(hall)) == 6, "no shard moves without a need"
    assert (got(first) + got(second), len(first.got)) == (Counter(dict.fromkeys(IDS, 2)), 4)
    assert await violations(hall) == []


async def test_shard_waits_for_an_agent_that_declares_it(hall: Hall) -> None:
    await fan_out(hall, ids=["s1", "s2"])
    await hall.matcher()
    owner = await hall.agent(ONE, "a", max_concurrent_jobs=9, shards=["s1"])
    other = await hall.agent(TWO, "b", max_concurrent_jobs=9)
    await owner.announce(ended=True)
    await hall.trigger()
    assert got(other) == {"s2": 1}, "s1 was declared once, and waits"
    successor = await hall.agent(THREE, "c", shards=["s1"])
    assert got(successor) == {"s1": 1}
    assert await terms(hall) == [("a", "vacant"), ("c", "ended")]
    assert await violations(hall) == []


async def test_silent_owner_loses_its_shards_and_their_tasks(hall: Hall) -> None:
    await fan_out(hall, ids=["s1", "s2"])
    await hall.matcher()
    lost = await hall.agent(ONE, "a", max_concurrent_jobs=9, shards=["*"])
    await hall.trigger()
    assert got(lost) == Counter(["s1", "s2"])
    successor = await hall.agent(TWO, "b", max_concurrent_jobs=9, shards=["*"])
    await lost.holds(*(task for _, task in lost.got))
    await hall.work()
    await hall.passes(SILENCE_S - 1)
    await successor.announce()
    await hall.work()
    assert successor.got == [], "a running task keeps its shard where it is"
    await hall.passes(2)
    assert (await terms(hall))[2:] == [("b", "silent")] * 2
    assert len(await hall.world.stored(Released)) == 2
    for index in range(2):  # of tasks that were lost, an agent gets one at a time
        await successor.reports(index)
    assert got(successor) == Counter(["s1", "s2"])
    assert len(await hall.world.stored(Completed)) == 2
    assert await violations(hall) == []


@pytest.mark.parametrize("reason", ["draining", "disabled", "ended", "withdrawn"])
async def test_owner_that_leaves_is_replaced(reason: str, hall: Hall) -> None:
    await fan_out(hall, ids=["s1"])
    await hall.matcher()
    owner = await hall.agent(ONE, "a", shards=["s1"])
    successor = await hall.agent(TWO, "b", shards=["s1"])
    changes: dict[str, dict[str, object]] = {
        "draining": {"mode": "draining"},
        "disabled": {"mode": "disabled"},
        "ended": {"ended": True},
        "withdrawn": {"shards": []},
    }
    await owner.announce(**changes[reason])
    assert await terms(hall) == [("a", "vacant")]
    await hall.trigger()
    assert await terms(hall) == [("a", "vacant"), ("b", reason)]
    assert (owner.got, len(successor.got)) == ([], 1)


async def test_disabled_name_loses_its_shard(hall: Hall) -> None:
    await fan_out(hall, ids=["s1"])
    await hall.matcher()
    await hall.agent(ONE, "a", shards=["s1"])
    successor = await hall.agent(TWO, "b", shards=["s1"])
    await decide(hall, AgentSwitched(name="a", enabled=False))
    await hall.trigger()
    assert (await terms(hall))[-1] == ("b", "disabled")
    assert len(successor.got) == 1


@pytest.mark.parametrize("fields", [{"functions": ["other"]}, {"queues": ["mail"]}], ids=["function", "queue"])
async def test_shard_moves_to_an_able_agent(fields: dict[str, Any], hall: Hall) -> None:
    await fan_out(hall, ids=["s1"])
    await hall.matcher()
    await hall.agent(ONE, "a", shards=["s1"], **fields)
    await hall.trigger()
    assert (await terms(hall), await claims(hall)) == ([("a", "vacant")], [])
    able = await hall.agent(TWO, "b", shards=["s1"])
    assert await terms(hall) == [("a", "vacant"), ("b", "unable")]
    assert len(able.got) == 1


async def test_agent_without_grant_keeps_no_shard(hall: Hall) -> None:
    """A worker of another user may declare every shard, and its grants decide."""
    await fan_out(hall)
    await hall.matcher(requires_grant=True)
    grants = {"a": ("mail", "*"), "b": ("default", "load")}
    for name, (queue, function) in grants.items():
        grant = QueueGrant(queue=queue, functions=(function,))
        await decide(hall, AgentGranted(name=name, grants=(grant,), shards=("*",)))
    hostile = await hall.agent(ONE, "a", max_concurrent_jobs=9, shards=["*"])
    stranger = await hall.agent(THREE, "c", max_concurrent_jobs=9, shards=["*"])
    able = await hall.agent(TWO, "b", max_concurrent_jobs=9, shards=["*"])
    await hall.trigger()
    assert (hostile.got, stranger.got, got(able)) == ([], [], Counter(IDS))
    assert await owners(hall) == dict.fromkeys(IDS, "b")


async def test_required_grants_include_those_of_shards(hall: Hall) -> None:
    """A name that may get every task declares the shards of another."""
    await fan_out(hall, ids=["s1", "s2"])
    await hall.matcher(requires_grant=True)
    everything = (QueueGrant(queue="*", functions=("*",)),)
    await decide(hall, AgentGranted(name="a", grants=everything))
    await decide(hall, AgentGranted(name="b", grants=everything, shards=("s1", "s2")))
    hostile = await hall.agent(ONE, "a", max_concurrent_jobs=9, shards=["*"])
    trusted = await hall.agent(TWO, "b", max_concurrent_jobs=9, shards=["*"])
    await hall.trigger()
    assert (await owners(hall), hostile.got, len(trusted.got)) == ({"s1": "b", "s2": "b"}, [], 2)
    await trusted.announce(ended=True)
    await hall.passes(LOOK_INTERVAL_S)
    await hall.trigger()
    assert ((await owners(hall))["s1"], hostile.got) == ("b", []), (
        "the tasks wait for a worker that may own their shard"
    )
    assert await violations(hall) == []


async def test_agent_owns_only_the_shards_of_its_grants(hall: Hall) -> None:
    """A hostile worker declares every shard, and operators gave it another."""
    await fan_out(hall, ids=["s1", "s2"])
    await hall.matcher(requires_grant=True)
    everything = (QueueGrant(queue="*", functions=("*",)),)
    await decide(hall, AgentGranted(name="a", grants=everything, shards=("s2",)))
    await decide(hall, AgentGranted(name="b", grants=everything, shards=("s1", "s2")))
    hostile = await hall.agent(ONE, "a", max_concurrent_jobs=9, shards=["*"])
    await hall.trigger()
    assert (await owners(hall), len(hostile.got)) == ({"s2": "a"}, 2)
    trusted = await hall.agent(TWO, "b", max_concurrent_jobs=9, shards=["*"])
    await hall.trigger()
    assert await owners(hall) == {"s1": "b", "s2": "a"}
    assert len(trusted.got) == 1
    await decide(hall, AgentGranted(name="a", grants=everything, shards=()))
    await hall.passes(LOOK_INTERVAL_S)
    await hall.trigger()
    assert (await owners(hall))["s2"] == "b"
    assert (await terms(hall))[-1] == ("b", "withdrawn")
    assert await violations(hall) == []


async def test_running_task_keeps_its_shard(hall: Hall) -> None:
    await fan_out(hall, ids=["s1", "s2"])
    await hall.matcher()
    first = await hall.agent(ONE, "a", max_concurrent_jobs=9, shards=["*"])
    await hall.trigger()
    second = await hall.agent(TWO, "b", max_concurrent_jobs=9, shards=["*"])
    await hall.trigger()
    assert (len(first.got), second.got) == (4, [])
    for index in range(4):
        await first.reports(index)
    await hall.passes(LOOK_INTERVAL_S)
    await hall.trigger()
    assert (len(first.got), len(second.got)) == (5, 1)
    assert await violations(hall) == []


async def test_unknown_shards_get_no_owner(hall: Hall) -> None:
    await shards(hall, ["s1"])
    await hall.matcher()
    await hall.agent(ONE, "a", shards=["s1", "s9"])
    assert await owners(hall) == {"s1": "a"}
    await shards(hall, ["s1", "s9"])
    await hall.work()
    assert await owners(hall) == {"s1": "a", "s9": "a"}


async def test_next_matcher_knows_the_owners(hall: Hall) -> None:
    await fan_out(hall, ids=["s1", "s2"])
    matcher = await hall.matcher()
    owner = await hall.agent(ONE, "b", max_concurrent_jobs=9, shards=["s1"])
    await hall.stop(matcher)
    await owner.announce(ended=True)
    other = await hall.agent(TWO, "a", max_concurrent_jobs=9)
    await hall.matcher()
    await other.announce()
    await hall.trigger()
    assert got(other) == {"s2": 1}
    assert await terms(hall) == [("b", "vacant")]
    assert await violations(hall) == []


async def test_first_owner_takes_tasks_that_wait(hall: Hall) -> None:
    await fan_out(hall)
    await hall.matcher()
    await hall.trigger()
    other = await hall.agent(TWO, "b", max_concurrent_jobs=1)
    assert len(other.got) == 1
    owner = await hall.agent(ONE, "a", max_concurrent_jobs=9, shards=["*"])
    assert len(owner.got) == 3
    await other.reports()
    assert len(other.got) == 1
    assert await violations(hall) == []


async def test_claim_after_another_matcher_binds_is_released(hall: Hall) -> None:
    """A matcher that leads beside another, and does not know the first owner, claims for any worker."""
    await fan_out(hall, ids=["s1"])
    late = await hall.matcher()
    old = await hall.agent(ONE, "a", max_concurrent_jobs=9)
    await hall.trigger()
    await old.reports()
    assert len(old.got) == 1
    async with hall.lagging(late):
        fact = OwnershipAssigned(resource="shard-s1", name="b", agent_id=TWO, reason="vacant")
        at = await hall.world.log.append(fact, expect=0)
        await hall.world.trigger("nightly", message_id="late")
        await hall.world.run(hall.world.planner)
        for task in await hall.world.log.read("execution.*.*.admitted.>", after=at):
            late.learn(task)
        await late.run_once()
    stale = (await claims(hall))[-1]
    assert (stale.message.worker, stale.message.epoch, len(old.got)) == ("a", None, 1)
    new = await hall.agent(TWO, "b", shards=["s1"])
    await hall.work()
    assert [fact.reason for fact in await hall.world.stored(Released)] == ["handed_back"]
    assert (len(old.got), len(new.got)) == (1, 1)
    await new.reports()
    assert len(await hall.world.stored(Completed)) == 2
    assert await violations(hall) == []


async def test_claim_names_the_owner(hall: Hall) -> None:
    await fan_out(hall, ids=["s1"])
    await hall.matcher()
    await hall.agent(ONE, "a", shards=["s1"])
    await hall.trigger()
    [claim] = [recorded.message for recorded in await hall.world.recorded(Started)]
    [owner] = await hall.world.recorded(OwnershipAssigned)
    assert (claim.worker, claim.agent, claim.epoch) == ("a", ONE, owner.sequence)


async def test_shards_take_turns_while_agents_change(hall: Hall, monkeypatch: pytest.MonkeyPatch) -> None:
    await fan_out(hall, ids=["s1", "s2"])
    matcher = await hall.matcher()
    restless = await hall.agent(ONE, "a", shards=["s1"])
    lost = await hall.agent(TWO, "b", shards=["s2"])
    await hall.agent(THREE, "c", shards=["s2"])
    for _ in range(2):
        await hall.trigger()
    assert await owners(hall) == {"s1": "a", "s2": "b"}
    await lost.announce(ended=True)
    monkeypatch.setattr("tocsin.stages.matcher.owners.COMPARED_AT_ONCE", 1)
    for index in range(2):
        await restless.announce(shards=["s1", f"other-{index}"])
        matcher.agents.read()
        await matcher._owners.settle(since=0.0)
    assert await owners(hall) == {"s1": "a", "s2": "c"}
