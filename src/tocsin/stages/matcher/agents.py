"""The agents that the matcher hears, by their hold lists."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from pydantic import ValidationError

from ... import telemetry
from ...domain.agent import HoldList, agent_key
from ...domain.task_offers import Granted
from ...engine.hold_list_inbox import MAX_AGENTS, MAX_PER_NAME, HoldListInbox

SILENCE_S: Final = 30.0
"""Time without a hold list after which an agent is lost."""
KEPT_S: Final = 300.0
"""Time after which a silent agent without claims is forgotten."""

_log = telemetry.get_logger("tocsin.matcher")


@dataclass(slots=True)
class HeardAgent:
    """One process, as its newest hold list describes it."""

    name: str
    agent_id: str
    hold_list: HoldList
    heard_at: float
    """Seconds of the monotonic clock."""
    held: frozenset[str] = frozenset()
    queues: frozenset[str] = frozenset()
    functions: frozenset[str] = frozenset()
    is_absent: bool = False
    """A task found no process that listens; until the next hold list."""
    is_news: bool = True
    """The hold list was not compared with the claims yet."""
    granted: Granted | None = None
    """See `OperatorDecisions.granted`."""
    granted_as_of: int = -1
    """The number of operators' decisions on which `granted` rests."""

    @property
    def key(self) -> str:
        """The agent on the board."""
        return agent_key(self.name, self.agent_id)

    @property
    def takes_tasks(self) -> bool:
        """Whether tasks may be assigned to it."""
        return self.hold_list.mode == "enabled" and not self.hold_list.ended and not self.is_absent

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
    _all: dict[str, HeardAgent] = field(default_factory=dict)
    _of_name: defaultdict[str, dict[str, None]] = field(default_factory=lambda: defaultdict(dict))
    """The keys of each name, in the order in which they were heard last."""

    def __post_init__(self) -> None:
        """Create the inbox."""
        self._inbox = HoldListInbox(lambda name, agent_id: agent_key(name, agent_id) in self._all, self.reserved)

    def receive(self, name: str, agent_id: str, body: bytes) -> None:
        """Take a hold list."""
        self._inbox.put(name, agent_id, body)

    def read(self) -> None:
        """Read the hold lists that arrived."""
        for name, agent_id, body in self._inbox.take():
            self._hear(name, agent_id, body)

    def get(self, key: str) -> HeardAgent | None:
        """Return an agent by its key."""
        return self._all.get(key)

    def with_id(self, agent_id: str) -> list[HeardAgent]:
        """Return the agent with an id, and those of other names that claim it."""
        return [agent for agent in self if agent.agent_id == agent_id]

    def forget_silent(self, *, but: frozenset[str]) -> None:
        """Forget agents that are silent for long, except those in `but`."""
        now = self.monotonic()
        for entry in self:
            if now - entry.heard_at >= KEPT_S and entry.key not in but:
                self._forget(entry)

    def __iter__(self) -> Iterator[HeardAgent]:
        """Iterate over a copy."""
        return iter(tuple(self._all.values()))

    def _hear(self, name: str, agent_id: str, body: bytes) -> None:
        try:
            hold_list = HoldList.model_validate_json(body)
        except ValidationError as error:
            _log.warning("hold list refused", action="hold-list-refused", agent=name, errors=error.error_count())
            return
        key = agent_key(name, agent_id)
        known = self._all.get(key)
        if known is None:
            if not self._has_room(name):
                return
        elif hold_list.number <= known.hold_list.number or known.hold_list.ended:
            return  # the hold list is late
        self._of_name[name].pop(key, None)
        self._of_name[name][key] = None
        self._all[key] = HeardAgent(
            name,
            agent_id,
            hold_list,
            self.monotonic(),
            frozenset(hold_list.held),
            frozenset(hold_list.queues),
            frozenset(hold_list.functions),
        )

    def _has_room(self, name: str) -> bool:
        """Return whether another process of a name can be kept.

        If needed, the process that was heard longest ago makes room, if it is over. No other is looked at: ids may be invented.
        """
        if name not in self.reserved and self._shared >= MAX_AGENTS:
            return False
        if len(self._of_name[name]) < MAX_PER_NAME:
            return True
        oldest = self._all[next(iter(self._of_name[name]))]
        if not oldest.hold_list.ended and not oldest.is_silent(self.monotonic()):
            return False
        self._forget(oldest)
        return True

    @property
    def _shared(self) -> int:
        """The number of processes without an account of their own."""
        return len(self._all) - sum(len(self._of_name.get(name, ())) for name in self.reserved)

    def _forget(self, entry: HeardAgent) -> None:
        del self._all[entry.key]
        del self._of_name[entry.name][entry.key]
        if not self._of_name[entry.name]:
            del self._of_name[entry.name]
