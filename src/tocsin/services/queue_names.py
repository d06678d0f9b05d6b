"""The names of queues that exist, to tell them from names that may be misspelled."""

import asyncio
import difflib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

from .. import subjects
from ..domain.events import QueuePaused, QueueResumed
from ..ports import EventLog
from ..subjects import DEFAULT_QUEUE
from .jobs import Job
from .operations.errors import OperationError
from .turns import SharedRead

VALID_S: Final = 30.0
"""The seconds for which the queues of the jobs count, and a name counts as absent."""
MAX_ABSENT: Final = 1_000
"""Absent names that are remembered."""
MAX_COMPARED: Final = 1_000
"""Queues that are compared with a name. Of more queues, similar names are not searched."""
MAX_SIMILAR: Final = 10
"""Similar names of an absent name. Not every caller may see all of them."""
JOBS_TOGETHER: Final = 1_000
"""Jobs that are read between two turns of other requests."""
MAX_PAUSED_ABSENT: Final = 1_000
"""Absent queues that may be paused at the same time; one more for each other copy of the API that decides meanwhile."""


class _Absent(NamedTuple):
    until: float
    similar: tuple[str, ...]


class QueueNames:
    """The queues of the settings and of jobs, and those that had tasks."""

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
        """Return names similar to that of an absent queue; None: it exists.

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
    """The names of paused queues, of which many may be absent.

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
