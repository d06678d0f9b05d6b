"""The pure stages on the log of commits in memory, in processes of any layout."""

import asyncio
import random
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from datetime import datetime
from itertools import count
from typing import Any

import msgspec

from tests.domain.given import KEY
from tocsin import subjects
from tocsin.adapters.memory.commit_log import InMemoryCommitLog
from tocsin.domain.commit import Commit, CommitEvent, LogHead, Seal
from tocsin.domain.events import Message, Recorded
from tocsin.domain.log_events import is_log_event
from tocsin.domain.recovery import Policy
from tocsin.engine.broken_keys import StoredEvent
from tocsin.engine.commit_loop import CommitLoop
from tocsin.engine.commit_writer import Chain, CommitWriter
from tocsin.engine.fold import Fold
from tocsin.engine.fresh_fold import load_fold
from tocsin.engine.snapshots import Loaded
from tocsin.engine.stage import BoundStage
from tocsin.stages.dag_advancer.stage import DAG_ADVANCER, DagAdvancer
from tocsin.stages.dead_letter_sink import DEAD_LETTER_SINK, DeadLetterSink
from tocsin.stages.dependency_keeper.stage import DEPENDENCY_KEEPER, DependencyKeeper
from tocsin.stages.lease_keeper import LEASE_KEEPER, LeaseKeeper
from tocsin.stages.lock_keeper import LOCK_KEEPER, LockKeeper
from tocsin.stages.planner import PLANNER, Planner
from tocsin.stages.recoverer import RECOVERER, Recoverer
from tocsin.stages.retrier import RETRIER, Retrier
from tocsin.stages.ticker import TICKER, Ticker
from tocsin.subjects import Stream
from tocsin.testing import ManualClock

SEAL = Seal("tocsin", 0, {"k1": b"1" * 32})
NAMES = (
    *("ticker", "planner", "dependency_keeper", "lock_keeper", "dag_advancer"),
    *("retrier", "dead_letter_sink", "lease_keeper", "recoverer"),
)


def bound(names: Collection[str] = NAMES) -> list[BoundStage]:
    stages = {
        "ticker": lambda: TICKER.bind(Ticker()),
        "dependency_keeper": lambda: DEPENDENCY_KEEPER.bind(DependencyKeeper()),
        "lease_keeper": lambda: LEASE_KEEPER.bind(LeaseKeeper(KEY)),
        "recoverer": lambda: RECOVERER.bind(Recoverer(KEY, Policy())),
        "planner": lambda: PLANNER.bind(Planner(KEY)),
        "lock_keeper": lambda: LOCK_KEEPER.bind(LockKeeper(KEY)),
        "dag_advancer": lambda: DAG_ADVANCER.bind(DagAdvancer(KEY)),
        "retrier": lambda: RETRIER.bind(Retrier(KEY)),
        "dead_letter_sink": lambda: DEAD_LETTER_SINK.bind(DeadLetterSink()),
    }
    return [stages[name]() for name in names]


class Installation:
    """A log of commits, streams of inputs, and processes that run stages."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.log = InMemoryCommitLog(self.clock)
        self.inputs: dict[Stream, list[Recorded[Message]]] = defaultdict(list)
        self.effects = list[tuple[str, object]]()

    def publish(self, stream: Stream, message: Message, subject: str, message_id: str | None = None) -> None:
        stored = self.inputs[stream]
        stored.append(Recorded(message, subject, len(stored) + 1, self.clock.now(), message_id))

    def process(
        self,
        names: Collection[str] = NAMES,
        *,
        cut: bool = False,
        stages: Sequence[BoundStage] | None = None,
        snapshot: Loaded | None = None,
        leases: "Held | None" = None,
        name: str | None = None,
    ) -> "Process":
        return Process(self, names, cut=cut, stages=stages, snapshot=snapshot, leases=leases, name=name)

    async def store(self, *events: Message) -> None:
        """Events that the test decides."""
        reader = self.process(())
        await reader.read_on()
        drafts = [CommitEvent(subjects.subject_of(event), "test", "@", msgspec.Raw(event.encode())) for event in events]
        await reader.writer.append(
            SEAL.write(reader.chain.head, writer="test", at=self.clock.now(), taken={}, events=drafts)
        )

    async def commits(self) -> list[Commit]:
        chain, after, commits = Chain(SEAL, LogHead("k1")), 0, list[Commit]()
        while (stored := await self.log.next(0, after=after)) is not None:
            after = stored.sequence
            if (commit := chain.take(stored)) is not None:
                commits.append(commit)
        return commits

    async def events(self) -> list[Recorded[Message]]:
        """All events that this version can read."""
        found = list[Recorded[Message]]()
        for commit in await self.commits():
            for number, event in enumerate(commit.events, commit.first):
                with suppress(subjects.DecodeError):
                    if not is_log_event(event.subject):
                        found.append(StoredEvent(number, event.subject, commit.at, event.body).read())
        return found

    async def by_scope(self) -> dict[str, list[str]]:
        found = defaultdict[str, list[str]](list)
        for recorded in await self.events():
            kind = str(getattr(recorded.message, "type", None) or getattr(recorded.message, "event", ""))
            found[subjects.scope_of(recorded.message)].append(kind)
        return dict(found)


class Held:
    """The leases that the test gives to a process."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self._held = frozenset[str]()
        self.is_leaving = False
        self.on_change: Any = None

    @property
    def held(self) -> frozenset[str]:
        return frozenset() if self.is_leaving else self._held

    @held.setter
    def held(self, stages: Collection[str]) -> None:
        self._held = frozenset(stages)

    async def time(self) -> datetime | None:
        return self._clock.now() if self.held else None

    def now(self) -> datetime:
        return self._clock.now()

    def take(self, _: object) -> None:
        pass


class Process:
    """One process with some of the stages."""

    def __init__(
        self,
        installation: Installation,
        names: Collection[str],
        *,
        cut: bool = False,
        stages: Sequence[BoundStage] | None = None,
        snapshot: Loaded | None = None,
        leases: "Held | None" = None,
        name: str | None = None,
    ) -> None:
        self.installation = installation
        self.leases: Any = leases or Held(installation.clock)
        self.fold = Fold() if snapshot is None else snapshot.fold
        self.chain = Chain(SEAL, LogHead("k1") if snapshot is None else snapshot.start)
        self.writer = CommitWriter(installation.log, 0, self.chain, installation.clock)
        self.loop = CommitLoop(
            bound(names) if stages is None else stages,
            self.fold,
            self.writer,
            installation.clock,
            name=name or "-".join(names) or "none",
            leases=leases,  # type: ignore[arg-type] # what the loop asks of them
            on_effects=self._take_effects,
            reload=self._reload,
            steady=count().__next__ if cut else time.perf_counter,  # a second passes in each decision
            snapshot=snapshot,
        )
        self._offered: dict[Stream, int] = defaultdict(int)

    async def _reload(self) -> Fold | None:
        fold = Fold()
        fold.stages = self.fold.stages
        return await load_fold(self.installation.log, 0, SEAL, LogHead("k1"), self.chain.head, fold)

    async def _take_effects(self, effects: Sequence[tuple[str, object]]) -> None:
        self.installation.effects += effects

    async def read_on(self) -> None:
        """Fold what others stored, and take the inputs that came."""
        while (stored := await self.installation.log.next(0, after=self.chain.head.sequence)) is not None:
            if (commit := self.chain.take(stored)) is not None:
                self.loop.apply(commit)
        for stream, inputs in self.installation.inputs.items():
            for recorded in inputs[self._offered[stream] :]:
                self.loop.offer(stream, recorded)
            self._offered[stream] = len(inputs)

    async def run(self) -> bool:
        """Decide until nothing is left; whether anything was stored."""
        await self.read_on()
        has_stored = False
        while await self.loop.run_once():
            has_stored = True
        return has_stored


class Runner:
    """The processes of a layout, each of which may be a fresh one each time."""

    def __init__(
        self,
        installation: Installation,
        groups: Sequence[Collection[str]],
        *,
        cut: bool = False,
        restarts: bool = False,
        order: random.Random | None = None,
    ) -> None:
        self._installation = installation
        self._groups = groups
        self._cut = cut
        self._restarts = restarts
        self._order = order or random.Random(0)  # noqa: S311
        self._processes = [installation.process(group, cut=cut) for group in groups]

    async def run(self) -> None:
        """Run all processes until nothing is left to decide."""
        is_idle = False
        while not is_idle:
            is_idle = True
            self._order.shuffle(self._processes)
            for number, process in enumerate(self._processes):
                await process.read_on()
                head = process.chain.head
                if await process.loop.run_once():
                    is_idle = False
                    if self._restarts and process.chain.head != head:
                        fresh = self._installation.process([s.name for s in process.loop._stages], cut=self._cut)
                        await fresh.read_on()
                        assert same_state(fresh.fold, process.fold)
                        self._processes[number] = fresh

    async def rest(self) -> None:
        """Have positions stored that no event took along."""
        self._installation.clock.advance(1.5)
        await self.run()


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not holds():  # noqa: ASYNC110 - nothing is announced
            await asyncio.sleep(0.01)


def same_state(one: Fold, other: Fold) -> bool:
    tables = (
        "states",
        "numbers",
        "positions",
        "events",
        "ledgers",
        "announcements",
        "definitions",
        "shard_maps",
        "standing",
        "heads",
        "terms_by_stage",
        "snapshots",
        "upstream",
        "held",
        "gaps",
        "quotas",
    )
    return [*one.waiting] == [*other.waiting] and all(getattr(one, name) == getattr(other, name) for name in tables)
