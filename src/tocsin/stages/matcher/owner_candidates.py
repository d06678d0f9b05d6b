"""The agents that may own a resource, and what keeps an owner from staying."""

from collections import Counter
from collections.abc import Callable, Collection, Iterator

from ...domain import ownership
from ...domain.agent import agent_key
from ...domain.events.shards import OwnershipReason
from ...domain.open_task import LaneKey
from ...domain.ownership import Candidate, Owner
from ...domain.task_offers import Granted
from ...ports import Clock
from .agents import SILENCE_S, HeardAgent, HeardAgents
from .operator_decisions import OperatorDecisions


class OwnerCandidates:
    """Compares resources with the agents that the matcher hears."""

    def __init__(self, agents: HeardAgents, decisions: OperatorDecisions, clock: Clock) -> None:
        self._agents = agents
        self._decisions = decisions
        self._clock = clock

    def obstacle(self, resource: str, owner: Owner, *, since: float) -> OwnershipReason | None:
        """Return why an owner may not stay; None: it stays.

        `since`: seconds of the monotonic clock from which on agents could be heard.
        """
        agent = self._agents.get(key_of(owner))
        heard_at = since if agent is None else max(agent.heard_at, since)
        if agent is not None and agent.has_ended:
            return "ended"
        if self._decisions.is_disabled(owner.name) or (agent is not None and agent.mode == "disabled"):
            return "disabled"
        if self._decisions.is_draining(key_of(owner)) or (agent is not None and agent.mode == "draining"):
            return "draining"
        if agent is not None and not self._stands(agent, resource):
            return "withdrawn"
        return "silent" if self._clock.monotonic() - heard_at >= SILENCE_S else None

    def standing(self) -> list[HeardAgent]:
        """Return the agents that may get tasks now."""
        now = self._clock.monotonic()
        return [
            agent
            for agent in self._agents
            if agent.takes_tasks
            and not self._decisions.is_disabled(agent.name)
            and not self._decisions.is_draining(agent.key)
            and not agent.is_silent(now)
        ]

    def of(
        self, resource: str, lanes: Collection[LaneKey], owned: Counter[str], standing: Collection[HeardAgent]
    ) -> Iterator[Candidate]:
        """Yield the agents that may own a resource.

        An agent that can take none of the tasks that wait does not become the executor leader, which keeps the lease from then on.

        Args:
            resource: the resource.
            lanes: the queues and lanes of its open tasks.
            owned: the number of resources that each agent owns, by its key.
            standing: the agents that may get tasks now.
        """
        is_shard = ownership.shard_of(resource) is not None
        for agent in standing:
            if self._stands(agent, resource):
                lacks = self._lacks(agent, lanes)
                if is_shard or not lanes or lacks < len(lanes):
                    yield Candidate(lacks, owned[agent.key], agent.name, agent.agent_id)

    def lacks(self, owner: Owner, lanes: Collection[LaneKey]) -> int:
        """Return the number of lanes that an owner cannot take.

        An owner that was not heard yet counts as able.
        """
        agent = self._agents.get(key_of(owner))
        return 0 if agent is None else self._lacks(agent, lanes)

    def _lacks(self, agent: HeardAgent, lanes: Collection[LaneKey]) -> int:
        may_run = _may_run(agent, self._decisions.granted(agent))
        return sum(not may_run(queue, ownership.function_of(lane)) for queue, lane in lanes)

    def _stands(self, agent: HeardAgent, resource: str) -> bool:
        """Return whether an agent wants the tasks of a resource, and may get any."""
        shard = ownership.shard_of(resource)
        if shard is None:
            wants = agent.is_candidate
        else:
            wants = ownership.declares(agent.shards, shard) and self._decisions.may_own(agent.name, shard)
        return wants and agent.max_concurrent_jobs > 0 and self._decisions.granted(agent) != ()


def key_of(owner: Owner | Candidate) -> str:
    """Return the key of the agent that is or becomes an owner."""
    return agent_key(owner.name, owner.agent_id)


def _may_run(agent: HeardAgent, granted: Granted | None) -> Callable[[str, str], bool]:
    """Return whether an agent gets the tasks of a queue and a function."""
    if granted is None:
        return lambda queue, function: queue in agent.queues and function in agent.functions
    by_queue = dict(granted)
    return lambda queue, function: function in by_queue.get(queue, ())
