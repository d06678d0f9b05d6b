"""The executor leader: the agent that alone gets the tasks of `LEADER_ONLY` jobs."""

from collections.abc import Iterable, Sequence

from .. import subjects
from ..domain.agent import AgentRecord, AgentState
from ..domain.events import OwnershipAssigned
from ..domain.ownership import EXECUTOR
from ..ports import EventLog


async def marked(log: EventLog, agents: Sequence[AgentRecord]) -> list[AgentRecord]:
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
    """Return the name of an owner, and what it lacks for a task, for people."""
    lack = _lack(owner, queue, function)
    return owner.name if lack is None else f"{owner.name}, which {lack}"


def _lack(owner: AgentRecord, queue: str, function: str) -> str | None:
    """Return what an owner lacks for a task; None: nothing."""
    if queue not in owner.queues:
        return f"does not read queue {queue}"
    if function not in owner.functions:
        return f"does not have {function}"
    if not owner.may_get(queue, function):
        return f"has no grant for {function} of queue {queue}"
    return None
