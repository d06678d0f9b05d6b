"""Decisions of operators: paused and purged queues, grants of agents, namespaces, and shards."""

from collections.abc import Mapping

from ... import subjects
from ...domain import policy, queue
from ...domain.agent import AgentState, agent_key
from ...domain.agent_grants import granted_of, may_get, may_own
from ...domain.events import (
    AgentDrainStarted,
    AgentForgotten,
    AgentGranted,
    AgentSwitched,
    Message,
    NamespacesDefined,
    PolicyDefined,
    QueueFact,
    Recorded,
    ShardsDefined,
    Started,
)
from ...domain.open_task import OpenTask
from ...domain.queue import Queue
from ...domain.task_board import TaskBoard
from ...domain.task_offers import Granted
from ...engine.outside_workers import OutsideName
from .agents import HeardAgent


def filters() -> tuple[str, ...]:
    """Return filters over these events in the ledger."""
    kinds = (AgentGranted, AgentSwitched, AgentDrainStarted, AgentForgotten)
    return (
        subjects.queue_events(),
        subjects.policy(),
        subjects.shard_map(),
        subjects.namespaces(),
        *(each for kind in kinds for each in subjects.filters_of(kind)),
    )


class OperatorDecisions:
    """A fold of the newest events."""

    def __init__(self, board: TaskBoard, *, requires_grant: bool) -> None:
        """Keep purged tasks of `board` from agents, and tell it the namespaces.

        `requires_grant`: agents of a name without a grant get no tasks.
        """
        self._board = board
        self._requires_grant = requires_grant
        self._queues: dict[str, Queue] = {}
        """The queues that are paused or were purged."""
        self._room: Mapping[str, int] | None = None
        """See `room`; None: a decision on a queue came since it was made."""
        self._grants: dict[str, AgentGranted] = {}
        self._disabled: set[str] = set()
        """The names of agents, and the ids of workers over HTTP, that take no tasks."""
        self._leaving: set[str] = set()
        """Those of them that are workers over HTTP and drain."""
        self._draining: set[str] = set()
        """The keys of processes that operators drain."""
        self._max_per_agent: int | None = None
        self.revision = 0
        """The number of decisions that were learned."""
        self.shards: frozenset[str] = frozenset()
        """The shards of the newest map, in any state."""
        self.is_complete = False
        """The whole ledger was read once."""

    def learn(self, recorded: Recorded[Message]) -> None:
        """Apply an event."""
        fact = recorded.message
        if isinstance(fact, QueueFact):
            self._learn_of_queue(fact.queue, recorded)
        elif isinstance(fact, PolicyDefined):
            self._max_per_agent = fact.max_concurrent_jobs
        elif isinstance(fact, NamespacesDefined):
            self._board.declare({namespace.name: namespace.max_running for namespace in fact.namespaces})
        elif isinstance(fact, ShardsDefined):
            self.shards = frozenset(shard.shard_id for shard in fact.shards)
        elif isinstance(fact, AgentGranted):
            self._grants[fact.name] = fact
        elif isinstance(fact, AgentSwitched):
            (self._disabled.discard if fact.enabled else self._disabled.add)(fact.name)
            (self._leaving.add if fact.draining else self._leaving.discard)(fact.name)
        elif isinstance(fact, AgentDrainStarted):
            self._draining.add(agent_key(fact.name, fact.agent_id))
        elif isinstance(fact, AgentForgotten):
            self._draining.discard(agent_key(fact.name, fact.agent_id))
        self.revision += 1

    def _learn_of_queue(self, name: str, recorded: Recorded[Message]) -> None:
        state = self._queues[name] = queue.evolve(self.queue(name), recorded)
        if not state.is_paused and state.purge is None:
            del self._queues[name]
        self._room = None  # it is made once for all events of a batch
        if state.purge is not None:
            self._board.purge(name, state.purge.message.upto)

    def queue(self, name: str) -> Queue:
        """Return the state of a queue."""
        return self._queues.get(name, queue.initial)

    @property
    def room(self) -> Mapping[str, int]:
        """The number of tasks that may be taken from a queue: none of paused queues."""
        if self._room is None:
            self._room = {name: 0 for name, each in self._queues.items() if each.is_paused}
        return self._room

    def slots(self, announced: int) -> int:
        """Return the number of tasks that an agent with announced slots may have."""
        return policy.slots(announced, self._max_per_agent)

    def permits(self, task: OpenTask, claim: Started) -> bool:
        """Return whether a claim may be stored, however long ago its task was chosen."""
        queue = self._queues.get(task.queue)
        if queue is not None and (queue.is_paused or queue.purges(task.sequence)):
            return False
        if claim.agent is None:
            return self.serves_over_http(OutsideName(claim.holder or "", claim.worker))
        fact = self._grants.get(claim.worker)
        is_granted = not self._requires_grant if fact is None else may_get(fact.grants, task.queue, task.function)
        is_draining = self.is_draining(agent_key(claim.worker, claim.agent))
        return is_granted and not is_draining and not self.is_disabled(claim.worker)

    def is_disabled(self, name: str) -> bool:
        """Return whether agents of a name take no tasks."""
        return name in self._disabled

    def serves_over_http(self, name: OutsideName) -> bool:
        """Return whether operators let a worker over HTTP take tasks."""
        return not self._disabled or name.token not in self._disabled

    def state_over_http(self, name: OutsideName) -> AgentState:
        """Return the state of a worker over HTTP that is heard."""
        if self.serves_over_http(name):
            return AgentState.ENABLED
        return AgentState.DRAINING if name.token in self._leaving else AgentState.DISABLED

    def is_draining(self, key: str) -> bool:
        """Return whether an operator drains the process with a key."""
        return key in self._draining

    def may_own(self, name: str, shard: str) -> bool:
        """Return whether operators let agents of a name own a shard."""
        fact = self._grants.get(name)
        return may_own(None if fact is None else fact.shards, shard, requires_grant=self._requires_grant)

    def granted(self, agent: HeardAgent) -> Granted | None:
        """Return the functions that an agent may get, by queue; None: all that it announces."""
        if agent.granted_as_of != self.revision:
            agent.granted, agent.granted_as_of = self._granted(agent), self.revision
        return agent.granted

    def _granted(self, agent: HeardAgent) -> Granted | None:
        if self.is_disabled(agent.name) or self.is_draining(agent.key):
            return ()  # what the agent says of itself may be older, or untrue
        fact = self._grants.get(agent.name)
        if fact is None:
            return () if self._requires_grant else None
        return granted_of(fact.grants, agent.queues, agent.functions)
