"""The logs of a world in memory, and its processes."""

import asyncio
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

from typing_extensions import override

from tocsin.adapters.commit_view import CommitView
from tocsin.adapters.memory.stored_stream import StoredStream
from tocsin.adapters.routed_log import RoutedLog
from tocsin.domain.commit import LogHead, Seal
from tocsin.domain.events import Message, PoisonMessage
from tocsin.domain.log_events import LogEvent
from tocsin.engine.asked import Asked
from tocsin.engine.causes import Effect, Notice
from tocsin.engine.commit_loop import CommitLoop
from tocsin.engine.commit_writer import Chain, CommitWriter
from tocsin.engine.fold import Fold
from tocsin.engine.fresh_fold import load_fold
from tocsin.engine.report_lists import decode, listed
from tocsin.engine.stage import BoundStage
from tocsin.engine.step import Send, Step
from tocsin.engine.watcher import Watcher
from tocsin.subjects import Stream
from tocsin.testing import InMemoryEventLog, ManualClock

if TYPE_CHECKING:
    from .world import World

PARTITION: Final = 0
KEY: Final = b"1" * 32
SEAL: Final = Seal("tocsin", PARTITION, {"k1": KEY})
BEGIN: Final = LogHead("k1")


class WatchedInputs(InMemoryEventLog):
    """Lets a stage store only what it says that it stores: on a server with users it would be refused the rest."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.undeclared: list[str] = []
        self._acting: ContextVar[BoundStage | None] = ContextVar("acting", default=None)

    @contextmanager
    def played_by(self, stage: BoundStage | None) -> Iterator[None]:
        """Attribute messages inside the block to a stage; None: to the test itself."""
        before = self._acting.set(stage)
        try:
            yield
        finally:
            self._acting.reset(before)

    @override
    async def publish(self, subject: str, message: Message, *, message_id: str, ttl: float | None = None) -> int:
        self.check(self._acting.get(), message)
        return await super().publish(subject, message, message_id=message_id, ttl=ttl)

    def check(self, stage: BoundStage | None, message: Message) -> None:
        """Note a message that a stage does not declare."""
        if stage is not None and not isinstance(message, (*stage.access.appends, PoisonMessage)):
            self.undeclared.append(
                f"{stage.name} appends {type(message).__name__}, and its `access` does not name that"
            )


class WorldLog(RoutedLog):
    """The inputs and decisions, as a process sees them."""

    base: WatchedInputs

    def __init__(self, inputs: WatchedInputs, view: CommitView) -> None:
        async def shown() -> CommitView:
            return view

        super().__init__(inputs, shown)

    def receive(
        self, subject: str, body: bytes, *, message_id: str | None = None, headers: Mapping[str, str] | None = None
    ) -> int:
        """Store a body that any client published as an input."""
        return self.base.receive(subject, body, message_id=message_id, headers=headers)

    def stream(self, stream: Stream) -> StoredStream:
        """Return a stream of inputs as it is stored."""
        return self.base.stream(stream)


class Parts(CommitLoop):
    """The loop of a process without stages: it stores what parts decide, at once."""

    def __init__(self, process: "Process", watcher: Watcher) -> None:
        self._process = process
        self._storing: set[asyncio.Task[bool]] = set()
        super().__init__(
            (),
            process.fold,
            process.writer,
            process.clock,
            name="parts",
            on_effects=process.take_effects,
            watcher=watcher,
        )

    @override
    def wake(self) -> None:
        task = asyncio.ensure_future(self._process.run())
        self._storing.add(task)
        task.add_done_callback(self._storing.discard)

    @override
    def note(self, by: str, event: LogEvent) -> "asyncio.Future[None]":
        self.wake()
        return super().note(by, event)

    @override
    def ask(self, asked: Asked) -> "asyncio.Future[Step]":
        self.wake()
        return super().ask(asked)

    @override
    def propose(self, by: str, events: Sequence[Message], *, expect: int) -> "asyncio.Future[tuple[int, ...]]":
        self.wake()
        return super().propose(by, events, expect=expect)


class Process:
    """A process that decides for stages, or for its parts.

    `watcher`: the view of the parts.
    """

    def __init__(self, world: "World", stages: Sequence[BoundStage], watcher: Watcher | None = None) -> None:
        self._world = world
        self.clock = world.clock
        self.fold = Fold(KEY)
        self.chain = Chain(SEAL, BEGIN)
        self.writer = CommitWriter(world.commits, PARTITION, self.chain, world.clock)
        self._stages = {stage.name: stage for stage in stages}
        self._offered: dict[Stream, int] = defaultdict(int)
        self.loop = (
            CommitLoop(
                stages,
                self.fold,
                self.writer,
                world.clock,
                name="-".join(self._stages),
                on_effects=self.take_effects,
                reload=self._reload,
                steady=lambda: 0.0,
            )
            if watcher is None
            else Parts(self, watcher)
        )

    async def _reload(self) -> Fold | None:
        fold = Fold(KEY)
        fold.stages = self.fold.stages
        return await load_fold(self._world.commits, PARTITION, SEAL, BEGIN, self.chain.head, fold)

    async def take_effects(self, effects: Sequence[tuple[str, Effect]]) -> None:
        """Publish what follows from stored decisions."""
        for by, effect in effects:
            if isinstance(effect, Notice) and effect.take is not None:
                effect.take(effect.signal)
            elif isinstance(effect, Send):
                with self._world.inputs.played_by(self._stages.get(by)):
                    await self._world.inputs.publish(
                        effect.subject, effect.message, message_id=effect.message_id, ttl=effect.ttl
                    )

    async def read_on(self) -> None:
        """Fold what others stored, and take the inputs that came."""
        while (stored := await self._world.commits.next(PARTITION, after=self.chain.head.sequence)) is not None:
            self.loop.receive([stored])
            self.loop.fold_received()
        for stream in sorted(self.loop.streams):
            for entry in self._world.inputs.stream(stream).entries_after(self._offered[stream]):
                self._offered[stream] = entry.sequence
                for recorded in listed(entry.recorded(decode)):
                    self.loop.offer(stream, recorded)

    async def run(self) -> bool:
        """Decide until nothing is left; return whether anything was stored."""
        async with self._world.turn:
            await self.read_on()
            before = self.chain.head.sequence
            while await self.loop.run_once():
                pass
            return self.chain.head.sequence > before
