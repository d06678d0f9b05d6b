"""Decisions of operators about a queue: its pause, and the purge of its tasks."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Final, cast

from .events import Actor, Message, QueueFact, QueuePaused, QueuePurged, QueueResumed, Recorded


@dataclass(frozen=True, slots=True)
class Queue:
    """The state of a queue, as its events say."""

    pause: Recorded[QueuePaused] | None = None
    """The newest pause; None: the queue is open."""
    resumption: Recorded[QueueResumed] | None = None
    """The newest resumption; None: the queue is paused, or was never paused."""
    purge: Recorded[QueuePurged] | None = None
    """The newest purge. It covers all earlier purges."""

    @property
    def is_paused(self) -> bool:
        """Whether its tasks wait until it is resumed."""
        return self.pause is not None

    @property
    def events(self) -> Sequence[Recorded[Message]]:
        """The events that make this state, oldest first; the last is the queue's newest."""
        known: Iterable[Recorded[Message] | None] = (self.pause, self.resumption, self.purge)
        return sorted(filter(None, known), key=lambda one: one.sequence)

    def purges(self, task: int) -> bool:
        """Return whether the task at a sequence of the log is purged, if it waits."""
        return self.purge is not None and task <= self.purge.message.upto


initial: Final = Queue()


def evolve(state: Queue, recorded: Recorded[Message]) -> Queue:
    match recorded.message:
        case QueuePaused():
            return replace(state, pause=cast("Recorded[QueuePaused]", recorded), resumption=None)
        case QueueResumed():
            return replace(state, pause=None, resumption=cast("Recorded[QueueResumed]", recorded))
        case QueuePurged():
            return replace(state, purge=cast("Recorded[QueuePurged]", recorded))
        case _:
            return state


def fold(facts: Iterable[Recorded[Message]]) -> Queue:
    """Return the state after the events of one queue, oldest first."""
    return reduce(evolve, facts, initial)


def pause(state: Queue, name: str, *, by: Actor | None = None, reason: str | None = None) -> list[QueueFact]:
    return [] if state.is_paused else [QueuePaused(queue=name, by=by, reason=reason)]


def resume(state: Queue, name: str, *, by: Actor | None = None, reason: str | None = None) -> list[QueueFact]:
    return [QueueResumed(queue=name, by=by, reason=reason)] if state.is_paused else []


def purge(
    state: Queue,
    name: str,
    *,
    upto: int,
    waiting: int | None = None,
    by: Actor | None = None,
    reason: str | None = None,
) -> list[QueueFact]:
    """Decide to purge the tasks of a queue up to a sequence of the log."""
    if upto == 0 or state.purges(upto):
        return []
    return [QueuePurged(queue=name, upto=upto, waiting=waiting, by=by, reason=reason)]
