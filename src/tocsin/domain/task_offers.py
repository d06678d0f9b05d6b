"""Offers of agents, and their free slots during one choice of tasks."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heapreplace
from operator import itemgetter
from typing import Final, TypeAlias


@dataclass(frozen=True, slots=True)
class Offer:
    """The free slots of an agent."""

    agent: str
    """Its key (`agent.agent_key`)."""
    queues: Collection[str]
    functions: Collection[str]
    slots: int
    granted: "Granted | None" = None
    """The functions that it may get from each queue; None: all of its functions, from all of its queues."""
    is_last: bool = False
    """Whether it gets a task only if no other agent has a free slot for it."""
    used: int = 0
    has_suspect: bool = False
    """Whether it has a suspect, so that it gets no other one."""


Granted: TypeAlias = tuple[tuple[str, frozenset[str]], ...]
"""Functions by queue."""
_NO_AGENTS: Final[frozenset[str]] = frozenset()
_NO_FUNCTIONS: Final[frozenset[str]] = frozenset()
_Entry: TypeAlias = tuple[bool, int, int, str]
"""Whether it comes last, free slots (negative), the place of the offer, the key of the agent."""
_AGENT: Final = 3


@dataclass(slots=True)
class _Pool:
    """Agents with the same functions of the same queues, most free slots first."""

    queues: frozenset[str]
    functions: frozenset[str]
    granted: Mapping[str, frozenset[str]] | None
    agents: list[_Entry] = field(default_factory=list)

    def functions_of(self, queue: str) -> frozenset[str]:
        """Return the functions whose tasks its agents get from a queue."""
        if self.granted is None:
            return self.functions if queue in self.queues else _NO_FUNCTIONS
        return self.granted.get(queue, _NO_FUNCTIONS)


class FreeSlots:
    """The free slots of agents.

    Each agent is in one pool, so a slot that is taken changes one heap. Agents announce names at will, so only the queues and functions
    that a caller names are looked at.
    """

    def __init__(self, offers: Iterable[Offer]) -> None:
        self._used: dict[str, int] = {}
        self._suspecting: set[str] = set()
        self._is_draining = False
        pools: dict[tuple[frozenset[str], frozenset[str], Granted | None], _Pool] = {}
        for place, offer in enumerate(offers):
            if offer.slots > 0:
                self._used[offer.agent] = offer.used
                if offer.has_suspect:
                    self._suspecting.add(offer.agent)
                queues, functions = frozenset(offer.queues), frozenset(offer.functions)
                key = queues, functions, offer.granted
                if key not in pools:
                    pools[key] = _Pool(queues, functions, None if offer.granted is None else dict(offer.granted))
                pools[key].agents.append((offer.is_last, -offer.slots, place, offer.agent))
        self._pools = tuple(pools.values())
        self._by_queue: dict[str, list[tuple[frozenset[str], _Pool]]] = {}
        self._by_lane: dict[tuple[str, str], list[_Pool]] = {}
        for pool in self._pools:
            heapify(pool.agents)

    def has(self, queue: str, function: str) -> bool:
        """Return whether an agent has a free slot for a function of a queue."""
        return bool(self._of(queue, function))

    def take(
        self, queue: str, function: str, *, refused_by: frozenset[str] = _NO_AGENTS, is_suspect: bool = False
    ) -> str | None:
        """Take a slot of the agent with the most free slots, and return the agent.

        None: no agent has a free slot, except those in `refused_by` and, for a suspect, those that have one.
        """
        pools = self._of(queue, function)
        if is_suspect:
            refused_by = refused_by.union(self._suspecting)
        if not refused_by:
            if not pools:
                return None
            pool = min(pools, key=_first_of)
            entry = pool.agents[0]
        else:
            entries = ((entry, pool) for pool in pools for entry in pool.agents if entry[_AGENT] not in refused_by)
            best = min(entries, default=None, key=itemgetter(0))
            if best is None:
                return None
            entry, pool = best
        _lower(pool.agents, entry)
        agent = entry[_AGENT]
        self._used[agent] += 1
        if is_suspect:
            self._suspecting.add(agent)
        return agent

    def take_whole(self, queue: str, function: str, *, refused_by: frozenset[str], drains: bool) -> str | None:
        """Take all slots of an agent without a task, and return the agent.

        None: no agent is idle. If one `drains`, the agent with the fewest tasks gets no task now; one agent for all calls.
        """
        entries = ((entry, pool) for pool in self._of(queue, function) for entry in pool.agents)
        fitting = (
            (self._used[entry[_AGENT]], entry, pool) for entry, pool in entries if entry[_AGENT] not in refused_by
        )
        used, entry, pool = min(fitting, default=(0, None, None), key=lambda candidate: candidate[:2])
        if entry is None or pool is None or (used and (self._is_draining or not drains)):
            return None
        pool.agents.remove(entry)
        heapify(pool.agents)
        self._is_draining = self._is_draining or used > 0
        return None if used else entry[_AGENT]

    def _of(self, queue: str, function: str) -> list[_Pool]:
        """Return the pools of a lane in which an agent has a free slot."""
        lane = queue, function
        if lane not in self._by_lane:
            self._by_lane[lane] = [pool for functions, pool in self._serving(queue) if function in functions]
        pools = self._by_lane[lane]
        if any(not pool.agents for pool in pools):
            self._by_lane[lane] = pools = [pool for pool in pools if pool.agents]
        return pools

    def _serving(self, queue: str) -> list[tuple[frozenset[str], _Pool]]:
        if queue not in self._by_queue:
            served = ((pool.functions_of(queue), pool) for pool in self._pools)
            self._by_queue[queue] = [(functions, pool) for functions, pool in served if functions]
        return self._by_queue[queue]


def _first_of(pool: _Pool) -> _Entry:
    return pool.agents[0]


def _lower(agents: list[_Entry], entry: _Entry) -> None:
    is_last, slots, place, agent = entry
    lowered = is_last, slots + 1, place, agent
    if agents[0] is entry:
        if slots + 1:
            heapreplace(agents, lowered)
        else:
            heappop(agents)
        return
    agents.remove(entry)  # a task that others refused: seldom
    if slots + 1:
        agents.append(lowered)
    heapify(agents)
