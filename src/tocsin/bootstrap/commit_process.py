"""A process that reads the log of commits, and stores its decisions there."""

import asyncio
import os
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from datetime import datetime
from functools import partial
from secrets import token_hex
from typing import Final, Protocol, TypeAlias

from .. import telemetry
from ..adapters.archived_commit_log import ArchivedCommitLog
from ..adapters.commit_view import CommitView
from ..adapters.kept_scopes import KeptScopes, OpenEvents
from ..adapters.nats.log.follow import READER
from ..archive.commit_reader import CommitReader
from ..archive.log_archive import LogArchive
from ..domain.commit import FIRST_KEY, FIRST_PARTITION, FORMAT, LogHead, Seal, UnknownFormat
from ..domain.events import Message, Recorded
from ..engine.broken_keys import StoredEvent
from ..engine.causes import Alarm
from ..engine.change_requests import CHANGES, REGISTRAR, ChangeRequests
from ..engine.clock_guard import ClockGuard
from ..engine.commit_loop import CommitLoop
from ..engine.commit_writer import Chain, CommitWriter
from ..engine.fold import Fold
from ..engine.foreign_reports import ForeignMessages
from ..engine.fresh_fold import load_fold
from ..engine.heads import SharedHeads
from ..engine.presence import Presence, Present, Readers, StreamPlace
from ..engine.report_lists import LISTS, decode, listed
from ..engine.snapshots import Folding, Snapshots
from ..engine.stage import BoundStage, CommitStorage
from ..engine.stage_leases import StageLeases
from ..engine.watcher import Watcher
from ..engine.write_turns import WriteTurns
from ..ports import Clock, InputLog, LogUnavailable, Projections
from ..ports.commit_log import CommitLog, StoredBody, TurnChannel
from ..services.repair import LogEnd
from ..stages.planner import PLANNER
from ..subjects import COMMITS, Stream, UnreadableMessage, covers, digest_of, stream_of
from .effects import Effects
from .leading import Leading
from .log_reader import LogReader, LogStarts, ReadLog, Start, until_answered


class View(Watcher, Protocol):
    """Shows the events of commits to parts that read them by themselves."""

    loop: CommitLoop
    fold: Fold
    is_folding: bool

    def begin(self, chain: Chain, number: int) -> None:
        """Begin after the event with a number, where a chain begins or later."""


_Folded: TypeAlias = "tuple[CommitLoop, StageLeases | None, asyncio.Task[None]]"
"""A loop that has folded the log, and the parts that go on with it."""
KEY: Final = FIRST_KEY
PARTITION: Final = FIRST_PARTITION

_log = telemetry.get_logger("tocsin")


class Passes(Protocol):
    """The subscribers that messages pass before a stage decides (`adapters.nats.consumers.fed_subscribers`)."""

    async def inputs(self, stream: Stream, messages: Sequence[Recorded[Message]]) -> None: ...

    async def commits(self, bodies: Sequence[StoredBody]) -> None:
        """Let commits of other processes pass."""


def _filters(stages: Sequence[BoundStage], stream: Stream) -> list[str]:
    """Return the filters of stages over a stream, each once, with lists of reports."""
    filters = dict.fromkeys(
        filter_
        for stage in stages
        for subscription in stage.subscriptions
        if subscription.stream is stream
        for filter_ in subscription.filters
    )
    found = [one for one in filters if not any(other != one and covers(other, one) for other in filters)]
    if stream is Stream.REQUESTS and stages and CHANGES not in found:
        return [*found, CHANGES]  # stages wait for the changes that the registrar of another process decides
    return [*found, LISTS] if found and stream is Stream.REPORTS else found


class CommitProcess:
    """A process of an installation on the log of commits."""

    def __init__(  # noqa: PLR0913 - the parts of a process
        self,
        log: CommitLog,
        inputs: InputLog,
        clock: Clock,
        key: bytes,
        *,
        installation: str,
        name: str,
        turns: TurnChannel,
        wake_at: Callable[[datetime, Callable[[], None]], Alarm] | None = None,
        steady: Callable[[], float] = time.perf_counter,
        projections: Projections | None = None,
        foreign: ForeignMessages | None = None,
        is_lasting: bool = False,
    ) -> None:
        """`name`: a name that no other process has.

        `turns`: requests of processes that store commits. `wake_at`, `steady`: as in `CommitLoop`.
        `projections`: where snapshots and heads are; None: the process begins at the beginning of the log.
        `foreign` takes each message that is no commit. `is_lasting`: whether the process shows its presence.
        """
        self.folds = False  # whether the process folds the log although it has no stages that decide
        self.is_over = False
        self.has_folded = asyncio.Event()  # set for good once it folded the log
        self.folding: Folding | None = None  # the loop that folds the log; None: the log is not folded yet
        self._projections, self._readers = projections if is_lasting else None, Readers(clock)
        self._presence: Presence | None = None
        self._foreign = foreign or ForeignMessages()
        self._log = log
        self._inputs = inputs
        self._clock = clock
        self.key = key
        self.seal = Seal(installation, PARTITION, {KEY: key})
        self.name = name
        self._turns = turns
        self.passes: Passes | None = None
        """The subscribers that inputs and others' commits pass before the decisions; None: no subscribers."""
        self._wake_at = wake_at
        self._steady = steady
        self.snapshots = None if projections is None else Snapshots(projections, key)
        self._heads = None if projections is None else SharedHeads(projections, self.seal)
        self._starts = LogStarts(log, PARTITION, LogHead(KEY), self.snapshots, self._heads)
        self.effects = Effects(inputs, clock)

    @asynccontextmanager
    async def running(
        self, stages: Sequence[BoundStage], view: View, leading: Leading | None = None
    ) -> AsyncIterator[CommitLoop]:
        """Decide for stages within the block, which begins when the log is folded.

        Without stages, parts of the process request decisions. `leading`: the leases of the stages; None: this process alone has stages.
        """
        turns = WriteTurns(self.name, self._clock, self._turns)
        async with self._turns.asked(turns.take), asyncio.TaskGroup() as group:
            fold = partial(self._fold, stages, partial(self._fold_from, stages, view, group, turns, leading))
            loop, leases, following = await until_answered(fold, self._clock, "the process waits")
            view.loop = self.folding = loop
            self.has_folded.set()
            readers = [self._read(loop, _filters(stages, stream), stream) for stream in sorted(loop.streams)]
            running = group.create_task(loop.run())
            tasks = [following, *map(group.create_task, readers), running, group.create_task(self.effects.run())]
            if stages and self.snapshots is not None and self._heads is not None:
                tasks.append(
                    group.create_task(self.snapshots.keep(loop, self._clock, partial(loop.leads, PLANNER.name)))
                )
                tasks.append(group.create_task(self._heads.show(loop.shown_heads, self._clock)))
            if self._projections is not None:
                self._presence = Presence(self._projections, self._clock, partial(self._describe, loop, stages))
                await self._presence.run_once()
                tasks.append(group.create_task(self._presence.run()))
            electing = None if leases is None else group.create_task(leases.run())
            try:
                yield loop
            finally:
                self.is_over = True
                if leading is not None and leases is not None and electing is not None:
                    await leading.leave(loop, leases, running, electing)
                for task in tasks:
                    task.cancel()

    def leads(self, stage: str) -> bool:
        """Return whether this process decides for a stage."""
        return self.folding is not None and self.folding.leads(stage)

    def reading(self, view: CommitView) -> AbstractAsyncContextManager[None]:
        """Read the log within the block, while parts of the process need it."""
        self.has_folded.set()
        of = ReadLog(self._log, self._starts, self.seal, self._clock, self._readers, self._report_foreign)
        requests = ChangeRequests(self._inputs, self.key, self._clock, self.name)
        return LogReader(of, view, requests, self._projections, self.name).running()

    async def _fold(self, stages: Sequence[BoundStage], fold_from: Callable[[Start], Awaitable[_Folded]]) -> _Folded:
        """Fold the log, from the best place that is genuine."""
        async with aclosing(self._starts.of_stages(stages, self.key)) as starts:
            async for start in starts:
                folded = await fold_from(start)
                if start.is_genuine:
                    return folded
                start.refuse()
                folded[-1].cancel()
        raise LogUnavailable("no place of the log is genuine")

    async def _fold_from(
        self,
        stages: Sequence[BoundStage],
        view: View,
        group: asyncio.TaskGroup,
        turns: WriteTurns,
        leading: Leading | None,
        start: Start,
    ) -> _Folded:
        chain = Chain(self.seal, start.head, self._report_foreign, start.earlier)
        start.fold.on_broken = self._report_broken
        view.fold, view.is_folding = start.fold, True
        view.begin(chain, start.number)
        writer = CommitWriter(self._log, PARTITION, chain, self._clock)
        leases = leading.leases(stages, self.name, writer, self._readers) if leading is not None and stages else None
        loop = CommitLoop(
            stages,
            start.fold,
            writer,
            self._clock,
            name=self.name,
            on_effects=self.effects.send,
            watcher=view,
            wake_at=self._wake_at,
            steady=self._steady,
            leases=leases,
            turns=turns,
            ends=partial(self._ends, stages) if stages else None,
            reload=partial(self._load, chain, stages),
            snapshot=start.snapshot,
            log_clock=ClockGuard(self._log, self._clock),
            newest_format=lambda: FORMAT if self._presence is None else self._presence.format,
        )
        folded = asyncio.Event()
        following = group.create_task(self._follow(loop, start.head.sequence, folded))
        await folded.wait()
        return loop, leases, following

    def _report_foreign(self, stored: StoredBody, reason: str) -> None:
        self._foreign.report(f"commits.{PARTITION}", stored.sequence, stored.time, reason, stream=COMMITS)

    def _report_broken(self, event: StoredEvent, reason: str, does_decode: bool) -> None:  # noqa: FBT001 - a callback
        digest = digest_of(bytes(event.body))
        stored = UnreadableMessage(stream_of(event.subject), event.subject, event.number, event.time, digest)
        self._foreign.report_unreadable(stored, reason, does_decode=does_decode)

    def _describe(self, loop: CommitLoop, stages: Sequence[BoundStage]) -> Present:
        streams = {
            stream.value: StreamPlace(
                tuple(_filters(stages, stream)), max(loop.intake.read_upto.get(stream, 0), loop.floor(stream))
            )
            for stream in sorted(loop.streams)
            if loop.intake.begun[stream].is_set()
        }
        return Present(
            self.name,
            tuple(range(1, FORMAT + 1)),
            self._clock.now(),
            tuple(stage.name for stage in stages),
            tuple(sorted(loop.agenda.led)),
            loop.head.sequence,
            loop.head.number,
            loop.fold.floor,
            streams,
            loop.writer.unanswered,
            self._readers.lost,
        )

    async def _follow(self, loop: CommitLoop, after: int, folded: asyncio.Event) -> None:
        READER.set(partial(self._readers.note, COMMITS))
        async for batch in self._log.follow(PARTITION, after=after):
            if self.passes is not None and folded.is_set():
                await self.passes.commits([body for body in batch.bodies if body.sequence > loop.head.sequence])
            loop.receive(batch.bodies)
            if not folded.is_set():
                loop.fold_received()
                if batch.caught_up:
                    folded.set()

    async def _load(self, chain: Chain, stages: Sequence[BoundStage]) -> Fold | None:
        """Return the fold of the log up to the end of a chain.

        None: the log begins later.
        """

        async def load() -> Fold | None:
            fold = Fold(self.key)
            fold.stages = frozenset(stage.name for stage in stages)
            return await load_fold(self._log, PARTITION, self.seal, LogHead(KEY), chain.head, fold, self.snapshots)

        return await until_answered(load, self._clock, "a decision waits")

    async def _ends(self, stages: Sequence[BoundStage]) -> dict[Stream, int]:
        filters = {stream: _filters(stages, stream) for stream in (Stream.REQUESTS, Stream.REPORTS)}

        async def read() -> dict[Stream, int]:
            return {s: max(await self._inputs.tails(*of_stream)) for s, of_stream in filters.items() if of_stream}

        return await until_answered(read, self._clock, "decisions wait")

    async def _heed(self, loop: CommitLoop, upto: int) -> None:
        """Read the open changes up to a sequence, which another process decides."""
        after = loop.fold.position(REGISTRAR, Stream.REQUESTS).floor
        if after < upto:
            async for batch in self._inputs.follow(Stream.REQUESTS, CHANGES, after=after, decode=decode):
                for recorded in batch.messages:
                    if recorded.sequence <= upto:  # other requests between newer changes are not read yet
                        loop.offer(Stream.REQUESTS, recorded)
                if batch.caught_up or batch.upto >= upto:
                    return

    async def _read(self, loop: CommitLoop, filters: Sequence[str], stream: Stream) -> None:
        await loop.intake.begun[stream].wait()
        READER.set(partial(self._readers.note, stream.value))
        floor = loop.floor(stream)
        if stream is Stream.REQUESTS and filters[-1] == CHANGES:
            await self._heed(loop, floor)
        async for batch in self._inputs.follow(stream, *filters, after=floor, decode=decode):
            messages = [one for recorded in batch.messages for one in listed(recorded)]
            if self.passes is not None:
                await self.passes.inputs(stream, messages)
            for one in messages:
                loop.offer(stream, one)
            if messages:
                loop.intake.note(stream, messages[-1].sequence, len(messages), batch.size)
            loop.intake.note_read(stream, batch.upto)
            loop.wake()
            await loop.intake.room(stream)


class Commits:
    """The log of commits of an installation, read once a part needs it."""

    def __init__(  # noqa: PLR0913 - the parts of an installation
        self,
        log: CommitLog,
        turns: TurnChannel,
        inputs: InputLog,
        projections: Projections,
        clock: Clock,
        archive: LogArchive,
        key: Callable[[], Awaitable[bytes]],
        foreign: ForeignMessages,
        *,
        installation: str,
        history: OpenEvents,
        wake_at: Callable[[datetime, Callable[[], None]], Alarm] | None = None,
        folds: bool = False,
    ) -> None:
        """`log`: the commits without their archive.

        `history`: keeps the events of scopes that are in no fold. `wake_at`: as in `CommitLoop`. `folds`: whether the process decides without
        stages too, because no other process does.
        """
        self._folds = folds
        self._history = history
        self._foreign = foreign
        self.is_lasting = False  # whether this process reads the log for longer than a command: it shows its presence
        self.log = ArchivedCommitLog(log, archive)
        self._turns = turns
        self.archive = archive
        self._inputs = inputs
        self._projections = projections
        self._clock = clock
        self._key = key
        self._installation = installation
        self._wake_at = wake_at
        self._wanted = asyncio.Event()
        self._view: asyncio.Future[CommitView] = asyncio.get_running_loop().create_future()
        self._shown: CommitProcess | None = None  # the process with this view, if it has stages
        self._outdated: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def reader(self) -> CommitReader:
        """The reader of the log, from its beginning or from a known head."""
        return CommitReader(self.log, PARTITION, self._seal, KEY, self._head_before)

    def _head_before(self, number: int) -> LogHead | None:
        view = self._view.result() if self._view.done() and self._view.exception() is None else None
        return view.chain.heads.before(number) if number and view is not None and view.chain is not None else None

    def end(self, key: bytes, clock: Clock) -> LogEnd:
        """Return the end of the log, for a command while no stage runs."""
        seal = Seal(self._installation, PARTITION, {KEY: key})
        return LogEnd(self.log, PARTITION, seal, KEY, self.archive, clock)

    async def _seal(self) -> Seal:
        return Seal(self._installation, PARTITION, {KEY: await self._key()})

    async def view(self) -> CommitView:
        """Return the events, once they are read."""
        self._wanted.set()
        view = await asyncio.shield(self._view)
        if self._shown is not None:
            await self._shown.has_folded.wait()
        return view

    async def outdated(self) -> None:
        """Wait until the log has a commit that this process cannot read.

        Raises:
            ExceptionGroup: with `UnknownFormat`: it has one now.
        """
        await asyncio.shield(self._outdated)

    async def process(self, early: Sequence[str] = ()) -> tuple[CommitProcess, CommitView]:
        """Return the reader and writer of the log, and the view of all parts (`view`)."""
        process, view = await self._process(early, is_lasting=True)
        # The view of a reader stores by requests, which only operators may make: stages have their own.
        if self._view.done() and (self._view.exception() or self._shown is None or self._shown.is_over):
            self._view = asyncio.get_running_loop().create_future()
        if not self._view.done():  # the parts of an installation share the view of its first process, which ends last
            self._view.set_result(view)
            self._shown = process
        return process, view

    async def _process(self, early: Sequence[str] = (), *, is_lasting: bool) -> tuple[CommitProcess, CommitView]:
        self.log.waits |= is_lasting
        process = CommitProcess(
            self.log,
            self._inputs,
            self._clock,
            await self._key(),
            installation=self._installation,
            name=f"{socket.gethostname()}-{os.getpid()}-{token_hex(4)}",
            turns=self._turns,
            projections=self._projections,
            is_lasting=is_lasting,
            foreign=self._foreign,
            wake_at=self._wake_at,
        )
        snapshots = Snapshots(self._projections, b"")
        view = CommitView(self.log, PARTITION, process.seal, snapshots, early=early)
        view.reads.kept = KeptScopes(self._history)
        return process, view

    def storage(
        self,
        process: CommitProcess,
        takers: Mapping[Stream, frozenset[str]],
        followers: Mapping[str, Callable[[], Awaitable[int]]],
    ) -> CommitStorage:
        """Return the archiver of the log of a process that then folds the log."""
        process.folds = True
        return CommitStorage(
            log=self.log,
            partition=PARTITION,
            seal=process.seal,
            key=KEY,
            archive=self.archive,
            folding=lambda: process.folding,
            snapshots=Snapshots(self._projections, process.key),
            takers=takers,
            followers=followers,
        )

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[None]:
        """Read the log within the block, from the moment at which a part needs it."""
        task = asyncio.create_task(self._read())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def _read(self) -> None:
        await self._wanted.wait()
        if self._view.done():
            return  # a process with stages reads it
        try:
            process, view = await self._process(is_lasting=self.is_lasting)
            async with process.running([], view) if self._folds else process.reading(view):
                if self._shown is not None:
                    return  # a process with stages began meanwhile
                self._view.set_result(view)
                await asyncio.Event().wait()
        except Exception as error:  # noqa: BLE001 - its readers get it
            if self._shown is None:
                if self._view.done():  # the next part that reads gets it
                    self._view = asyncio.get_running_loop().create_future()
                self._view.set_exception(error)
                self._view.exception()  # perhaps no part reads
            if self.is_lasting and isinstance(error, ExceptionGroup) and error.subgroup(UnknownFormat) is not None:
                self._outdated.set_exception(error)
            log = _log.error if self.is_lasting else _log.debug  # a command shows the error by itself
            log("commits not read", action="commits-not-read", exc_info=error)
