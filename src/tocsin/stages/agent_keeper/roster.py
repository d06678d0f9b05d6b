"""The roster: every agent that is not forgotten, and its newest hold list."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from ... import subjects, telemetry
from ...domain import agent
from ...domain.agent import Agent, AgentRecord, HoldList
from ...domain.events import (
    OF_THE_NAME,
    AgentFact,
    AgentGranted,
    AgentRegistered,
    AgentSwitched,
    Message,
    Recorded,
)
from ...engine.agent_memory import AgentMemory, Shares, memory_of
from ...engine.hold_list_inbox import MAX_AGENTS, MAX_PER_NAME
from ...ports import Clock, EventLog, LogUnavailable, OutdatedState, Projections
from ...subjects import Bucket, Stream


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
    number: int = 0
    """The number of the newest hold list that was heard here."""
    held: tuple[str, ...] = ()
    """The tasks in it."""
    unjudged: HoldList | None = None
    """The newest hold list, until it is compared with the log."""
    heard_at: float | None = None
    """When that was, on the monotonic clock."""
    registered_at: float | None = None
    """When this process last stored what it registered with, on the monotonic clock."""

    @property
    def size(self) -> int:
        """The bytes that it uses here and in the bucket of agents."""
        return size_of(self.state.registered, self.held)

    def take(self, recorded: Recorded[Message]) -> None:
        """Apply an event, unless it is known."""
        fact = recorded.message
        if recorded.sequence > self.sequence and isinstance(fact, AgentFact):
            self.state = agent.evolve(self.state, fact)
            self.sequence, self.changed_at = recorded.sequence, recorded.time


class Roster:
    """All agents by name and id, and the names that are disabled."""

    def __init__(self, log: EventLog, reserved: Collection[str] = ()) -> None:
        """Start empty; `reserved`: the names of agents with an account of their own."""
        self._log = log
        self.memory = AgentMemory(reserved)
        self._entries: dict[tuple[str, str], Entry] = {}
        self.processes = Shares(MAX_PER_NAME, MAX_AGENTS, reserved)
        self._over: dict[str, dict[str, Entry]] = {}
        """The processes of each name that are lost or ended, by id; the first to end is first."""
        self._switched: dict[str, AgentSwitched] = {}
        self._granted: dict[str, AgentGranted] = {}
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
        elif isinstance(fact, AgentGranted):
            self._granted[fact.name] = fact
        elif isinstance(fact, AgentFact) and fact.agent_id != OF_THE_NAME:
            entry = self.enter(fact.name, fact.agent_id)
            entry.take(recorded)
            self.note(entry)
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
            self.processes.charge(name, agent_id, 1)
        return entry

    def is_enabled(self, name: str) -> bool:
        """Return whether agents of a name may take tasks."""
        newest = self._switched.get(name)
        return newest is None or newest.enabled

    def granted(self, name: str) -> AgentGranted | None:
        """Return what agents of a name may get; None: nothing was decided."""
        return self._granted.get(name)

    def number(self, name: str) -> int:
        """Return the number of processes of a name."""
        return self.processes.of_name[name]

    def note(self, entry: Entry) -> None:
        """Note that an event changed a process."""
        if self.find(entry.name, entry.agent_id) is not entry:
            return  # it was removed meanwhile
        if entry.unjudged is None:
            self.memory.charge(entry.name, entry.agent_id, entry.size)
        if entry.sequence > 0 and not entry.state.is_live:
            self._over.setdefault(entry.name, {}).setdefault(entry.agent_id, entry)
        else:
            self._drop(entry)

    def first_over(self, name: str) -> Entry | None:
        """Return the process of a name that was over first, if any."""
        return next(iter(self._over.get(name, {}).values()), None)

    def __iter__(self) -> Iterator[Entry]:
        """Iterate over a copy, so that processes may be removed meanwhile."""
        return iter(tuple(self._entries.values()))

    def __len__(self) -> int:
        """Return the number of processes."""
        return len(self._entries)

    def remove(self, entry: Entry) -> None:
        """Remove a process that is forgotten, or of which nothing is stored."""
        if self._entries.pop((entry.name, entry.agent_id), None) is not None:
            self._drop(entry)
            self.memory.charge(entry.name, entry.agent_id, 0)
            self.processes.charge(entry.name, entry.agent_id, 0)

    def _drop(self, entry: Entry) -> None:
        of_name = self._over.get(entry.name, {})
        if of_name.pop(entry.agent_id, None) is not None and not of_name:
            del self._over[entry.name]


LOAD_INTERVAL_S: Final = 5.0
"""The least time between two entries of one process that differ only in the tasks that it holds."""

_log = telemetry.get_logger("tocsin.agent-keeper")


class Mirror:
    """Writes the entries that changed."""

    def __init__(self, projections: Projections, clock: Clock, *, requires_grant: bool = False) -> None:
        """`requires_grant`: agents of a name without a grant get no tasks."""
        self._requires_grant = requires_grant
        self._projections = projections
        self._clock = clock
        self._shown: dict[str, tuple[AgentRecord, float]] | None = None
        """The entries that this process wrote, and when; None: the bucket was not read since it leads."""

    async def show(self, roster: Roster, *, leads: bool) -> None:
        """Write what changed, if this process leads."""
        if not leads:
            self._shown = None
            return
        try:
            await self._show(roster)
        except (LogUnavailable, OutdatedState) as error:
            self._shown = None
            _log.warning("agents not shown in the bucket", action="agents-not-shown", error=str(error))

    async def _show(self, roster: Roster) -> None:
        records = {
            agent.agent_key(entry.name, entry.agent_id): record
            for entry in roster
            if (record := self._record_of(entry, roster)) is not None
        }
        if self._shown is None:
            entries = await self._projections.entries(Bucket.AGENTS)
            stored = {key for key in entries if not subjects.is_outside_key(key)}  # others write those
            self._shown = {}
            obsolete = stored - records.keys()
        else:
            obsolete = self._shown.keys() - records.keys()
        for key in obsolete:
            await self._projections.remove(Bucket.AGENTS, key)
            self._shown.pop(key, None)
        now = self._clock.monotonic()
        for key, record in records.items():
            if self._is_due(key, record, now):
                await self._projections.put(Bucket.AGENTS, key, record.model_dump_json().encode())
                self._shown[key] = record, now

    def _record_of(self, entry: Entry, roster: Roster) -> AgentRecord | None:
        record, newest = record_of(entry, enabled=roster.is_enabled(entry.name)), roster.granted(entry.name)
        if record is None or (newest is None and not self._requires_grant):
            return record
        decided: dict[str, object] = {"needs_grant": self._requires_grant}
        if newest is not None:
            decided["grants"] = list(newest.grants)
            decided["granted_shards"] = None if newest.shards is None else list(newest.shards)
        return record.model_copy(update=decided)

    def _is_due(self, key: str, record: AgentRecord, now: float) -> bool:
        shown = (self._shown or {}).get(key)
        if shown is None:
            return True
        before, at = shown
        if before == record:
            return False
        return before.model_copy(update={"held": record.held}) != record or now - at >= LOAD_INTERVAL_S


def record_of(entry: Entry, *, enabled: bool) -> AgentRecord | None:
    """Return an agent as operators see it; None: it ended, or is not registered yet."""
    fact = entry.state.registered
    if fact is None or entry.state.end in {"ended", "forgotten"}:
        return None
    is_live = entry.state.is_live
    return AgentRecord(
        name=entry.name,
        agent_id=entry.agent_id,
        state=entry.state.state(enabled=enabled),
        since=entry.changed_at,
        host=fact.host,
        version=fact.version,
        labels=fact.labels,
        queues=list(fact.queues),
        functions=list(fact.functions),
        max_concurrent_jobs=fact.max_concurrent_jobs,
        leader_candidate=fact.leader_candidate,
        shards=list(fact.shards),
        held=[name.partition(".")[2] for name in entry.held] if is_live else [],
    )


def size_of(described: HoldList | AgentRegistered | None, held: Sequence[str]) -> int:
    """Return the bytes that a process uses.

    The tasks are counted twice, because the entry of the bucket has their names in part.
    """
    tasks = 2 * memory_of(held)
    if described is None:
        return tasks
    labels = (*described.labels, *described.labels.values(), described.host, described.version)
    return tasks + memory_of(labels, described.queues, described.functions, described.shards)
