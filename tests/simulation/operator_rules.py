"""Rules about decisions of operators, judged by the log and by the events that each matcher had read.

A decision takes effect when a matcher has read it. So a matcher that has read that a queue is paused sends no claim for its tasks,
also not for those that it chose before.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from tests.stored_events import StoredEvents
from tocsin.domain.events import (
    AgentGranted,
    AgentSwitched,
    Dispatched,
    Message,
    QueueFact,
    QueuePaused,
    QueuePurged,
    QueueResumed,
    Recorded,
)

from .cast import Surroundings, stored_at
from .operators import EVERY, Answered
from .server import SentClaim
from .workload import BRIDGED

Task: TypeAlias = Recorded[Dispatched]


@dataclass(slots=True)
class _Decisions:
    """The decisions of operators up to some event."""

    paused: set[str] = field(default_factory=set)
    purged_upto: dict[str, int] = field(default_factory=dict)
    disabled: set[str] = field(default_factory=set)
    granted: dict[str, set[str]] = field(default_factory=dict)
    """The queues of each name with a grant."""

    def learn(self, fact: Message) -> None:
        """Apply an event."""
        match fact:
            case QueuePaused(queue=queue):
                self.paused.add(queue)
            case QueueResumed(queue=queue):
                self.paused.discard(queue)
            case QueuePurged(queue=queue, upto=upto):
                self.purged_upto[queue] = upto
            case AgentSwitched(name=name, enabled=enabled):
                (self.disabled.discard if enabled else self.disabled.add)(name)
            case AgentGranted(name=name, grants=grants):
                self.granted[name] = {grant.queue for grant in grants}
            case _:
                pass

    def against(self, sent: SentClaim, task: Task) -> str | None:
        """Return which decision forbids a claim."""
        queue, claim = task.message.queue, sent.claim
        if queue in self.paused:
            return f"queue {queue} is paused"
        if task.sequence <= self.purged_upto.get(queue, 0):
            return f"queue {queue} is purged up to {self.purged_upto[queue]}"
        if claim.agent is None:
            return None
        if claim.worker in self.disabled:
            return f"{claim.worker} is disabled"
        granted = self.granted.get(claim.worker, {EVERY})
        return None if granted & {queue, EVERY} else f"{claim.worker} may get {sorted(granted)}, and not {queue}"


def broken_decisions(everything: StoredEvents, around: Surroundings) -> Iterator[str]:
    """Yield each claim that a matcher sent against a decision that it had read, and each answer that was not true."""
    stored = [r for r in everything.ledger if isinstance(r.message, QueueFact | AgentSwitched | AgentGranted)]
    tasks = _tasks(everything)
    known, following = _Decisions(), iter((*stored, None))
    after = next(following)
    for sent in sorted(around.server.sent_claims, key=lambda sent: sent.ledger or 0):
        task = _task_of(sent, tasks, around)
        if task is None or task.message.queue == BRIDGED:
            continue
        if sent.ledger is None:
            yield f"OPERATORS: {sent.process} had not read the decisions of operators: {_told(sent, task)}"
            continue
        while after is not None and after.sequence <= sent.ledger:
            known.learn(after.message)
            after = next(following)
        if (reason := known.against(sent, task)) is not None:
            yield f"OPERATORS: {sent.process} had read that {reason}: {_told(sent, task)}"
    for answered in around.decided.answers:
        yield from _untrue(answered, stored, around)


def _tasks(everything: StoredEvents) -> dict[tuple[str, str, int], list[Task]]:
    tasks: dict[tuple[str, str, int], list[Task]] = defaultdict(list)
    for recorded in everything.facts(Dispatched):
        task = recorded.message
        tasks[task.execution_id, task.step, task.attempt].append(recorded)
    return tasks


def _task_of(sent: SentClaim, tasks: dict[tuple[str, str, int], list[Task]], around: Surroundings) -> Task | None:
    """Return the newest task of an attempt when a claim of it was sent."""
    claim, seconds = sent.claim, around.server.clock.seconds
    earlier = [
        task for task in tasks[claim.execution_id, claim.step, claim.attempt] if seconds(task.time) <= sent.at + _TICK
    ]
    return earlier[-1] if earlier else None


_TICK: Final = 1e-6
"""Stored times are rounded."""


def _told(sent: SentClaim, task: Task) -> str:
    return f"claim of {task.subject} {task.sequence} for {sent.claim.worker!r} at {sent.at:.4f}"


def _untrue(answered: Answered, stored: list[Recorded[Message]], around: Surroundings) -> Iterator[str]:
    """Yield an answer to a decision that was not in force at any moment between the request and the answer."""
    decision, seconds = answered.decision, around.server.clock.seconds
    wanted = {"pause": True, "resume": False, "disable": True, "enable": False}.get(decision.verb)
    if wanted is None:
        return
    known = _Decisions()
    held = []
    before = True
    for recorded in stored:
        at = seconds(stored_at(around, recorded))  # a commit names a time that may be earlier
        if at > answered.answered + _TICK:
            break
        if before and at >= answered.requested - _TICK:
            held.append(_holds(known, decision.name, decision.verb))
            before = False
        known.learn(recorded.message)
        if not before:
            held.append(_holds(known, decision.name, decision.verb))
    held.append(_holds(known, decision.name, decision.verb))
    if wanted not in held:
        yield f"OPERATORS: it was answered at {answered.answered:.4f}, and is not so: {decision.verb} {decision.name}"


def _holds(known: _Decisions, name: str, verb: str) -> bool:
    return name in (known.paused if verb in {"pause", "resume"} else known.disabled)
