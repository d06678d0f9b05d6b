"""The owners of shards, as operators see them."""

from dataclasses import replace
from typing import Final

from tests.stages.world import World
from tocsin.domain.agent import AgentRecord, AgentState
from tocsin.domain.events import OwnershipAssigned, Shard, ShardState
from tocsin.ports import EventLog
from tocsin.services.agents import AgentRegistry
from tocsin.services.health.coordination import Shards, bindings, shards_of
from tocsin.services.select import TABLES, shard_rows
from tocsin.services.shards import ShardMaps, ShardOwner, owners_of, with_owners
from tocsin.subjects import Bucket

ONE: Final = "01890f3e-0000-7000-8000-000000000001"
TWO: Final = "01890f3e-0000-7000-8000-000000000002"


async def assign(log: EventLog, shard: str, name: str, agent_id: str) -> None:
    await log.append(
        OwnershipAssigned(resource=f"shard-{shard}", name=name, agent_id=agent_id, reason="vacant"), expect=0
    )


async def test_map_and_agents_show_the_owners() -> None:
    world = World()
    await ShardMaps(world.log).apply(Shard(shard_id=shard) for shard in ("a", "b", "c"))
    await assign(world.log, "a", "one", ONE)
    await assign(world.log, "b", "gone", TWO)
    await assign(world.log, "removed", "one", ONE)
    executor = OwnershipAssigned(resource="executor", name="one", agent_id=ONE, reason="vacant")
    await world.log.append(executor, expect=0)
    record = AgentRecord(name="one", agent_id=ONE, state=AgentState.ENABLED, shards=["*"])
    await world.projections.put(Bucket.AGENTS, f"one.{ONE}", record.model_dump_json().encode())
    agents = await AgentRegistry(world.log, world.projections).agents()
    assert [agent.owned_shards for agent in agents] == [["a", "removed"]]
    shown = with_owners(await ShardMaps(world.log).newest(), await owners_of(world.log), agents)
    assert shown.owners == {
        "a": ShardOwner(name="one", agent_id=ONE, state=AgentState.ENABLED),
        "b": ShardOwner(name="gone", agent_id=TWO, state=AgentState.LOST),
    }
    rows = [dict(zip(TABLES["shards"], row, strict=True)) for row in shard_rows(shown)]
    assert [(row["owner_name"], row["owner_uuid"]) for row in rows] == [("one", ONE), ("gone", TWO), (None, None)]


async def test_agents_without_shards_need_no_owners() -> None:
    world = World()
    await assign(world.log, "a", "one", ONE)
    record = AgentRecord(name="one", agent_id=ONE, state=AgentState.ENABLED)
    await world.projections.put(Bucket.AGENTS, f"one.{ONE}", record.model_dump_json().encode())
    [agent] = await AgentRegistry(world.log, world.projections).agents()
    assert agent.owned_shards == []


async def test_shards_of_a_status_are_counted() -> None:
    world = World()
    assert shards_of(await bindings(world.log), []) == Shards(0, 0, 0, free=0, without_owner=0)
    states = {"drains": ShardState.DRAINING, "off": ShardState.DISABLED, "a": ShardState.ACTIVE, "b": ShardState.ACTIVE}
    free = {"free": ShardState.ACTIVE, "free-off": ShardState.DISABLED}
    await ShardMaps(world.log).apply(Shard(shard_id=name, state=state) for name, state in (states | free).items())
    for shard in (*states, "removed"):
        await assign(world.log, shard, "one", ONE)
    bound = await bindings(world.log)
    owner = AgentRecord(name="one", agent_id=ONE, state=AgentState.ENABLED, shards=["*"], granted_shards=["a"])
    counted = Shards(active=3, draining=1, disabled=2, free=1, without_owner=2, listed=("b", "drains"))
    assert shards_of(bound, [owner]) == counted
    unlimited = owner.model_copy(update={"granted_shards": None})
    assert shards_of(bound, [unlimited]) == replace(counted, without_owner=0, listed=())
    ungranted = unlimited.model_copy(update={"needs_grant": True})
    assert shards_of(bound, [ungranted]) == replace(counted, without_owner=3, listed=("a", "b", "drains"))
    assert shards_of(bound, None) == replace(counted, without_owner=None, listed=())
