"""The agents that the matcher hears, by their hold lists."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from pydantic import ValidationError

from ...domain.agent import HoldList, Mode, agent_key
from ...domain.task_offers import Granted
from ...engine.agent_memory import AgentMemory, RefusedHoldLists, memory_of
from ...engine.hold_list_inbox import MAX_AGENTS, MAX_PER_NAME, ArrivedHoldList, HoldListInbox

SILENCE_S: Final = 30.0
"""Time without a hold list after which an agent is lost."""
KEPT_S: Final = 300.0
"""Time after which a silent agent without claims is forgotten."""
FORGET_INTERVAL_S: Final = 5.0
"""Time between two looks for such agents."""
_CLAIM_BYTES: Final = 40
"""The bytes that the sequence of a claim uses."""


@dataclass(frozen=True, slots=True)
class HeldTasks:
    """The tasks in a hold list."""

    held: tuple[str, ...]
    handed_back: frozenset[int]
    """The sequences of claims whose tasks the agent does not run."""

    @property
    def size(self) -> int:
        """The bytes that it uses."""
        return memory_of(self.held) + _CLAIM_BYTES * len(self.handed_back)


@dataclass(slots=True)
class HeardAgent:
    """One process, as its newest hold list describes it."""

    name: str
    agent_id: str
    number: int
    """The number of the hold list."""
    heard_at: float
    """Seconds of the monotonic clock."""
    mode: Mode | Literal["starting"]
    has_ended: bool
    is_candidate: bool
    """Whether it may become the executor leader."""
    max_concurrent_jobs: int
    queues: frozenset[str]
    functions: frozenset[str]
    shards: frozenset[str] = frozenset()
    """The shards that it declares (`ownership.declares`)."""
    tasks: HeldTasks | None = None
    """None: they were compared with the claims, or there was no room for them."""
    is_absent: bool = False
    """A task found no process that listens; until the next hold list."""
    granted: Granted | None = None
    """See `OperatorDecisions.granted`."""
    granted_as_of: int = -1
    """The number of operators' decisions on which `granted` rests."""

    @property
    def size(self) -> int:
        """The bytes that it uses, without its tasks."""
        return memory_of(*self.names)

    @property
    def names(self) -> tuple[frozenset[str], ...]:
        """The queues, functions and shards that it announces."""
        return self.queues, self.functions, self.shards

    @property
    def key(self) -> str:
        """The agent on the board."""
        return agent_key(self.name, self.agent_id)

    @property
    def takes_tasks(self) -> bool:
        """Whether tasks may be assigned to it."""
        return self.mode == "enabled" and not self.has_ended and not self.is_absent

    def is_silent(self, now: float) -> bool:
        """Return whether it was not heard for so long that it is lost."""
        return now - self.heard_at >= SILENCE_S


@dataclass(slots=True)
class HeardAgents:
    """All agents that were heard, by key."""

    monotonic: Callable[[], float]
    reserved: frozenset[str] = frozenset()
    """The names of agents with an account of their own."""
    _inbox: HoldListInbox = field(init=False)
    _memory: AgentMemory = field(init=False)
    _refused: RefusedHoldLists = field(init=False)
    _news: dict[str, None] = field(default_factory=dict)
    """The keys of agents whose newest hold list was not compared with the claims."""
    _all: dict[str, HeardAgent] = field(default_factory=dict)
    _of_name: defaultdict[str, dict[str, None]] = field(default_factory=lambda: defaultdict(dict))
    """The keys of each name, in the order in which they were heard last."""
    _looked_at: float = float("-inf")

    def __post_init__(self) -> None:
        """Create the inbox."""
        self._memory = AgentMemory(self.reserved)
        self._refused = RefusedHoldLists("matcher", self.monotonic)
        self._inbox = HoldListInbox(
            lambda name, agent_id: agent_key(name, agent_id) in self._all, self.reserved, self._refused
        )

    def receive(self, name: str, agent_id: str, body: bytes) -> None:
        """Take a hold list."""
        self._inbox.put(name, agent_id, body)

    def read(self) -> None:
        """Read the hold lists that arrived."""
        for arrived in self._inbox.take():
            self._hear(arrived)

    @property
    def news(self) -> tuple[HeardAgent, ...]:
        """The agents whose newest hold list was not compared with the claims."""
        return tuple(self._all[key] for key in self._news)

    def note_compared(self, agent: HeardAgent) -> None:
        """Forget the tasks of a hold list, which were compared with the claims."""
        self._news.pop(agent.key, None)
        agent.tasks = None
        self._memory.charge(agent.name, agent.agent_id, agent.size)

    def get(self, key: str) -> HeardAgent | None:
        """Return an agent by its key."""
        return self._all.get(key)

    def with_id(self, agent_id: str) -> list[HeardAgent]:
        """Return the agent with an id, and those of other names that claim it."""
        return [agent for agent in self if agent.agent_id == agent_id]

    def note_served(self, key: str) -> None:
        """Let other agents go first, because a task was assigned to this agent."""
        if (agent := self._all.pop(key, None)) is not None:
            self._all[key] = agent

    def forget_silent(self, *, but: Callable[[], Collection[str]]) -> None:
        """Forget agents that are silent for long, except those in `but()`.

        It may be called at any rate.
        """
        now = self.monotonic()
        if now - self._looked_at < FORGET_INTERVAL_S:
            return
        self._looked_at = now
        kept = frozenset(but())
        for entry in self:
            if now - entry.heard_at >= KEPT_S and entry.key not in kept:
                self._forget(entry)

    def __iter__(self) -> Iterator[HeardAgent]:
        """Iterate over a copy; agents without a task for the longest time go first."""
        return iter(tuple(self._all.values()))

    def _hear(self, arrived: ArrivedHoldList) -> None:
        key = agent_key(arrived.name, arrived.agent_id)
        known = self._all.get(key)
        if known is not None and (arrived.number <= known.number or known.has_ended):
            return  # the hold list is late
        if arrived.body is None:
            if known is not None:
                known.number, known.heard_at, known.is_absent = arrived.number, self.monotonic(), False
            return
        try:
            hold_list = HoldList.model_validate_json(arrived.body)
        except ValidationError:
            self._refused.note(arrived.name, "unreadable")
            return
        if known is None and not self._has_room(arrived.name):
            self._refused.note(arrived.name, "processes")
            return
        heard = self._fitting(self._read(arrived, hold_list, known), known)
        if heard is not None:
            self._of_name[arrived.name].pop(key, None)
            self._of_name[arrived.name][key] = None
            self._all[key], self._news[key] = heard, None

    def _read(self, arrived: ArrivedHoldList, hold_list: HoldList, known: HeardAgent | None) -> HeardAgent:
        """Return an agent as its hold list describes it."""
        heard = HeardAgent(
            arrived.name,
            arrived.agent_id,
            arrived.number,
            self.monotonic(),
            hold_list.mode,
            hold_list.ended,
            hold_list.leader_candidate,
            hold_list.max_concurrent_jobs,
            frozenset(hold_list.queues),
            frozenset(hold_list.functions),
            frozenset(hold_list.shards),
            HeldTasks(hold_list.held, frozenset(hold_list.handed_back)),
        )
        if known is not None and known.names == heard.names:
            return _with_names_of(known, heard)
        return heard

    def _fitting(self, heard: HeardAgent, known: HeardAgent | None) -> HeardAgent | None:
        """Return as much of an agent as fits into the memory of its name.

        A known process lives on with the queues, functions and shards that it has. None: the process is unknown, and does not fit.
        """
        if heard.tasks is not None and self._takes(heard, heard.size + heard.tasks.size):
            return heard
        self._refused.note(heard.name, "bytes")
        heard.tasks = None
        if self._takes(heard, heard.size):
            return heard
        return None if known is None else _with_names_of(known, heard)

    def _takes(self, heard: HeardAgent, size: int) -> bool:
        return self._memory.take(heard.name, heard.agent_id, size)

    def _has_room(self, name: str) -> bool:
        """Return whether another process of a name can be kept.

        If needed, the process that was heard longest ago makes room, if it is over. No other is looked at: ids may be invented.
        """
        if name not in self.reserved and self._shared >= MAX_AGENTS:
            return False
        if len(self._of_name[name]) < MAX_PER_NAME:
            return True
        oldest = self._all[next(iter(self._of_name[name]))]
        if not oldest.has_ended and not oldest.is_silent(self.monotonic()):
            return False
        self._forget(oldest)
        return True

    @property
    def _shared(self) -> int:
        """The number of processes without an account of their own."""
        return len(self._all) - sum(len(self._of_name.get(name, ())) for name in self.reserved)

    def _forget(self, entry: HeardAgent) -> None:
        del self._all[entry.key]
        self._news.pop(entry.key, None)
        self._memory.charge(entry.name, entry.agent_id, 0)
        del self._of_name[entry.name][entry.key]
        if not self._of_name[entry.name]:
            del self._of_name[entry.name]


def _with_names_of(known: HeardAgent, heard: HeardAgent) -> HeardAgent:
    """Return a newer agent with the queues, functions and shards of the known one."""
    return replace(
        heard,
        queues=known.queues,
        functions=known.functions,
        shards=known.shards,
        granted=known.granted,
        granted_as_of=known.granted_as_of,
    )
