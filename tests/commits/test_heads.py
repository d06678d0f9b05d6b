"""Places where processes begin to read the log, and guards of processes that did not read its beginning."""

import asyncio
import random
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from typing_extensions import override

from tests.commits.members import SECRET, Members
from tocsin import subjects
from tocsin.adapters.commit_view import CommitView
from tocsin.adapters.memory.clock import LoopClock
from tocsin.adapters.memory.commit_log import InMemoryCommitLog
from tocsin.adapters.scope_tails import stays
from tocsin.bootstrap.commit_process import KEY, PARTITION
from tocsin.domain.commit import LogHead, Seal
from tocsin.domain.definition import JobDefinition
from tocsin.domain.events import AgentSwitched, Defined, Message, QueuePaused, QueueResumed, Resolved
from tocsin.engine import heads
from tocsin.engine.commit_loop import CommitLoop
from tocsin.engine.heads import SHOWN, Heads
from tocsin.engine.snapshots import LEAST_INTERVAL
from tocsin.ports import SequenceConflict
from tocsin.ports.commit_log import Bodies
from tocsin.subjects import Bucket, Stream

SCOPES: dict[str, Callable[[int], Message]] = {
    "ledger.a.>": lambda n: defined("a", n),
    "ledger.b.>": lambda n: defined("b", n),
    "queue.q.>": lambda n: QueuePaused(queue="q", reason=str(n)) if n % 2 else QueueResumed(queue="q"),
    "agent.x.all.>": lambda n: AgentSwitched(name="x", enabled=n % 2 == 0),
    "dead-letter.a.d.>": lambda n: Resolved(job="a", id="d", reason=str(n)),
}


def defined(job: str, number: int = 0) -> Defined:
    return Defined(job=job, definition=JobDefinition(name=job, function="f", description=str(number)))


class CountedLog(InMemoryCommitLog):
    """Notes the sequences from which readers followed it."""

    def __init__(self) -> None:
        super().__init__(LoopClock())
        self.followed = list[int]()

    @override
    async def follow(self, partition: int, *, after: int) -> AsyncGenerator[Bodies, None]:
        self.followed.append(after)
        async for batch in super().follow(partition, after=after):
            yield batch


class World(Members):
    """A log, and processes that begin to read it."""

    log: CountedLog

    def __init__(self) -> None:
        super().__init__(CountedLog(), LoopClock())
        self.seal = Seal("tocsin", PARTITION, {KEY: SECRET})
        self._later = datetime.now(UTC)

    async def save(self, loop: CommitLoop) -> None:
        """Write a snapshot."""
        self._later += 2 * LEAST_INTERVAL
        await self.snapshots.save_if_due(loop, self._later)

    async def show(self, *shown: LogHead, seal: Seal | None = None) -> None:
        await self.projections.put(Bucket.SNAPSHOTS, SHOWN, (seal or self.seal).sign(shown))

    async def hide(self) -> None:
        await self.projections.remove(Bucket.SNAPSHOTS, SHOWN)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(heads, "SHOW_INTERVAL_S", 3_600)  # tests show heads
    monkeypatch.setattr(heads, "INTERVAL", 1)
    return World()


async def store(world: World, count: int) -> LogHead:
    """Store definitions of some jobs, a commit each; return the place after them."""
    async with world.deciding() as (view, loop):
        for number in range(count):
            await view.append(defined(f"job-{number}"), expect=0)
        return loop.head


async def test_process_without_stages_begins_at_a_shown_head(world: World) -> None:
    newest = await store(world, 20)
    await world.show(LogHead(KEY), newest)
    async with world.deciding():
        world.log.followed.clear()
        async with world.reading() as view:
            assert world.log.followed == [newest.sequence]
            number = await view.append(defined("new"), expect=0)
            assert number == newest.number + 1 == await view.end(Stream.LEDGER)
            assert await view.tail("ledger.new.>") == number


async def test_scope_that_stays_is_read_once(world: World) -> None:
    await store(world, 20)
    async with world.deciding(), world.reading() as reader, world.reading() as writer:
        assert await reader.load("agent.x.all.>") == []
        world.log.followed.clear()
        number = await writer.append(AgentSwitched(name="x", enabled=False), expect=0)
        for _ in range(3):
            assert [one.sequence for one in await reader.load("agent.x.all.>")] == [number]
        assert not world.log.followed


async def test_process_without_stages_or_head_begins_at_snapshot(world: World) -> None:
    async with world.deciding() as (view, loop):
        for number in range(5):
            await view.append(defined(f"job-{number}"), expect=0)
        place = loop.head
        await world.save(loop)
        await world.hide()
        world.log.followed.clear()
        async with world.reading() as reader:
            assert await reader.tail("ledger.job-3.>") == 4
            await reader.append(defined("job-3", 2), expect=4)
            with pytest.raises(SequenceConflict):
                await reader.append(defined("job-4"), expect=0)
            with pytest.raises(SequenceConflict):
                await reader.append(defined("job-3"), expect=4)
            await reader.append(defined("new"), expect=0)
            assert [one.message for one in await reader.load("ledger.job-2.>")] == [defined("job-2")]
        assert min(world.log.followed) >= place.sequence


async def test_half_replaced_snapshot_is_read_once(world: World) -> None:
    """The head of a snapshot stands while its parts are of the next snapshot, and its writer may have died."""
    async with world.deciding() as (view, loop):
        number = await view.append(AgentSwitched(name="x", enabled=False), expect=0)
        for job in range(20):
            await view.append(defined(f"job-{job}"), expect=0)
        await world.save(loop)
        assert await world.projections.get(Bucket.SNAPSHOTS, "fold.0.head")
        await world.show(loop.head)
        for key in await world.projections.entries(Bucket.SNAPSHOTS):
            if key.startswith("fold.") and not key.endswith(".head"):
                await world.projections.put(Bucket.SNAPSHOTS, key, b"of the next")
        async with world.reading() as reader, asyncio.timeout(20):
            assert [one.sequence for one in await reader.load("agent.x.all.>")] == [number]


@pytest.mark.parametrize("what", ["unsigned", "other key", "other partition", "other log", "damaged", "old copy"])
async def test_forged_heads_are_not_trusted(world: World, what: str) -> None:
    newest = await store(world, 8)
    forged = msgspec.structs.replace(newest, sequence=3, number=3)
    match what:
        case "unsigned":
            await world.projections.put(
                Bucket.SNAPSHOTS, SHOWN, b"0" * 64 + b"\nheads\n" + msgspec.json.encode([forged])
            )
        case "other key":
            await world.show(forged, seal=Seal("tocsin", PARTITION, {KEY: b"2" * 32}))
        case "other partition":
            await world.show(newest, seal=Seal("tocsin", PARTITION + 1, {KEY: SECRET}))
        case "other log":  # proved, and of a log that lost its tail
            await world.show(msgspec.structs.replace(newest, number=100, sequence=100), newest)
        case "damaged":
            await world.projections.put(Bucket.SNAPSHOTS, SHOWN, world.seal.sign((newest,))[:-5])
        case _:  # a commit was stored again, behind the newest
            copied = await world.log.next(PARTITION, after=2)
            assert copied is not None
            sequence = await world.log.receive(PARTITION, copied.body)
            await world.show(LogHead(KEY), msgspec.structs.replace(newest, sequence=sequence))
    world.log.followed.clear()
    async with world.reading() as view:
        assert world.log.followed == [newest.sequence if what == "other log" else 0]
        assert await view.end(Stream.LEDGER) == 8
        assert await view.tail("ledger.job-7.>") == 8


async def test_process_without_stages_distrusts_a_forged_snapshot(world: World) -> None:
    """The snapshot is whole and hides the events of a job, but no commit names it."""
    async with world.deciding() as (view, loop):
        await view.append(defined("b"), expect=0)
        first = await view.append(defined("a"), expect=0)
        await world.save(loop)
        number = await view.append(defined("a", 1), expect=first)
        place = await loop.copy()

        async def name(_: object) -> None:
            pass

        copy = place[0]._replace(states={}, numbers={}, ledgers={}, definitions={})
        await world.snapshots.save(copy, place[1], place[2], name)
        newest = loop.head
    await world.show(LogHead(KEY), newest)
    async with world.reading() as view:
        assert await view.tail("ledger.a.>") == number
    await world.hide()
    async with world.reading() as view:
        assert [one.sequence for one in await view.load("ledger.a.>")][-1:] == [number]


async def stored(view: CommitView, event: Message, expect: int) -> int | None:
    try:
        return await view.append(event, expect=expect)
    except SequenceConflict:
        return None


@pytest.mark.parametrize("seed", range(12))
async def test_guards_hold_wherever_processes_begin(world: World, seed: int) -> None:
    """Wherever a process begins, its event is stored exactly if the expected one is the newest of its scope."""
    chance = random.Random(seed)  # noqa: S311 - the same for each seed
    tails, numbers = dict.fromkeys(SCOPES, 0), [0]
    async with world.deciding() as (folder, folding):
        for scope in ("dead-letter.a.d.>",):  # only stages begin it
            tails[scope] = await folder.append(SCOPES[scope](0), expect=0)
        for step in range(25):
            match chance.random():
                case x if x < 0.25:
                    await world.save(folding)
                case x if x < 0.6:
                    await world.show(*(folding.shown_heads() or ()))
                case _:
                    await world.hide()
            async with AsyncExitStack() as readers:
                views = [await readers.enter_async_context(world.reading()) for _ in range(chance.randrange(1, 3))]
                for n in range(chance.randrange(1, 5)):
                    view, scope = chance.choice(views), chance.choice(list(SCOPES))
                    expect = chance.choice([tails[scope], tails[scope], 0, chance.choice(numbers)])
                    number = await stored(view, SCOPES[scope](100 * step + n), expect)
                    assert (number is not None) == (expect == tails[scope])
                    if number is not None:
                        tails[scope] = number
                        numbers.append(number)
                    assert await view.tail(scope) == tails[scope]
                    if stays(scope):  # operators expect the newest event that they loaded
                        for loaded in (await view.load(scope), await folder.load(scope)):
                            assert (loaded[-1].sequence if loaded else 0) == tails[scope]


def test_heads_are_few_and_the_nearest_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heads, "INTERVAL", 10)
    monkeypatch.setattr(heads, "MAX_HEADS", 50)
    known = Heads([LogHead(KEY)])
    for number in range(1, 10_001):
        known.note(LogHead(KEY, sequence=number, number=number))
    newest = LogHead(KEY, sequence=10_000, number=10_000)
    assert len(known._heads) <= 50
    for number in range(0, 10_001, 7):
        assert number - 640 <= known.before(number).number <= number
    shown = known.shown(newest, [LogHead(KEY, sequence=9_999, number=9_999)])
    assert [head.number for head in shown] == sorted(head.number for head in shown)
    assert (shown[0].number, shown[-1].number, shown[-2].number) == (0, 10_000, 9_999)
    assert len(shown) <= 20


async def test_forgotten_agent_leaves_the_fold_after_a_day(world: World) -> None:
    async with world.deciding() as (view, loop):
        number = await view.append(AgentSwitched(name="x", enabled=False), expect=0)
        fold = loop.fold
        assert [one.sequence for one in await view.load("agent.x.all.>")] == [number]
        gone = subjects.agent("y", "1")
        body = b'{"v":1,"name":"y","agent_id":"1","type":"forgotten"}'
        forgotten = subjects.decode("agent.y.1.forgotten", body)
        await view.append(forgotten, expect=0)
        assert gone in fold.standing
        fold.keep(datetime.now(UTC) + timedelta(hours=23))
        assert gone in fold.standing
        fold.keep(datetime.now(UTC) + timedelta(hours=25))
        assert gone not in fold.standing
        assert gone not in fold.numbers
        assert "agent.x.all.>" in fold.standing
