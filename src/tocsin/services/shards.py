"""The shard map, the owners of shards, and the executor leader.

The executor leader alone gets the tasks of `LEADER_ONLY` jobs.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from typing_extensions import override

from .. import subjects
from ..domain import agent_grants, shard_map
from ..domain.agent import AgentRecord, AgentState
from ..domain.documented_model import DocumentedModel
from ..domain.events import OwnershipAssigned, Recorded, Shard, ShardsDefined, ShardState
from ..domain.ownership import EXECUTOR, declares, shard_of
from ..ports import EventLog
from .documents import Document


class ShardOwner(DocumentedModel, frozen=True, defer_build=True):
    """The agent that alone gets the tasks of a shard."""

    name: str
    """The name of the agent."""
    agent_id: str
    """The id of its process."""
    state: AgentState
    """The state of the agent. Unless it is `ENABLED`, the next task of the shard gets another owner."""


@dataclass(frozen=True, slots=True)
class ShardMap:
    """The newest map and its version.

    The version is the sequence of its event; 0: there is no map.
    """

    version: int
    shards: tuple[Shard, ...]
    owners: Mapping[str, ShardOwner] = field(default_factory=dict)
    """The agent that alone gets the tasks of a shard, by shard; any worker gets the tasks of other shards.

    Empty if they were not read, and for a caller that is bound to namespaces.
    """


class ShardMaps(Document[ShardsDefined, ShardMap]):
    """The shard map of an installation."""

    kind, scope, draft = ShardsDefined, subjects.shard_map(), staticmethod(shard_map.draft)

    @override
    def view(self, newest: Recorded[ShardsDefined] | None) -> ShardMap:
        return ShardMap(0, ()) if newest is None else ShardMap(newest.sequence, newest.message.shards)


async def owners_of(log: EventLog) -> dict[str, OwnershipAssigned]:
    """Return the newest owner of each owned shard."""
    facts = [recorded.message for recorded in await log.load(subjects.filter_for("ownership.assigned"))]
    by_shard = ((shard_of(fact.resource), fact) for fact in facts if isinstance(fact, OwnershipAssigned))
    return {shard: fact for shard, fact in by_shard if shard is not None}


async def with_shards(log: EventLog, agents: Sequence[AgentRecord]) -> list[AgentRecord]:
    """Return agents with the shards that each owns."""
    if not any(agent.shards for agent in agents):
        return list(agents)
    owned: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for shard, owner in sorted((await owners_of(log)).items()):
        owned[owner.name, owner.agent_id].append(shard)
    return [
        agent.model_copy(update={"owned_shards": owned[key]})
        if (key := (agent.name, agent.agent_id)) in owned and agent.state is not AgentState.LOST
        else agent
        for agent in agents
    ]


def with_owners(newest: ShardMap, owners: Mapping[str, OwnershipAssigned], agents: Iterable[AgentRecord]) -> ShardMap:
    states = {(agent.name, agent.agent_id): agent.state for agent in agents}
    of_map = {shard.shard_id: owners[shard.shard_id] for shard in newest.shards if shard.shard_id in owners}
    shown = {
        shard: ShardOwner(
            name=owner.name,
            agent_id=owner.agent_id,
            state=states.get((owner.name, owner.agent_id), AgentState.LOST),
        )
        for shard, owner in of_map.items()
    }
    return replace(newest, owners=shown)


def may_own(agent: AgentRecord, shard: str) -> bool:
    """Return whether an agent takes tasks, declares a shard, and has the right to it."""
    is_permitted = agent_grants.may_own(agent.granted_shards, shard, requires_grant=agent.needs_grant)
    return agent.state is AgentState.ENABLED and is_permitted and declares(agent.shards, shard)


def without_owner(
    newest: ShardMap, owners: Mapping[str, OwnershipAssigned], agents: Collection[AgentRecord]
) -> list[str]:
    """Return the shards that had an owner and that no agent may own now.

    Disabled shards are left out.
    """
    enabled = {shard.shard_id for shard in newest.shards if shard.state is not ShardState.DISABLED}
    return sorted(shard for shard in enabled & owners.keys() if not any(may_own(agent, shard) for agent in agents))


def wait_for_owner(
    agents: Iterable[AgentRecord], owner: OwnershipAssigned, shard: str, queue: str, function: str
) -> str:
    """Return why a task that only the owner of a shard gets waits, for people."""
    known = tuple(agents)
    waits = f"waits for the owner of shard {shard}"
    current = next((agent for agent in known if (agent.name, agent.agent_id) == (owner.name, owner.agent_id)), None)
    if current is None or not may_own(current, shard):
        if any(may_own(agent, shard) for agent in known):
            return f"{waits}: {owner.name} takes no more tasks, and another is chosen soon"
        return f"{waits}: no enabled agent that may own it declares it (`Worker(shards=[{shard!r}])`, `tocsin agents allow`)"
    return f"{waits}, {with_lack(current, queue, function)}"


async def with_leader(log: EventLog, agents: Sequence[AgentRecord]) -> list[AgentRecord]:
    """Return agents, with a mark on the leader."""
    if not any(agent.leader_candidate for agent in agents):
        return list(agents)
    newest = await log.last(subjects.ownership(EXECUTOR))
    owner = None if newest is None else newest.message
    if not isinstance(owner, OwnershipAssigned):
        return list(agents)
    return [
        agent.model_copy(update={"is_leader": True})
        if (agent.name, agent.agent_id) == (owner.name, owner.agent_id) and agent.state is not AgentState.LOST
        else agent
        for agent in agents
    ]


def wait_for_leader(agents: Iterable[AgentRecord], queue: str, function: str) -> str:
    """Return why a task that only the executor leader gets waits, for people."""
    known = tuple(agents)
    waits = "waits for the executor leader"
    leader = next((agent for agent in known if agent.is_leader), None)
    if leader is None or leader.state is not AgentState.ENABLED:
        standing = [agent for agent in known if agent.leader_candidate and agent.state is AgentState.ENABLED]
        if not standing:
            return f"{waits}: no enabled agent stands (`worker.leader_candidate`)"
        if all(_lack(agent, queue, function) for agent in standing):
            return f"{waits}: no enabled agent that stands gets {function} of queue {queue}"
        return f"{waits}: none is chosen yet"
    return f"{waits} {with_lack(leader, queue, function)}"


def with_lack(owner: AgentRecord, queue: str, function: str) -> str:
    """Return the name of an owner, and why it cannot have a task, for people."""
    lack = _lack(owner, queue, function)
    return owner.name if lack is None else f"{owner.name}, which {lack}"


def _lack(owner: AgentRecord, queue: str, function: str) -> str | None:
    """Return the reason why an owner cannot have a task; None: it can."""
    if queue not in owner.queues:
        return f"does not read queue {queue}"
    if function not in owner.functions:
        return f"does not have {function}"
    if not owner.may_get(queue, function):
        return f"has no grant for {function} of queue {queue}"
    return None
