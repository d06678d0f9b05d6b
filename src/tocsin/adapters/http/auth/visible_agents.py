"""Visibility of agents to callers that are bound to namespaces."""

from collections.abc import Iterable, Sequence

from ....domain.access import Principal
from ....domain.agent import AgentRecord


def sees_agent(caller: Principal, agent: AgentRecord) -> bool:
    """Return whether a caller may see an agent: it reaches all its queues."""
    return not caller.is_bound or (bool(agent.queues) and all(map(caller.reaches, agent.queues)))


def seen_agents(caller: Principal, agents: Iterable[AgentRecord]) -> list[AgentRecord]:
    return [_as_seen(caller, agent) for agent in agents if sees_agent(caller, agent)]


def narrowed(caller: Principal, agents: Sequence[AgentRecord]) -> Sequence[AgentRecord]:
    """Return the agents of the queues that a caller reaches, without their other queues."""
    if not caller.is_bound:
        return agents
    reached = ((agent, [*filter(caller.reaches, agent.queues)]) for agent in agents)
    return [agent.model_copy(update={"queues": queues}) for agent, queues in reached if queues]


def _as_seen(caller: Principal, agent: AgentRecord) -> AgentRecord:
    """Return an agent without grants of queues that the caller does not reach.

    An operator may have stored them for its name.
    """
    if not caller.is_bound or agent.grants is None:
        return agent
    return agent.model_copy(update={"grants": [grant for grant in agent.grants if caller.reaches(grant.queue)]})
