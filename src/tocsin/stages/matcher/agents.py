"""The agents that the matcher hears, by their hold lists."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from pydantic import ValidationError

from ... import telemetry
from ...domain.agent import HoldList
from ...domain.task_offers import Granted
from ...engine.hold_list_inbox import HoldListInbox

SILENCE_S: Final = 30.0
"""Time without a hold list after which an agent is lost."""
KEPT_S: Final = 300.0
"""Time after which a silent agent without claims is forgotten."""
MAX_AGENTS: Final = 5_000

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
    def takes_tasks(self) -> bool:
        """Whether tasks may be assigned to it."""
        return self.hold_list.mode == "enabled" and not self.hold_list.ended and not self.is_absent

    def is_silent(self, now: float) -> bool:
        """Return whether it was not heard for so long that it is lost."""
        return now - self.heard_at >= SILENCE_S


@dataclass(slots=True)
class HeardAgents:
    """All agents that were heard, by id."""

    monotonic: Callable[[], float]
    _inbox: HoldListInbox = field(default_factory=HoldListInbox)
    _all: dict[str, HeardAgent] = field(default_factory=dict)

    def receive(self, name: str, agent_id: str, body: bytes) -> None:
        """Take a hold list."""
        self._inbox.put(name, agent_id, body)

    def read(self) -> bool:
        """Read the hold lists that arrived; return whether there were any."""
        arrived = self._inbox.take()
        for name, agent_id, body in arrived:
            self._hear(name, agent_id, body)
        return bool(arrived)

    def get(self, agent_id: str) -> HeardAgent | None:
        """Return an agent by its id."""
        return self._all.get(agent_id)

    def forget_silent(self, *, but: frozenset[str]) -> None:
        """Forget agents that are silent for long, except those in `but`."""
        now = self.monotonic()
        for entry in self:
            if now - entry.heard_at >= KEPT_S and entry.agent_id not in but:
                del self._all[entry.agent_id]

    def __iter__(self) -> Iterator[HeardAgent]:
        """Iterate over a copy."""
        return iter(tuple(self._all.values()))

    def _hear(self, name: str, agent_id: str, body: bytes) -> None:
        try:
            hold_list = HoldList.model_validate_json(body)
        except ValidationError as error:
            _log.warning("hold list refused", action="hold-list-refused", agent=name, errors=error.error_count())
            return
        known = self._all.get(agent_id)
        if known is None:
            if len(self._all) >= MAX_AGENTS:
                return
        elif known.name != name or hold_list.number <= known.hold_list.number or known.hold_list.ended:
            return  # another name uses the id, or the hold list is late
        self._all[agent_id] = HeardAgent(
            name,
            agent_id,
            hold_list,
            self.monotonic(),
            frozenset(hold_list.held),
            frozenset(hold_list.queues),
            frozenset(hold_list.functions),
        )
