"""Locks (I5) and agents: one holder at a time, a possible life of each process.

Memory: the newest holder of each lock, the tokens of open executions, and the executions that wait;
the last event of each agent that is not forgotten.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from heapq import heappop, heappush
from typing import Final

from ...domain.events import (
    Acquired,
    Admitted,
    AgentDrainStarted,
    AgentEnded,
    AgentFact,
    AgentFellSilent,
    AgentForgotten,
    AgentRegistered,
    Message,
    Queued,
    Recorded,
    type_of,
)
from . import check
from .check import Check, Key, Taken, on
from .executions import Executions


@dataclass(slots=True)
class _Queue:
    """The executions that wait for a lock; the heaps still hold those that left."""

    entries: dict[str, tuple[bool, datetime, str]] = field(default_factory=dict)
    turns: list[tuple[bool, datetime, str]] = field(default_factory=list)

    def add(self, queued: Recorded[Queued]) -> None:
        fact = queued.message
        turn = fact.yields, fact.scheduled_time, fact.execution_id
        self.entries[fact.execution_id] = turn
        heappush(self.turns, turn)

    def next(self) -> str | None:
        while self.turns and self.entries.get(self.turns[0][2]) != self.turns[0]:
            heappop(self.turns)
        return self.turns[0][2] if self.turns else None


class Locks(Check):
    """Follows every lock."""

    def __init__(self, executions: Executions, since: datetime | None = None) -> None:
        """Use `executions`, which takes each event first."""
        super().__init__(since)
        self._executions = executions
        self._held: dict[str, Recorded[Acquired]] = {}
        self._running: dict[tuple[str, str | None], Recorded[Admitted]] = {}
        self._tokens: dict[Key, set[int]] = {}
        self._queues: defaultdict[str, _Queue] = defaultdict(_Queue)

    @on(Acquired)
    def _acquired(self, recorded: Recorded[Acquired]) -> Taken:
        before = self._held.get(recorded.subject)
        if before is not None:
            if recorded.sequence <= before.sequence:
                yield check.violation("I5", recorded.subject, "its token did not grow", before, recorded)
            if not self._executions.is_over(check.key_of(before.message)):
                reason = "acquired while its holder was not over"
                yield check.violation("I5", recorded.subject, reason, before, recorded)
        queue, execution_id = self._queue_of(recorded), recorded.message.execution_id
        if self._is_whole and (first := queue.next()) not in {None, execution_id}:
            yield check.violation("I5", recorded.subject, f"it was acquired before {first}, which waits", recorded)
        queue.entries.pop(execution_id, None)
        self._held[recorded.subject] = recorded
        self._tokens.setdefault(check.key_of(recorded.message), set()).add(recorded.sequence)
        if before is not None:
            self._tokens.pop(check.key_of(before.message), None)

    @on(Queued)
    def _queued(self, recorded: Recorded[Queued]) -> None:
        self._queue_of(recorded).add(recorded)

    def _queue_of(self, recorded: Recorded[Acquired] | Recorded[Queued]) -> _Queue:
        return self._queues[recorded.subject.rpartition(".")[0]]

    @on(Admitted)
    def _admitted(self, recorded: Recorded[Admitted]) -> Taken:
        admitted, entity = recorded.message, check.entity(recorded.message)
        fence, policy = admitted.fence, admitted.plan.overlap_policy
        if fence is None:
            if policy != "allow":
                yield check.violation("I5", entity, f"it runs without a fence with policy {policy!r}", recorded)
            return
        if self._is_whole and fence not in self._tokens.get(check.key_of(admitted), ()):
            yield check.violation("I5", entity, f"fence {fence} is not the token of a lock of its own", recorded)
        lock = admitted.job, admitted.plan.shard
        before = self._running.get(lock)
        is_foreign = before is not None and before.message.execution_id != admitted.execution_id
        if before is not None and is_foreign and self._executions.is_open(check.key_of(before.message)):
            yield check.violation("I5", entity, "it runs beside another that holds the lock", before, recorded)
        self._running[lock] = recorded


_REGISTERED: Final = "registered"
_BEFORE: Final[Mapping[type[Message], frozenset[str]]] = {
    AgentFellSilent: frozenset({_REGISTERED}),
    AgentEnded: frozenset({_REGISTERED}),
    AgentDrainStarted: frozenset({_REGISTERED}),
    AgentForgotten: frozenset({"lost", "ended"}),
    AgentRegistered: frozenset({"", _REGISTERED, "lost"}),
}
"""The states in which an event may follow; empty: nothing is known of the agent."""
_AFTER: Final[Mapping[type[Message], str]] = {
    AgentFellSilent: "lost",
    AgentEnded: "ended",
    AgentRegistered: _REGISTERED,
    AgentForgotten: "",
}


class Agents(Check):
    """Judges the events of each process by those before it."""

    def __init__(self, since: datetime | None = None) -> None:
        super().__init__(since)
        self._states: dict[tuple[str, str], str] = {}

    @on(*_BEFORE)
    def _take(self, recorded: Recorded[AgentFact]) -> Taken:
        fact, kind = recorded.message, type(recorded.message)
        key = (fact.name, fact.agent_id)
        state = self._states.get(key)
        if state is None:
            state = "" if self._is_whole else None
        if state is not None and state not in _BEFORE[kind]:
            reason = f"`{type_of(kind)}` follows although it is {state or 'not registered'}"
            yield check.violation("I3", f"agent {fact.name} {fact.agent_id}", reason, recorded)
        after = _AFTER.get(kind, state or _REGISTERED)
        if after:
            self._states[key] = after
        else:
            self._states.pop(key, None)
