"""Each reason that holds back a task, as matcher and agents show it."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any, Final

import pytest

from tests.domain.given import JOB
from tests.stages.test_matcher import TWO, Hall
from tocsin import subjects
from tocsin.domain.agent import AgentRecord, AgentState
from tocsin.domain.events import Dispatched, Namespace, OwnershipAssigned, QueueGrant, Shard
from tocsin.services.hold_ups import HoldUp, HoldUpReader
from tocsin.services.namespaces import Namespaces
from tocsin.services.queue_decisions import QueueDecisions
from tocsin.services.shards import ShardMaps
from tocsin.settings import Queue, QueueRate
from tocsin.stages.matcher.backlog_display import INTERVAL_S
from tocsin.subjects import Bucket

AGENT: Final = "01890f3e-0000-7000-8000-000000000001"
ENABLED: Final[dict[str, Any]] = {"name": "mail-1", "agent_id": AGENT, "state": AgentState.ENABLED}


@pytest.fixture
async def hall() -> AsyncIterator[Hall]:
    async with AsyncExitStack() as stack:
        yield Hall(stack)


async def registered(hall: Hall, **fields: Any) -> None:  # noqa: ANN401
    """Show an agent, as the agent keeper does."""
    record = AgentRecord(**ENABLED | {"queues": ["default"], "functions": ["load"]} | fields)
    await hall.world.projections.put(Bucket.AGENTS, f"mail-1.{AGENT}", record.model_dump_json().encode())


async def newest(hall: Hall, *, bridged: tuple[str, ...] = ()) -> list[HoldUp]:
    """Return what holds back the newest execution, a moment later."""
    await hall.passes(INTERVAL_S)
    await hall.passes(INTERVAL_S)
    task = (await hall.world.recorded(Dispatched))[-1].message
    facts = await hall.world.log.load(subjects.execution(task.job, task.execution_id))
    return list(await HoldUpReader(hall.world.log, hall.world.projections, bridged=bridged).of(facts))


async def only(hall: Hall) -> HoldUp:
    [hold_up] = await newest(hall)
    return hold_up


async def test_paused_queue_comes_first(hall: Hall) -> None:
    await hall.job(concurrency={"limit": 1})
    await hall.matcher()
    await QueueDecisions(hall.world.log).switch("default", paused=True, reason="deploy")
    await hall.trigger()
    hold_up = await only(hall)
    assert (hold_up.kind, hold_up.pause and hold_up.pause.reason) == ("queue_paused", "deploy")


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"state": AgentState.LOST}, "no_worker"),
        ({"queues": ["mail"]}, "no_worker"),
        ({"functions": ["mail"]}, "no_function"),
        ({"grants": [QueueGrant(queue="mail", functions=("*",))]}, "no_grant"),
        ({"needs_grant": True}, "no_grant"),
    ],
)
async def test_task_without_a_worker(hall: Hall, fields: dict[str, Any], kind: str) -> None:
    await hall.job()
    await hall.matcher()
    await registered(hall, **fields)
    await hall.trigger()
    hold_up = await only(hall)
    assert (hold_up.kind, hold_up.step, hold_up.queue) == (kind, "main", "default")
    assert JOB in hold_up.message


@pytest.mark.parametrize(
    ("concurrency", "kind", "message"),
    [
        ({"limit": 1}, "job_limit", f"concurrency limit 1 of job {JOB} (1 run)"),
        ({"limit": 1, "key": "input.customer"}, "key_limit", f"concurrency limit 1 of input.customer=42 of job {JOB} (1 run)"),
    ],
)  # fmt: skip
async def test_limit_of_the_job(hall: Hall, concurrency: dict[str, Any], kind: str, message: str) -> None:
    await hall.job(concurrency=concurrency, input={"customer": 42})
    await hall.matcher()
    await hall.agent(max_concurrent_jobs=4)
    await registered(hall)
    await hall.trigger()
    await hall.trigger()
    hold_up = await only(hall)
    assert (hold_up.kind, hold_up.message, hold_up.limit, hold_up.running) == (kind, message, 1, 1)


@pytest.mark.parametrize(
    ("queue", "kind"),
    [
        (Queue(transport="matched", concurrency=1), "queue_limit"),
        (Queue(transport="matched", rate=QueueRate(limit=1, per=86_400)), "queue_rate"),
    ],
)
async def test_limit_of_the_queue(hall: Hall, queue: Queue, kind: str) -> None:
    hall.queues["default"] = queue
    await hall.job()
    await hall.matcher()
    await hall.agent(max_concurrent_jobs=4)
    await registered(hall)
    await hall.trigger()
    await hall.trigger()
    hold_up = await only(hall)
    assert hold_up.kind == kind
    assert "queue default" in hold_up.message


async def test_limit_of_the_namespace(hall: Hall) -> None:
    hall.queues["a.q"] = Queue(transport="matched")
    await Namespaces(hall.world.log).apply([Namespace(name="a", max_running=1)])
    await hall.job("a.one", queue="a.q")
    await hall.matcher()
    await hall.agent(max_concurrent_jobs=4, queues=["a.q"])
    await registered(hall, queues=["a.q"])
    await hall.trigger("a.one")
    await hall.trigger("a.one")
    hold_up = await only(hall)
    assert (hold_up.kind, hold_up.message) == ("namespace_limit", "quota max_running of namespace a")


async def test_busy_worker_is_no_hold_up(hall: Hall) -> None:
    await hall.job()
    await hall.matcher()
    await hall.agent(max_concurrent_jobs=1)
    await registered(hall)
    await hall.trigger()
    await hall.trigger()
    assert await newest(hall) == []


async def test_limit_of_another_job_is_not_named(hall: Hall) -> None:
    await hall.job("other", concurrency={"limit": 1})
    await hall.job()
    await hall.matcher()
    await hall.agent(max_concurrent_jobs=1)
    await registered(hall)
    await hall.trigger("other")
    await hall.trigger("other")
    await hall.trigger()
    assert await newest(hall) == []


async def test_bridged_queue_needs_no_agent(hall: Hall) -> None:
    await hall.job()
    await hall.trigger()
    assert await newest(hall, bridged=("default",)) == []


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"leader_candidate": False},
            "waits for the executor leader: no enabled agent stands (`worker.leader_candidate`)",
        ),
        ({"leader_candidate": True}, "waits for the executor leader: none is chosen yet"),
    ],
)
async def test_task_waits_until_a_leader_is_chosen(hall: Hall, fields: dict[str, Any], message: str) -> None:
    await hall.job(job_class="LEADER_ONLY")
    await hall.matcher()
    await registered(hall, **fields)
    await hall.trigger()
    hold_up = await only(hall)
    assert (hold_up.kind, hold_up.step, hold_up.message) == ("leader", "main", message)


async def test_task_waits_for_a_candidate_with_its_function(hall: Hall) -> None:
    """The agent that stands lacks the function, and the agent that has it does not stand."""
    await hall.job(job_class="LEADER_ONLY")
    await hall.matcher()
    await registered(hall, leader_candidate=True, functions=["tocsin.sql"])
    other = AgentRecord(**ENABLED | {"name": "z", "agent_id": TWO, "queues": ["default"], "functions": ["load"]})
    await hall.world.projections.put(Bucket.AGENTS, f"z.{TWO}", other.model_dump_json().encode())
    await hall.trigger()
    message = "waits for the executor leader: no enabled agent that stands gets load of queue default"
    assert (await only(hall)).message == message


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "waits for the executor leader mail-1"),
        ({"state": AgentState.DRAINING}, "waits for the executor leader: none is chosen yet"),
        ({"queues": ["mail"]}, "waits for the executor leader mail-1, which does not read queue default"),
        ({"functions": ["other"]}, "waits for the executor leader mail-1, which does not have load"),
        ({"needs_grant": True}, "waits for the executor leader mail-1, which has no grant for load of queue default"),
    ],
)
async def test_task_waits_for_the_leader(hall: Hall, fields: dict[str, Any], message: str) -> None:
    """Another agent could run it."""
    await hall.job(job_class="LEADER_ONLY")
    await hall.matcher()
    leader = await hall.agent(AGENT, "mail-1", max_concurrent_jobs=1)
    await hall.trigger()
    await leader.holds(leader.got[0][1])
    await hall.trigger()
    await registered(hall, leader_candidate=True, **fields)
    other = AgentRecord(**ENABLED | {"name": "z", "agent_id": TWO, "queues": ["default"], "functions": ["load"]})
    other = other.model_copy(update={"leader_candidate": True})
    await hall.world.projections.put(Bucket.AGENTS, f"z.{TWO}", other.model_dump_json().encode())
    hold_up = await only(hall)
    assert (hold_up.kind, hold_up.message) == ("leader", message)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "waits for the owner of shard s1, mail-1"),
        ({"state": AgentState.DRAINING}, "waits for the owner of shard s1: mail-1 takes no more tasks"),
        ({"shards": []}, "waits for the owner of shard s1: mail-1 takes no more tasks"),
        ({"granted_shards": ["s2"]}, "waits for the owner of shard s1: mail-1 takes no more tasks"),
        ({"queues": ["mail"]}, "waits for the owner of shard s1, mail-1, which does not read queue default"),
        ({"functions": ["other"]}, "waits for the owner of shard s1, mail-1, which does not have load"),
        ({"needs_grant": True}, "waits for the owner of shard s1: mail-1 takes no more tasks"),
        (
            {"needs_grant": True, "granted_shards": ["s1"]},
            "waits for the owner of shard s1, mail-1, which has no grant for load",
        ),
    ],
)
async def test_task_waits_for_the_owner_of_its_shard(hall: Hall, fields: dict[str, Any], message: str) -> None:
    await ShardMaps(hall.world.log).apply([Shard(shard_id="s1")])
    await hall.job(partition={"single_shard": "s1"})
    owner = OwnershipAssigned(resource="shard-s1", name="mail-1", agent_id=AGENT, reason="vacant")
    await hall.world.log.append(owner, expect=0)
    await hall.trigger()
    await registered(hall, **{"shards": ["s1"], **fields})
    other = AgentRecord(**ENABLED | {"name": "z", "agent_id": TWO, "queues": ["default"], "functions": ["load"]})
    other = other.model_copy(update={"shards": ["*"]})
    await hall.world.projections.put(Bucket.AGENTS, f"z.{TWO}", other.model_dump_json().encode())
    hold_up = await only(hall)
    assert hold_up.kind == "shard"
    assert hold_up.message.startswith(message)


async def test_owner_out_of_reach_is_not_named(hall: Hall) -> None:
    await ShardMaps(hall.world.log).apply([Shard(shard_id="s1")])
    await hall.job(partition={"single_shard": "s1"})
    owner = OwnershipAssigned(resource="shard-s1", name="mail-1", agent_id=AGENT, reason="vacant")
    await hall.world.log.append(owner, expect=0)
    await hall.trigger()
    await registered(hall, shards=["s1"])
    known = AgentRecord(name="pay-1", agent_id=TWO, state=AgentState.ENABLED, queues=["default"], functions=["load"])
    await hall.world.projections.put(Bucket.AGENTS, f"pay-1.{TWO}", known.model_dump_json().encode())
    await hall.passes(INTERVAL_S)
    task = (await hall.world.recorded(Dispatched))[-1].message
    facts = await hall.world.log.load(subjects.execution(task.job, task.execution_id))
    for narrow, is_named in ((lambda agents: agents, True), (lambda _: [known], False)):
        [hold_up] = await HoldUpReader(hall.world.log, hall.world.projections, narrow=narrow).of(facts)
        assert hold_up.kind == "shard"
        assert ("mail-1" in hold_up.message) is is_named


async def test_shard_that_no_agent_declares_now(hall: Hall) -> None:
    await ShardMaps(hall.world.log).apply([Shard(shard_id="s1")])
    await hall.job(partition={"single_shard": "s1"})
    owner = OwnershipAssigned(resource="shard-s1", name="gone", agent_id=TWO, reason="vacant")
    await hall.world.log.append(owner, expect=0)
    await hall.trigger()
    await registered(hall)
    assert (await only(hall)).message == (
        "waits for the owner of shard s1: no enabled agent that may own it declares it "
        "(`Worker(shards=['s1'])`, `tocsin agents allow`)"
    )
