"""The roster: every agent that is not forgotten, and its newest hold list."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from ... import subjects
from ...domain import agent
from ...domain.agent import Agent, HoldList
from ...domain.events import OF_THE_NAME, AgentFact, AgentSwitched, Message, Recorded
from ...ports import EventLog
from ...subjects import Stream


@dataclass(slots=True)
class Entry:
    """One process."""

    name: str
    agent_id: str
    state: Agent = agent.initial
    sequence: int = 0
    """The sequence of its newest known event."""
    changed_at: datetime | None = None
    """The time of its newest known event."""
    hold_list: HoldList | None = None
    """The newest hold list that was heard here."""
    is_unjudged: bool = False
    """The newest hold list was not compared with the log yet."""
    heard_at: float | None = None
    """When that was, on the monotonic clock."""
    registered_at: float | None = None
    """When this process last stored what it registered with, on the monotonic clock."""

    @property
    def scope(self) -> str:
        """The scope of its events."""
        return subjects.agent(self.name, self.agent_id)

    def take(self, recorded: Recorded[Message]) -> None:
        """Apply an event, unless it is known."""
        fact = recorded.message
        if recorded.sequence > self.sequence and isinstance(fact, AgentFact):
            self.state = agent.evolve(self.state, fact)
            self.sequence, self.changed_at = recorded.sequence, recorded.time


class Roster:
    """All agents by name and id, and the names that are disabled."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._entries: dict[tuple[str, str], Entry] = {}
        self._names: dict[str, int] = {}
        self._switched: dict[str, AgentSwitched] = {}
        self.is_complete = False
        """The whole log was read once."""

    async def follow(self) -> None:
        """Follow the events of agents until cancelled."""
        async for batch in self._log.follow(Stream.LEDGER, subjects.agent_events(), after=None):
            for recorded in batch.messages:
                self.learn(recorded)
            self.is_complete = self.is_complete or batch.caught_up

    def learn(self, recorded: Recorded[Message]) -> None:
        """Apply an event."""
        fact = recorded.message
        if isinstance(fact, AgentSwitched):
            self._switched[fact.name] = fact
        elif isinstance(fact, AgentFact) and fact.agent_id != OF_THE_NAME:
            entry = self.enter(fact.name, fact.agent_id)
            entry.take(recorded)
            if entry.state.end == "forgotten":
                self.remove(entry)

    def find(self, name: str, agent_id: str) -> Entry | None:
        """Return a known process."""
        return self._entries.get((name, agent_id))

    def enter(self, name: str, agent_id: str) -> Entry:
        """Return a process, which is entered if it is not known."""
        entry = self._entries.get((name, agent_id))
        if entry is None:
            entry = self._entries[name, agent_id] = Entry(name, agent_id)
            self._names[name] = self._names.get(name, 0) + 1
        return entry

    def is_enabled(self, name: str) -> bool:
        """Return whether agents of a name may take tasks."""
        newest = self._switched.get(name)
        return newest is None or newest.enabled

    def number(self, name: str) -> int:
        """Return the number of processes of a name."""
        return self._names.get(name, 0)

    def of(self, name: str) -> Iterator[Entry]:
        """Yield the processes of a name."""
        return (entry for entry in self if entry.name == name)

    def __iter__(self) -> Iterator[Entry]:
        """Iterate over a copy, so that processes may be removed meanwhile."""
        return iter(tuple(self._entries.values()))

    def __len__(self) -> int:
        """Return the number of processes."""
        return len(self._entries)

    def remove(self, entry: Entry) -> None:
        """Remove a process that is forgotten, or of which nothing is stored."""
        if self._entries.pop((entry.name, entry.agent_id), None) is not None:
            self._names[entry.name] -= 1
            if not self._names[entry.name]:
                del self._names[entry.name]
