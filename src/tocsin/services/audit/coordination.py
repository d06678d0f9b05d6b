"""Locks (I5), agents, owners of resources, and queues (I3, I4).

A lock has one holder at a time, a process has a possible life, and tasks of a resource are claimed in the name of its owner.
Each decision on a queue is there once, and purges cancel only waiting tasks.

A shard without an owner is free: any worker claims its tasks. Executors outside, which take tasks from hip-62's queue, do not
register, so they claim tasks of any shard.

Memory: the newest holder of each lock, the tokens of open executions, and the executions that wait; the last event of each agent
that is not forgotten; the newest owner of each resource, and the resource of each task of open executions that needs one; the state of each queue, its purges, and the tasks of
open executions that no worker has.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from heapq import heappop, heappush
from typing import Final

from ...domain.events import (
    Acquired,
    Admitted,
    Advanced,
    AgentDrainStarted,
    AgentEnded,
    AgentFact,
    AgentFellSilent,
    AgentForgotten,
    AgentRegistered,
    Cancelled,
    Completed,
    Dispatched,
    Exhausted,
    Failed,
    Message,
    OwnershipAssigned,
    Queued,
    QueueFact,
    QueuePaused,
    QueuePurged,
    QueueResumed,
    Recorded,
    Released,
    RetryScheduled,
    Started,
    type_of,
)
from ...domain.ownership import shard_of, shard_resource
from . import check
from .check import Check, Debt, Key, Proof, Taken, on
from .executions import Executions


@dataclass(slots=True)
class _Queue:
    """The executions that wait for a lock; the heaps still hold those that left."""

    entries: dict[str, tuple[tuple[bool, datetime, str], int]] = field(default_factory=dict)
    turns: list[tuple[bool, datetime, str]] = field(default_factory=list)
    arrivals: list[tuple[int, str]] = field(default_factory=list)

    def add(self, queued: Recorded[Queued]) -> None:
        fact = queued.message
        turn = fact.yields, fact.scheduled_time, fact.execution_id
        self.entries[fact.execution_id] = turn, queued.sequence
        heappush(self.turns, turn)
        heappush(self.arrivals, (queued.sequence, fact.execution_id))

    def next(self) -> str | None:
        while self.turns and self.entries.get(self.turns[0][2], (None, 0))[0] != self.turns[0]:
            heappop(self.turns)
        return self.turns[0][2] if self.turns else None

    def oldest(self) -> int:
        """Return the least sequence of a `queued` event whose execution waits; 0: none waits."""
        while self.arrivals and self.entries.get(self.arrivals[0][1], (None, 0))[1] != self.arrivals[0][0]:
            heappop(self.arrivals)
        return self.arrivals[0][0] if self.arrivals else 0


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
        yield from self._oldest(recorded, queue)
        self._held[recorded.subject] = recorded
        self._tokens.setdefault(check.key_of(recorded.message), set()).add(recorded.sequence)
        if before is not None:
            self._tokens.pop(check.key_of(before.message), None)

    @on(Queued)
    def _queued(self, recorded: Recorded[Queued]) -> Taken:
        queue = self._queue_of(recorded)
        yield from self._oldest(recorded, queue)
        queue.add(recorded)

    def _oldest(self, recorded: Recorded[Acquired] | Recorded[Queued], queue: _Queue) -> Taken:
        """Judge from where on a reader of the lock begins."""
        if self._is_whole and recorded.message.oldest != (oldest := queue.oldest()):
            reason = f"it names {recorded.message.oldest} as the oldest that waits, which is {oldest}"
            yield check.violation("I5", recorded.subject, reason, recorded)

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


class Ownership(Check):
    """Judges the claims of tasks that only the owner of a resource gets.

    Two matchers may lead for a moment, and a matcher claims for an earlier owner. Such a claim must be released, and nothing
    may rest on it.
    """

    def __init__(self, since: datetime | None = None) -> None:
        super().__init__(since)
        self._owners: dict[str, Recorded[OwnershipAssigned]] = {}
        self._needed: dict[Key, dict[str, str]] = {}
        """The resource of each task, by execution and step."""
        self._outdated: dict[tuple[Key, str], Recorded[Started]] = {}
        """Claims for earlier owners, by execution and step."""

    @on(OwnershipAssigned)
    def _assigned(self, recorded: Recorded[OwnershipAssigned]) -> Taken:
        fact = recorded.message
        before = self._owners.get(fact.resource)
        if before is not None and (before.message.name, before.message.agent_id) == (fact.name, fact.agent_id):
            yield check.violation("I4", f"resource {fact.resource}", "it is assigned to its owner", before, recorded)
        if self._is_whole and (before is None) != (fact.reason == "vacant"):
            reason = f"it is assigned as `{fact.reason}`, and had {'no' if before is None else 'an'} owner"
            yield check.violation("I3", f"resource {fact.resource}", reason, recorded)
        self._owners[fact.resource] = recorded

    @on(Dispatched)
    def _dispatched(self, recorded: Recorded[Dispatched]) -> None:
        task = recorded.message
        resource = task.resource if task.shard is None else shard_resource(task.shard)
        if resource is not None:
            self._needed.setdefault(check.key_of(task), {})[task.step] = resource

    @on(Started)
    def _started(self, recorded: Recorded[Started]) -> Taken:
        claim = recorded.message
        resource = self._needed.get(check.key_of(claim), {}).get(claim.step)
        owner = None if resource is None else self._owners.get(resource)
        if resource is None or (owner is None and shard_of(resource) is not None):
            if claim.epoch is not None and self._is_whole:
                reason = (
                    f"epoch {claim.epoch} of {'no resource' if resource is None else f'{resource}, which has no owner'}"
                )
                yield check.violation("I3", check.entity(claim), reason, recorded)
            return
        if owner is None:
            if self._is_whole:
                yield check.violation("I3", check.entity(claim), f"{resource} had no owner", recorded)
            return
        if shard_of(resource) is not None and claim.agent is None and claim.lease is None:
            return  # an executor outside claims tasks of any shard
        if claim.epoch == owner.sequence:
            if (claim.worker, claim.agent) != (owner.message.name, owner.message.agent_id):
                reason = f"{claim.worker} claimed it, and {owner.message.name} owned {resource}"
                yield check.violation("I3", check.entity(claim), reason, owner, recorded)
        elif (claim.epoch or 0) > owner.sequence or (claim.epoch is None and shard_of(resource) is None):
            reason = f"it is claimed under epoch {claim.epoch}, and that of {resource} was {owner.sequence}"
            yield check.violation("I3", check.entity(claim), reason, owner, recorded)
        else:
            self._outdated[check.key_of(claim), claim.step] = recorded

    @on(Released)
    def _released(self, recorded: Recorded[Released]) -> None:
        self._outdated.pop((check.key_of(recorded.message), recorded.message.step), None)

    @on(Advanced, RetryScheduled, Exhausted)
    def _answered(self, recorded: Recorded[Advanced | RetryScheduled | Exhausted]) -> Taken:
        yield from self._rests(recorded, recorded.message.step)
        self._needed.get(check.key_of(recorded.message), {}).pop(recorded.message.step, None)

    @on(Completed, Failed)
    def _ended(self, recorded: Recorded[Completed | Failed]) -> Taken:
        if recorded.message.step is not None:
            yield from self._rests(recorded, recorded.message.step)
        self._forget(check.key_of(recorded.message))

    @on(Cancelled)
    def _cancelled(self, recorded: Recorded[Cancelled]) -> None:
        self._forget(check.key_of(recorded.message))

    def _rests(
        self, recorded: Recorded[Advanced | RetryScheduled | Exhausted | Completed | Failed], step: str
    ) -> Taken:
        claim = self._outdated.pop((check.key_of(recorded.message), step), None)
        if claim is not None:
            reason = f"its end rests on a claim under epoch {claim.message.epoch}, when another agent was the owner"
            yield check.violation("I3", check.entity(claim.message), reason, claim, recorded)

    def _forget(self, key: Key) -> None:
        for step in self._needed.pop(key, {}):
            self._outdated.pop((key, step), None)


_OPEN: Final = type_of(QueueResumed)


class Queues(Check):
    """Judges the events of queues, and the cancellations after purges."""

    def __init__(self, since: datetime | None = None) -> None:
        super().__init__(since)
        self._states: dict[str, str] = {}
        self._purged: dict[str, int] = {}
        """The sequence up to which each queue is purged."""
        self._purges: dict[int, QueuePurged] = {}
        self._waiting: dict[Key, dict[str, tuple[str, int]]] = {}
        """The queue and the sequence of the task of each step that no worker has, by execution."""
        self._early: dict[int, list[tuple[Recorded[Cancelled], tuple[tuple[str, int], ...]]]] = {}
        """Cancellations by purges that are not taken yet: the ledger and the log are read in any order."""

    def debts(self) -> Iterator[Debt]:
        for cancelled in self._early.values() if self._is_whole else ():
            for recorded, _ in cancelled:
                reason = f"no queue was purged by event {recorded.message.purge} of the ledger"
                yield Debt("I3", check.entity(recorded.message), reason, recorded.time, "clocks", (Proof.of(recorded),))

    @on(QueuePaused, QueueResumed)
    def _switched(self, recorded: Recorded[QueueFact]) -> Taken:
        fact = recorded.message
        kind = type_of(type(fact))
        before = self._states.get(fact.queue, _OPEN if self._is_whole else None)
        if before == kind:
            yield check.violation("I4", f"queue {fact.queue}", f"`{kind}` although it was {kind}", recorded)
        self._states[fact.queue] = kind

    @on(QueuePurged)
    def _purge(self, recorded: Recorded[QueuePurged]) -> Taken:
        fact = recorded.message
        if fact.upto <= self._purged.get(fact.queue, 0):
            reason = f"it is purged up to {fact.upto}, which an earlier purge covers"
            yield check.violation("I4", f"queue {fact.queue}", reason, recorded)
        self._purged[fact.queue] = fact.upto
        self._purges[recorded.sequence] = fact
        for cancelled, waited in self._early.pop(recorded.sequence, ()):
            yield from _judge(cancelled, fact, waited)

    @on(Dispatched)
    def _dispatched(self, recorded: Recorded[Dispatched]) -> None:
        task = recorded.message
        self._waiting.setdefault(check.key_of(task), {})[task.step] = task.queue, recorded.sequence

    @on(Started, Released)
    def _taken(self, recorded: Recorded[Started | Released]) -> None:
        self._waiting.get(check.key_of(recorded.message), {}).pop(recorded.message.step, None)

    @on(Completed, Failed)
    def _ended(self, recorded: Recorded[Completed | Failed]) -> None:
        self._waiting.pop(check.key_of(recorded.message), None)

    @on(Cancelled)
    def _cancelled(self, recorded: Recorded[Cancelled]) -> Taken:
        waited = tuple(self._waiting.pop(check.key_of(recorded.message), {}).values())
        purge = recorded.message.purge
        if purge is None:
            return
        if (purged := self._purges.get(purge)) is not None:
            yield from _judge(recorded, purged, waited)
        else:
            self._early.setdefault(purge, []).append((recorded, waited))


def _judge(cancelled: Recorded[Cancelled], purge: QueuePurged, waited: tuple[tuple[str, int], ...]) -> Taken:
    if not any(queue == purge.queue and sequence <= purge.upto for queue, sequence in waited):
        reason = f"the purge of queue {purge.queue} cancelled it, and no task of it waited there up to {purge.upto}"
        yield check.violation("I3", check.entity(cancelled.message), reason, cancelled)
