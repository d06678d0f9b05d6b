"""Queues (I3, I4): each decision is there once, and purges cancel only waiting tasks.

Memory: the state of each queue, its purges, and the tasks of open executions that no worker has.
"""

from collections.abc import Iterator
from datetime import datetime
from typing import Final

from ...domain.events import (
    Cancelled,
    Completed,
    Dispatched,
    Failed,
    QueueFact,
    QueuePaused,
    QueuePurged,
    QueueResumed,
    Recorded,
    Released,
    Started,
    type_of,
)
from . import check
from .check import Check, Debt, Key, Proof, Taken, on

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
