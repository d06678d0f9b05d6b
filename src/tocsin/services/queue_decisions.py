"""Decisions of operators about queues: pause, resume, purge."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from .. import subjects
from ..domain import queue
from ..domain.events import Actor, Message, QueueFact, Recorded
from ..domain.queue import Queue
from ..ports import EventLog
from ..subjects import Stream
from .daily_room import ChangeRoom
from .documents import Take, decide, unlimited


@dataclass(frozen=True, slots=True)
class QueuePause:
    """The pause of a queue."""

    since: datetime
    by: str | None = None
    """The identity of the operator."""
    reason: str | None = None

    def __str__(self) -> str:
        """Return the pause for people: `by ann because: deploy`."""
        by = f" by {self.by}" if self.by else ""
        return f"paused{by}" + (f" because: {self.reason}" if self.reason else "")


@dataclass(frozen=True, slots=True)
class QueuePurge:
    """The newest purge of a queue."""

    at: datetime
    upto: int
    """The sequence of the log up to which tasks were purged."""
    waiting: int | None = None
    """The number of tasks that waited a moment before; None: it was not known."""
    by: str | None = None
    """The identity of the operator."""
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class PurgeAnswer:
    """The answer to a request to purge a queue."""

    queue: str
    waiting: int | None
    """The number of tasks that it covers, a moment ago; None: nothing counts them."""
    changed: bool
    """False: an earlier purge covers all tasks, or the request was only a preview."""


def pause_of(state: Queue) -> QueuePause | None:
    if state.pause is None:
        return None
    fact = state.pause.message
    return QueuePause(state.pause.time, fact.by.full_name if fact.by else None, fact.reason)


def purge_of(state: Queue) -> QueuePurge | None:
    if state.purge is None:
        return None
    fact, at = state.purge.message, state.purge.time
    return QueuePurge(at, fact.upto, fact.waiting, fact.by.full_name if fact.by else None, fact.reason)


async def pauses_of(log: EventLog, queues: Iterable[str]) -> dict[str, QueuePause]:
    """Return the pauses of those queues that are paused."""
    names = list(queues)
    states = await asyncio.gather(*map(QueueDecisions(log).state, names))
    pauses = zip(names, map(pause_of, states), strict=True)
    return {name: pause for name, pause in pauses if pause is not None}


class QueueDecisions:
    """Stores decisions on queues."""

    def __init__(self, log: EventLog, *, by: Actor | None = None, room: ChangeRoom | None = None) -> None:
        """`by` is recorded in each event, and `room` is what namespaces have for them."""
        self._log = log
        self._by = by
        self._room = room

    async def state(self, name: str) -> Queue:
        """Return what was decided about a queue."""
        return queue.fold(await self._log.load(subjects.queue(name)))

    async def switch(self, name: str, *, paused: bool, reason: str | None = None, is_absent: bool = False) -> bool:
        """Pause or resume a queue; return whether that changed anything.

        `is_absent`: the queue does not exist yet. Its pause follows no decision that could be refused, so it can be refused itself.

        Raises:
            DailyQuotaUsed: the namespace has no room for the decision.
        """
        switched = queue.pause if paused else queue.resume

        async def facts(stored: Sequence[Recorded[Message]]) -> list[QueueFact]:
            return switched(queue.fold(stored), name, by=self._by, reason=reason)

        take = self._take(name, is_refused=is_absent or not paused)
        return bool(await decide(self._log, subjects.queue(name), facts, take=take))

    async def purge(self, name: str, *, waiting: int | None = None, reason: str | None = None) -> bool:
        """Purge the tasks of a queue that are dispatched now; return whether that changed anything."""

        async def facts(stored: Sequence[Recorded[Message]]) -> list[QueueFact]:
            upto, state = await self._log.end(Stream.LOG), queue.fold(stored)
            return queue.purge(state, name, upto=upto, waiting=waiting, by=self._by, reason=reason)

        return bool(await decide(self._log, subjects.queue(name), facts, take=self._take(name)))

    def _take(self, name: str, *, is_refused: bool = True) -> Take:
        return unlimited if self._room is None else self._room.of_name(name, is_refused=is_refused)
