"""The reader of the log in a process without stages, and the places to begin.

The reader reads as long as a part of the process waits for something, and some seconds longer. Then it ends, because each commit of the whole installation
costs CPU, and begins again at a newer place when a part needs it.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple, TypeVar

from .. import telemetry
from ..adapters.commit_view import CommitView
from ..adapters.nats.log.follow import READER
from ..domain.commit import FIRST_PARTITION, FORMAT, Commit, LogHead, Seal
from ..domain.log_events import SUBJECTS, NamedSnapshot, decode
from ..engine.change_requests import ChangeRequests
from ..engine.commit_writer import Chain, OnForeign
from ..engine.fold import Fold
from ..engine.heads import SharedHeads
from ..engine.presence import Presence, Present, Readers
from ..engine.snapshots import Loaded, Snapshots
from ..engine.stage import BoundStage
from ..engine.watcher import Shown
from ..ports import Append, Clock, LogUnavailable, Projections, Written
from ..ports.commit_log import CommitLog
from ..subjects import COMMITS

T = TypeVar("T")
IDLE_S: Final = 5.0
"""Seconds after which a reader ends that no part needs."""
LOOKS_AGAIN_S: Final = 2.0
"""Seconds after which a part that waits for the reader looks whether the log answers."""
PAUSE_S: Final = 0.5
_NAMED: Final = SUBJECTS[NamedSnapshot]

_log = telemetry.get_logger("tocsin")


async def until_answered(ask: Callable[[], Awaitable[T]], clock: Clock, waits: str) -> T:
    """Ask the log again until it answers, and return the answer.

    `waits`: what waits for the log, for people.
    """
    while True:
        try:
            return await ask()
        except LogUnavailable as error:
            _log.info(f"{waits} for JetStream", action="log-unavailable", error=str(error))
            await clock.sleep(PAUSE_S)


class Start(NamedTuple):
    """A place at which a process can begin."""

    fold: Fold
    """The fold up to `number`."""
    head: LogHead
    number: int
    """The number of the newest event before the events that the process shows."""
    earlier: tuple[LogHead, ...] = ()
    named: str | None = None
    """The digest of a snapshot by which a later commit proves this place; None: it is proved."""
    snapshot: Loaded | None = None

    @property
    def is_genuine(self) -> bool:
        """Return whether a commit proved this place, once the log is read from there."""
        return self.named is None or self.named in self.fold.snapshots

    def refuse(self) -> None:
        place = {"sequence": self.head.sequence, "number": self.number}
        _log.warning("snapshot that no commit names, refused", action="snapshot-refused", **place)


class LogStarts:
    """Finds the places at which processes of a partition can begin."""

    def __init__(
        self, log: CommitLog, partition: int, beginning: LogHead, snapshots: Snapshots | None, heads: SharedHeads | None
    ) -> None:
        """`beginning`: the head before the first commit.

        None: the installation has no snapshots, or no heads that leaders show.
        """
        self._log = log
        self._partition = partition
        self._beginning = beginning
        self._snapshots = snapshots
        self._heads = heads

    async def of_stages(self, stages: Sequence[BoundStage], key: bytes) -> AsyncGenerator[Start, None]:
        """Yield places to try for a process that folds, the best first.

        The process begins with the fold of a snapshot, or at the beginning of the log. `key`: the key of the fold.
        """
        if self._snapshots is not None:
            async with aclosing(self._snapshots.candidates(frozenset(stage.name for stage in stages))) as candidates:
                async for loaded in candidates:
                    earlier = (self._beginning, *loaded.fold.heads)
                    yield Start(loaded.fold, loaded.start, loaded.head.number, earlier, loaded.digest, loaded)
        yield Start(Fold(key), self._beginning, 0)

    async def of_readers(self) -> AsyncGenerator[Start, None]:
        """Yield places to try for a process that only reads, the best first.

        The process begins at the newest head that a leader shows, at the place of a snapshot, or at the beginning of the log.
        """
        if self._heads is not None and (heads := await self._heads.load(self._log, self._partition)):
            newest = heads[-1]
            yield Start(Fold(), newest, newest.number, (self._beginning, *heads[:-1]))
        for place in () if self._snapshots is None else await self._snapshots.places():
            head = place.head.log
            yield Start(Fold(), head, head.number, (self._beginning,), place.digest)
        yield Start(Fold(), self._beginning, 0)


@dataclass(frozen=True, slots=True)
class ReadLog:
    """A log, and the places at which a reader can begin."""

    log: CommitLog
    starts: LogStarts
    seal: Seal
    clock: Clock
    readers: Readers
    on_foreign: OnForeign


class LogReader:
    """Reads the log for the parts of one process."""

    def __init__(
        self, of: ReadLog, view: CommitView, requests: ChangeRequests, projections: Projections | None, name: str
    ) -> None:
        """Make a reader that never ends if its process lasts.

        `projections`: where a process that lasts shows its presence by its name; None: it does not last.
        """
        self._of = of
        self._clock = of.clock
        self._view = view
        self._requests = requests
        self._projections = projections
        self._name = name
        self._wanted, self._begun = asyncio.Event(), asyncio.Event()
        self._looking = asyncio.Lock()
        self._waiting = 0
        """The parts that wait for a commit."""
        self._used_at = of.clock.monotonic()
        self._chain: Chain | None = None
        view.reader = self

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Read within the block, which begins when the log is read."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._run())]
            await self.begin()
            if self._projections is not None:
                presence = Presence(self._projections, self._clock, self._describe)
                await presence.run_once()
                tasks.append(group.create_task(presence.run()))
            try:
                yield
            finally:
                for task in tasks:
                    task.cancel()

    def _describe(self) -> Present:
        head = LogHead("") if self._chain is None else self._chain.head
        formats, lost = tuple(range(1, FORMAT + 1)), self._of.readers.lost
        return Present(self._name, formats, self._clock.now(), sequence=head.sequence, number=head.number, lost=lost)

    async def begin(self) -> None:
        """Wait until the log was read to its end once."""
        self._used_at = self._clock.monotonic()
        self._wanted.set()
        await self._begun.wait()

    async def catch_up(self) -> None:
        """Wait until everything is read that is stored at this moment.

        Raises:
            LogUnavailable: the log did not answer.
        """
        await self._held(self._catch_up)

    async def _catch_up(self) -> None:
        assert self._chain is not None  # noqa: S101 - for the type checker: it has begun
        while (stored := await self._of.log.next(FIRST_PARTITION, after=self._chain.head.sequence)) is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOKS_AGAIN_S):
                    await self._chain.reached(stored.sequence)

    async def store(self, writes: Sequence[Append]) -> list[Written]:
        """Have the registrar store decisions; return the result of each."""
        return await self._held(partial(self._requests.store, writes))

    async def _held(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do work while the reader reads."""
        self._waiting += 1
        self._wanted.set()
        try:
            while not self._begun.is_set():
                async with self._looking:  # the answer may be a whole commit: of many parts that wait, one looks
                    if self._chain is not None and not self._begun.is_set():  # an outage is an error, not a wait
                        await self._of.log.next(FIRST_PARTITION, after=self._chain.head.sequence)
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOOKS_AGAIN_S):
                        await self.begin()
            return await work()
        finally:
            self._waiting -= 1
            self._used_at = self._clock.monotonic()

    async def _run(self) -> None:
        """Read while the log is needed, until cancelled."""
        while True:
            await self._wanted.wait()
            following = await until_answered(self._begin, self._clock, "the reader of the log waits")
            try:
                while self._is_used() and not following.done():
                    await self._clock.sleep(IDLE_S)
                if following.done():
                    following.result()  # it ends by an error alone
            finally:
                self._wanted.clear()
                self._begun.clear()
                following.cancel()

    def _is_used(self) -> bool:
        is_recent = self._clock.monotonic() - self._used_at < IDLE_S
        return self._projections is not None or is_recent or self._waiting > 0 or self._view.is_followed

    async def _begin(self) -> "asyncio.Task[None]":
        """Read up to the end of the log, from the best place that is genuine."""
        async with aclosing(self._of.starts.of_readers()) as starts:
            async for start in starts:
                following = await self._begin_at(start)
                if start.is_genuine or self._view.fold is not start.fold:  # it goes on from its own place
                    self._begun.set()
                    return following
                start.refuse()
                following.cancel()
        raise LogUnavailable("no place of the log is genuine")

    async def _begin_at(self, start: Start) -> "asyncio.Task[None]":
        if self._chain is None or start.number > self._chain.head.number:
            self._chain = Chain(self._of.seal, start.head, self._of.on_foreign, start.earlier)
            self._view.fold = start.fold
            self._view.begin(self._chain, start.number)
        caught_up = asyncio.Event()
        following = asyncio.create_task(self._follow(self._chain, caught_up))
        waiting = asyncio.create_task(caught_up.wait())
        try:
            await asyncio.wait((following, waiting), return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
            if not caught_up.is_set():
                following.cancel()
        if following.done():
            following.result()
        return following

    async def _follow(self, chain: Chain, caught_up: asyncio.Event) -> None:
        READER.set(partial(self._of.readers.note, COMMITS))
        async for batch in self._of.log.follow(FIRST_PARTITION, after=chain.head.sequence):
            for body in batch.bodies:
                if (commit := chain.take(body)) is not None:
                    self._take(commit)
            if batch.caught_up:
                caught_up.set()

    def _take(self, commit: Commit) -> None:
        fold = self._view.fold
        for number, event in enumerate(commit.events, commit.first):
            if event.subject == _NAMED and isinstance(change := decode(event), NamedSnapshot):
                fold.evolve_log(change, writer=commit.writer, number=number, at=commit.at)
                self._view.forget_base()
        fold.keep(commit.at)
        self._view.explode(Shown(commit.first, commit.at, commit.events, (), is_own=False))
        self._requests.take(commit)
