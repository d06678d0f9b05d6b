"""Decisions of operators about queues, and the names of queues that exist."""

import asyncio
import difflib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple

from .. import subjects
from ..domain import queue
from ..domain.events import Actor, Message, QueueFact, QueuePaused, QueueResumed, Recorded
from ..domain.queue import Queue
from ..ports import EventLog
from ..subjects import DEFAULT_QUEUE, Stream
from .calculations import SharedRead
from .daily_room import ChangeRoom
from .documents import Take, decide, unlimited
from .jobs import Job
from .operations.errors import OperationError

VALID_S: Final = 30.0
"""The seconds for which the queues of the jobs count, and a name counts as absent."""
MAX_ABSENT: Final = 1_000
"""Absent names that are remembered."""
MAX_COMPARED: Final = 1_000
"""Queues that are compared with a name. Of more queues, similar names are not searched."""
MAX_SIMILAR: Final = 10
"""Similar names of an absent name. Not every caller may see all names."""
JOBS_TOGETHER: Final = 1_000
"""Jobs that are read between two turns of other requests."""
MAX_PAUSED_ABSENT: Final = 1_000
"""Absent queues that may be paused at the same time; one more for each other copy of the API that decides meanwhile."""


class _Absent(NamedTuple):
    until: float
    similar: tuple[str, ...]


class QueueNames:
    """The queues of the settings and of jobs, and the queues that had tasks."""

    def __init__(
        self, log: EventLog, list_jobs: Callable[[], Awaitable[Sequence[Job]]], settings: Iterable[str]
    ) -> None:
        """`settings`: the queues that the settings name."""
        self._log = log
        self._list_jobs = list_jobs
        self._known = {DEFAULT_QUEUE, *settings}
        self._named = frozenset(self._known)
        self._absent: dict[str, _Absent] = {}
        self._of_jobs = SharedRead(self._queues_of_jobs, valid_s=VALID_S)

    def learn(self, name: str) -> None:
        self._known.add(name)

    async def similar_to_absent(self, name: str) -> tuple[str, ...] | None:
        """Return names similar to the name of an absent queue; None: it exists.

        The nearest comes first. The answer may be `VALID_S` seconds old.
        """
        if name in self._known:
            return None
        now = asyncio.get_running_loop().time()
        if (absent := self._absent.get(name)) is not None and now < absent.until:
            return absent.similar
        of_jobs = await self._of_jobs.answer()
        if name in of_jobs or any(await self._log.tails(*subjects.tasks(name))):
            self._absent.pop(name, None)
            self.learn(name)
            return None
        existing = self._named | of_jobs
        similar: tuple[str, ...] = ()
        if len(existing) <= MAX_COMPARED:
            similar = tuple(difflib.get_close_matches(name, sorted(existing), n=MAX_SIMILAR))
        if len(self._absent) >= MAX_ABSENT:
            self._absent.clear()
        self._absent[name] = _Absent(now + VALID_S, similar)
        return similar

    async def _queues_of_jobs(self) -> frozenset[str]:
        found = set[str]()
        for number, job in enumerate(await self._list_jobs()):
            if number % JOBS_TOGETHER == 0:
                await asyncio.sleep(0)
            found.update(job.definition.step_queues())
        return frozenset(found)


class PausedNames:
    """The names of paused queues; many of the queues may be absent.

    The matcher keeps each, and the name of an absent queue costs nothing to invent.
    """

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._turn = asyncio.Lock()
        self._after = 0
        self._names = set[str]()

    @asynccontextmanager
    async def turn(self, name: str, known: Iterable[str]) -> AsyncIterator[None]:
        """Keep other callers of this process from pausing an absent queue while one is paused.

        `known`: the queues that exist.

        Raises:
            OperationError: too many absent queues are paused.
        """
        async with self._turn:
            absent = await self.paused() - {*known}
            if name not in absent and len(absent) >= MAX_PAUSED_ABSENT:
                raise OperationError(
                    f"{len(absent):,} queues that no setting and no job names are paused, the most at the same time. Resume some of them, or "
                    f"name {name!r} under `queues:` in tocsin.yaml.",
                    code="too-many-paused-queues",
                )
            yield

    async def paused(self) -> set[str]:
        while decisions := await self._log.read(subjects.queue_events(), after=self._after):
            for recorded in decisions:
                if isinstance(recorded.message, QueuePaused):
                    self._names.add(recorded.message.queue)
                elif isinstance(recorded.message, QueueResumed):
                    self._names.discard(recorded.message.queue)
            self._after = decisions[-1].sequence
        return self._names


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
