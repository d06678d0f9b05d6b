"""A process on a real server begins with a snapshot, where the beginning of the log is gone."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import pytest

from tests.clocks import ShiftedClock
from tests.commits.processes import bound, same_state, until
from tests.conformance.worlds import NatsWorld, nats_streams
from tocsin import subjects
from tocsin.adapters.memory.agents import InMemoryTurnChannel
from tocsin.adapters.memory.archive import InMemoryProjections
from tocsin.adapters.memory.clock import LoopClock
from tocsin.adapters.memory.commit_log import InMemoryCommitLog
from tocsin.adapters.memory.event_log import InMemoryEventLog
from tocsin.adapters.nats.log.commit_log import NatsCommitLog
from tocsin.adapters.system_clock import SystemClock
from tocsin.bootstrap.commit_process import PARTITION, CommitProcess
from tocsin.domain.definition import JobDefinition
from tocsin.domain.events import Completed, Defined, Trigger
from tocsin.engine import leadership
from tocsin.engine.commit_loop import CommitLoop
from tocsin.engine.commit_writer import Chain
from tocsin.engine.fold import Fold
from tocsin.engine.snapshots import Snapshots
from tocsin.engine.watcher import NobodyWatches
from tocsin.ports import LogUnavailable
from tocsin.subjects import Bucket

KEY = b"k" * 32


class Watching(NobodyWatches):
    loop: CommitLoop
    fold: Fold
    is_folding: bool = False
    chain: Chain | None = None

    def begin(self, chain: Chain, number: int) -> None:
        pass


class Place:
    """An installation on a server."""

    def __init__(self, world: NatsWorld) -> None:
        root = world.names.root
        self.world = world
        self.log = NatsCommitLog(world.connection, f"{root}_COMMITS", f"{root}.commits")
        self.snapshots = Snapshots(world.projections, KEY)
        self._later = datetime.now(UTC)

    def process(self, name: str = "process") -> CommitProcess:
        return CommitProcess(
            self.log,
            self.world.streams,
            SystemClock(),
            KEY,
            installation=self.world.names.root,
            name=name,
            turns=InMemoryTurnChannel(),
            projections=self.world.projections,
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[CommitLoop]:
        process = self.process()
        assert process.snapshots is not None
        self.snapshots = process.snapshots
        async with process.running(bound(), Watching()) as loop:
            yield loop

    async def trigger(self, loop: CommitLoop, number: int, *, keyed: bool = False) -> None:
        """Run an execution to its end."""
        message = Trigger(idempotency_key=f"k{number}" if keyed else None)
        before = loop.head.number
        await self.world.streams.publish(
            subjects.trigger("nightly"), message, message_id=f"m{number}-{loop.head.number}"
        )
        await until(lambda: loop.head.number > before and self.open(loop))
        for scope in self.open(loop):
            asked = loop.fold.states[scope].request
            end = Completed(
                job=asked.job,
                execution_id=asked.execution_id,
                scheduled_time=asked.scheduled_time,
                trigger=asked.trigger,
            )
            await loop.propose("test", [end], expect=loop.fold.numbers[scope])
        await until(lambda: not self.open(loop))

    def open(self, loop: CommitLoop) -> list[str]:
        states = loop.fold.states
        return [scope for scope, state in states.items() if scope.startswith("execution.") and not state.is_over]

    async def save(self, loop: CommitLoop) -> int:
        number = loop.head.number
        self._later += timedelta(hours=1)
        assert await self.snapshots.save_if_due(loop, self._later)
        assert not await self.snapshots.save_if_due(loop, self._later + timedelta(minutes=30))  # nothing changed
        return number


@pytest.fixture
async def place(nats_url: str) -> AsyncIterator[Place]:
    async with nats_streams(nats_url) as world:
        yield Place(world)


async def test_process_begins_with_snapshot_of_a_shortened_log(place: Place) -> None:
    async with place.running() as loop:
        definition = JobDefinition(name="nightly", function="f", overlap_policy="allow")
        await loop.propose("test", [Defined(job="nightly", definition=definition)], expect=0)
        await place.trigger(loop, 1, keyed=True)
        saved = await place.save(loop)
        start = loop.head.sequence
        await place.trigger(loop, 2)
        await asyncio.sleep(1.5)  # positions that moved without an event are stored
        last, fold = loop.head, loop.fold
    [first] = [loaded async for loaded in place.snapshots.candidates()]
    assert first.head.number == saved
    await place.log.purge(PARTITION, upto=first.start.sequence)
    async with place.running() as loop:
        assert loop.head.number >= last.number
        assert same_state(loop.fold, fold)
        events = loop.head.number
        again = Trigger(idempotency_key="k1")
        await place.world.streams.publish(subjects.trigger("nightly"), again, message_id="again")
        await place.trigger(loop, 3)
        assert loop.head.number - events <= 4  # those of the third alone
        await place.save(loop)
    assert start < loop.head.sequence


class Silent(InMemoryProjections):
    """Buckets that do not answer the first requests."""

    silent = 3

    async def get(self, bucket: Bucket, key: str) -> tuple[bytes, int] | None:
        if self.silent:
            self.silent -= 1
            raise LogUnavailable("no answer")
        return await super().get(bucket, key)


async def test_process_waits_until_snapshots_can_be_read() -> None:
    clock, turns = LoopClock(), InMemoryTurnChannel()
    log, inputs, buckets = InMemoryCommitLog(clock), InMemoryEventLog(clock), Silent(clock)
    process = CommitProcess(log, inputs, clock, KEY, installation="i", name="p", turns=turns, projections=buckets)
    async with asyncio.timeout(20), process.running(bound(), Watching()):
        assert buckets.silent == 0


async def test_older_snapshot_is_loaded_if_newest_is_damaged(place: Place) -> None:
    async with place.running() as loop:
        definition = JobDefinition(name="nightly", function="f", overlap_policy="allow")
        await loop.propose("test", [Defined(job="nightly", definition=definition)], expect=0)
        saved = list[int]()
        for number in range(2):
            await place.trigger(loop, number)
            saved.append(await place.save(loop))
        await asyncio.sleep(1.5)
        fold = loop.fold
    candidates = [loaded async for loaded in place.snapshots.candidates()]
    assert [loaded.head.number for loaded in candidates] == [saved[1], saved[0]]
    for slot, head in await place.snapshots._heads():
        if head.log.number == saved[1]:
            await place.world.projections.remove(Bucket.SNAPSHOTS, f"fold.{slot}.0")
    await place.log.purge(PARTITION, upto=candidates[1].start.sequence)
    async with place.running() as loop:
        assert same_state(loop.fold, fold)
        await place.trigger(loop, 7)


class Timeless(InMemoryCommitLog):
    """A log whose first requests for its time are not answered."""

    refusals = 3

    async def now(self) -> datetime:
        self.refusals -= 1
        if self.refusals >= 0:
            raise LogUnavailable("no answer")
        return await super().now()


async def test_first_commit_waits_for_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job of the year 1 would miss billions of instants."""
    monkeypatch.setattr(leadership, "PAUSE_S", 0.01)
    clock, turns = LoopClock(), InMemoryTurnChannel()
    before, log = clock.now(), Timeless(clock)
    process = CommitProcess(log, InMemoryEventLog(clock), clock, KEY, installation="i", name="command", turns=turns)
    async with asyncio.timeout(20), process.running([], Watching()) as loop:
        definition = JobDefinition(name="nightly", function="f")
        await loop.propose("api", [Defined(job="nightly", definition=definition)], expect=0)
        assert before - timedelta(seconds=1) <= loop.head.at <= clock.now()
    assert log.refusals < 0


@pytest.mark.parametrize("hours", [-24, 24])
async def test_wrong_clock_of_a_command_moves_no_time(hours: int) -> None:
    clock = LoopClock()
    log, wrong = InMemoryCommitLog(clock), ShiftedClock(clock, hours * 3600.0)
    turns = InMemoryTurnChannel()
    process = CommitProcess(log, InMemoryEventLog(clock), wrong, KEY, installation="i", name="command", turns=turns)
    before = clock.now()
    async with asyncio.timeout(20), process.running([], Watching()) as loop:
        definition = JobDefinition(name="nightly", function="f")
        await loop.propose("api", [Defined(job="nightly", definition=definition)], expect=0)
        assert before - timedelta(seconds=1) <= loop.head.at <= clock.now()
