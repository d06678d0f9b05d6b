"""A fold from a snapshot and the tail of the log is the fold from the beginning, at every number."""

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from tests.commits.processes import NAMES, SEAL, Installation, Process, bound, same_state
from tests.commits.scripts import Commits, play, script
from tests.commits.test_memory import Work
from tocsin import subjects
from tocsin.adapters.memory.archive import InMemoryProjections
from tocsin.domain import ids
from tocsin.domain.commit import LogHead
from tocsin.domain.events import Replayed, Shard, ShardsDefined, Trigger, UniqueRule
from tocsin.domain.log_events import NamedSnapshot, encode
from tocsin.engine import snapshots
from tocsin.engine.commit_loop import CommitLoop
from tocsin.engine.commit_writer import Chain, CommitWriter
from tocsin.engine.fold import Fold
from tocsin.engine.fresh_fold import load_fold
from tocsin.engine.snapshot_rows import FoldBuilder, FoldCopy, lines
from tocsin.engine.snapshots import Loaded, Snapshots
from tocsin.ports.commit_log import StoredBody
from tocsin.subjects import Bucket, Stream
from tocsin.testing import ManualClock


def rebuilt(fold: Fold, at: Any) -> Fold:  # noqa: ANN401 - a time
    builder = FoldBuilder(b"")
    for kind, line in lines(FoldCopy.of(fold)):
        builder.add(kind, line)
    built = builder.finish(at, fold.departures.needed_definitions)
    assert not len(built.journal)  # a refused commit takes nothing of it back
    return built


def assert_same(one: Fold, other: Fold) -> None:
    assert same_state(one, other)
    assert sorted(lines(FoldCopy.of(one))) == sorted(lines(FoldCopy.of(other)))
    for name in ("_holders", "_key_of"):
        assert getattr(one.departures, name) == getattr(other.departures, name)
    assert _waiting(one) == _waiting(other)


def _waiting(fold: Fold) -> list[tuple[int, str]]:
    """List the scopes that leave once all stages took them, without entries that a later event replaced."""
    ended = fold.departures._ended
    return sorted(entry for entry in ended if entry[1].startswith("cron.") or entry[0] == fold.numbers.get(entry[1]))


async def bodies(installation: Installation) -> list[StoredBody]:
    return list(installation.log._stored[0])


class Tail:
    """A reader that folds the messages of a log, from a fold on."""

    def __init__(self, fold: Fold | None = None, head: LogHead | None = None, stages: Sequence[str] = ()) -> None:
        clock = ManualClock()
        self.chain = Chain(SEAL, head or LogHead("k1"))
        writer = CommitWriter(Installation().log, 0, self.chain, clock)

        async def ignore(_: object) -> None:
            pass

        self.loop = CommitLoop(bound(stages), fold or Fold(), writer, clock, name="reader", on_effects=ignore)

    def read(self, *messages: StoredBody) -> None:
        self.loop.receive(messages)
        self.loop.fold_received()


async def played(seed: int, **layout: Any) -> Installation:  # noqa: ANN401
    engine = Commits(**layout)
    await play(script(seed), engine)
    await engine._runner.rest()
    return engine._installation


def check_every_number(messages: Sequence[StoredBody], chance: random.Random | None = None) -> None:
    """Fold from the beginning, and from a snapshot at each commit; with `chance`, follow only some of them to the end."""
    reader, tails = Tail(), list[Tail]()
    for message in messages:
        reader.read(message)
        copy = rebuilt(reader.loop.fold, reader.chain.head.at)
        assert_same(copy, reader.loop.fold)
        for tail in tails:
            tail.read(message)
        if chance is None or chance.random() < 0.1:
            tails.append(Tail(copy, reader.chain.head))
    for tail in tails:
        assert_same(tail.loop.fold, reader.loop.fold)
        assert tail.chain.head == reader.chain.head


@pytest.mark.parametrize("seed", range(40))
async def test_snapshot_at_every_number_of_a_script(seed: int) -> None:
    installation = await played(seed, groups=[NAMES] if seed % 2 else [[name] for name in NAMES], cut=seed % 3 == 0)
    check_every_number(await bodies(installation), random.Random(seed))  # noqa: S311


async def work_of_all_kinds() -> Work:
    """Each kind of state, and each reason for which an execution that is over stays."""
    work = Work()
    await work.installation.store(ShardsDefined(shards=(Shard(shard_id="a"), Shard(shard_id="b"))))
    await work.define("nightly", partition="all_shards", overlap_policy="enqueue", max_waiting=5)
    await work.trigger("nightly", "s1")
    await work.trigger("nightly", "s2")
    await work.define("queued", overlap_policy="enqueue", schedule="*/5 * * * * *", max_waiting=5)
    graph = {
        "dag": [{"name": "a", "function": "f"}, {"name": "b", "function": "f", "depends_on": ["a"]}],
        "dead_letter": True,
    }
    await work.define("graph", **graph)
    await work.trigger("graph", "g1")
    rule = UniqueRule(key="a" * 64, states=("completed",), period=3600)
    for number in range(3):
        await work.enqueue("ojs.mail", number, rule)
    reports = await work.claim()
    for report in reports:
        await work.report(report, fails=report.step == "b")
    for report in await work.claim():
        await work.report(report, fails=report.step == "b")
    [failed] = [scope for scope in await work.installation.by_scope() if scope.startswith("dead-letter.")]
    letter = failed.split(".")[2]
    again = ids.replay_id("graph", letter, 1, work.installation.clock.now())
    await work.installation.store(
        Replayed(job="graph", id=letter, number=1, execution_id=again, failed_only=True, ledger=2)
    )
    for seconds in (5, 5, 5):
        work.installation.clock.advance(seconds)
        await work.runner.run()
    waiting = [scope for scope, state in (await work.states()).items() if state.status == "planned"]
    await work.cancel(waiting[0].split(".")[1], waiting[0].split(".")[2])
    await work.cancel("queued", ids.trigger_id("queued", "unknown", work.installation.clock.now()))
    for number in range(18):  # executions of the first definition are open
        schedule = "*/5 * * * * *"
        await work.define("queued", overlap_policy="skip", schedule=schedule, input={"n": number})
    work.installation.clock.advance(10)
    await work.runner.run()
    await work.runner.rest()
    return work


async def test_snapshot_of_all_kinds_at_every_number() -> None:
    work = await work_of_all_kinds()
    kinds = {kind for kind, _ in lines(FoldCopy.of(work.fold))}
    assert kinds == {
        *("ledger", "definition", "execution", "rest", "lock", "unique", "dead-letter", "cron", "other"),
        *("position", "waiting", "known", "standing"),
    }
    check_every_number(await bodies(work.installation))


class Place:
    """A process that writes snapshots, and others that begin with them."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.projections = InMemoryProjections(work.installation.clock)
        self.snapshots = Snapshots(self.projections, b"")

    async def save(self, process: Process | None = None) -> LogHead:
        process = process or self.work.process
        await process.read_on()
        loop = process.loop

        async def name(named: NamedSnapshot) -> None:
            stored = loop.note("snapshots", named)
            await process.run()
            await stored

        copying = asyncio.ensure_future(loop.copy())
        await asyncio.sleep(0)
        await process.run()
        copy, head, start = await copying
        await self.snapshots.save(copy, head, start, name)
        return head

    async def loaded(self, stages: Sequence[str] = NAMES) -> tuple[Process, Loaded] | None:
        """Begin with the newest snapshot that is whole and named."""
        async for loaded in self.snapshots.candidates(frozenset(stages)):
            process = self.work.installation.process(stages, snapshot=loaded)
            tail = [body for body in await bodies(self.work.installation) if body.sequence > loaded.start.sequence]
            process.loop.receive(tail)
            process.loop.fold_received()
            if loaded.digest in process.loop.fold.snapshots:
                return process, loaded
        return None


async def test_process_begins_with_the_newest_snapshot() -> None:
    place = Place(await work_of_all_kinds())
    head = await place.save()
    work = place.work
    await work.trigger("queued", "after")
    found = await place.loaded()
    assert found is not None
    process, loaded = found
    assert loaded.head == head
    assert loaded.start.number <= head.number
    fresh = work.installation.process()
    await fresh.read_on()
    assert_same(process.fold, fresh.fold)
    await fresh.run()
    work.runner._processes = [process]
    await process.read_on()
    await work.finish()
    work.installation.clock.advance(60)
    await work.runner.run()
    await work.finish()
    await work.runner.rest()
    assert not [scope for scope, state in (await work.states()).items() if not state.is_over]


async def test_deadlines_of_a_snapshot_come() -> None:
    work = Work()
    await work.define("nightly", schedule="*/5 * * * * *", retry={"max_attempts": 2, "initial_delay": "3s"})
    await work.trigger("nightly", "t1")
    [report] = await work.claim()
    await work.report(msgspec.structs.replace(report, outcome="failed"))
    await work.runner.rest()
    place = Place(work)
    await place.save()
    found = await place.loaded()
    assert found is not None
    work.runner._processes = [found[0]]
    work.installation.clock.advance(3)
    await work.runner.run()
    [scope] = await work.states()
    assert (await work.kinds(scope))[-2:] == ["retry-scheduled", "dispatched"]
    work.installation.clock.advance(3)
    await work.runner.run()
    assert len(await work.states()) == 2


async def test_two_snapshots_stay() -> None:
    place = Place(await work_of_all_kinds())
    heads = []
    for number in range(5):
        await place.work.trigger("queued", f"n{number}")
        heads.append(await place.save())
    kept = [loaded.head async for loaded in place.snapshots.candidates()]
    assert kept[:2] == [heads[4], heads[3]]
    assert len(kept) <= 3


async def test_same_snapshot_twice_leaves_a_place_for_another() -> None:
    place = Place(await work_of_all_kinds())
    process = place.work.process
    await process.run()
    loop, copy, head = process.loop, FoldCopy.of(process.fold), process.chain.head

    async def name(named: NamedSnapshot) -> None:
        stored = loop.note("snapshots", named)
        await process.run()
        await stored

    for _ in range(2):
        await place.snapshots.save(copy, head, head, name)
    heads = [await place.save() for _ in range(3)]
    kept = [loaded.head async for loaded in place.snapshots.candidates()]
    assert kept[:2] == [heads[2], heads[1]]


@pytest.mark.parametrize("is_damaged", [False, True])
async def test_process_begins_where_earlier_commits_were_removed(is_damaged: bool) -> None:  # noqa: FBT001
    place = Place(await work_of_all_kinds())
    work, log = place.work, place.work.installation.log
    await place.save()
    assert await place.snapshots.removable_upto(work.fold.snapshots) == 0
    await work.trigger("queued", "between")
    await place.save()
    fresh = work.installation.process()
    await fresh.read_on()
    upto = await place.snapshots.removable_upto(work.fold.snapshots)
    await log.purge(0, upto=upto)
    assert 0 < upto < (await bodies(work.installation))[0].sequence
    if is_damaged:
        await damage(place, f"fold.{await newest_slot(place)}.head", lambda body: body[:-9])
    found = await place.loaded()
    assert found is not None
    assert_same(found[0].fold, fresh.fold)


async def damage(place: Place, key: str, change: Any) -> None:  # noqa: ANN401 - a function
    stored = await place.projections.get(Bucket.SNAPSHOTS, key)
    assert stored is not None
    await place.projections.put(Bucket.SNAPSHOTS, key, change(stored[0]))


async def newest_slot(place: Place) -> int:
    heads = await place.snapshots._heads()
    return max(heads, key=lambda entry: entry[1].log.number)[0]


@pytest.mark.parametrize("what", ["part", "lost part", "head", "lost head", "unknown format"])
async def test_damaged_snapshot_gives_way_to_the_older(what: str) -> None:
    place = Place(await work_of_all_kinds())
    older = await place.save()
    await place.work.trigger("queued", "between")
    newer = await place.save()
    slot = await newest_slot(place)
    found = await place.loaded()
    assert found is not None
    assert found[1].head == newer
    match what:
        case "part":
            await damage(place, f"fold.{slot}.0", lambda body: body.replace(b"2026", b"2027", 1))
        case "lost part":
            await place.projections.remove(Bucket.SNAPSHOTS, f"fold.{slot}.0")
        case "head":
            await damage(place, f"fold.{slot}.head", lambda body: body[:-10])
        case "lost head":
            await place.projections.remove(Bucket.SNAPSHOTS, f"fold.{slot}.head")
        case _:
            await damage(place, f"fold.{slot}.head", lambda body: body.replace(b'"format":1', b'"format":2'))
    found = await place.loaded()
    assert found is not None
    process, loaded = found
    assert loaded.head == older
    fresh = place.work.installation.process()
    await fresh.read_on()
    assert_same(process.fold, fresh.fold)


async def test_different_snapshot_is_refused() -> None:
    """Whole in itself, but no commit names it: a user who may write the bucket changed it."""
    place = Place(await work_of_all_kinds())
    older = await place.save()
    await place.work.trigger("queued", "between")
    newer = await place.save()
    other = await Place(place.work).loaded()
    assert other is None
    reader = Tail()
    messages = [body for body in await bodies(place.work.installation) if body.sequence <= newer.sequence]
    reader.read(*messages)
    fold = reader.loop.fold
    scope = next(scope for scope in fold.states if scope.startswith("execution.") and scope in fold.events)
    del fold.states[scope], fold.events[scope], fold.numbers[scope]

    async def unnamed(_: NamedSnapshot) -> None:
        pass

    slots = [place.snapshots]
    await slots[0].save(FoldCopy.of(fold), newer, newer, unnamed)
    newest = [loaded async for loaded in place.snapshots.candidates()]
    assert len(newest) == 3
    found = await place.loaded()
    assert found is not None
    assert found[1].head in {older, newer}
    assert scope in found[0].fold.states or await is_over(place.work, scope)


async def is_over(work: Work, scope: str) -> bool:
    return (await work.states())[scope].is_over


async def test_fold_of_shortened_log_reloads_from_a_snapshot() -> None:
    """The newest snapshot is damaged, and no commit names the next, so the oldest is used; without any there is no fold."""
    place = Place(await work_of_all_kinds())
    installation, process = place.work.installation, place.work.process
    head = await place.save()
    await place.work.trigger("queued", "after")
    wrong = FoldCopy.of(process.fold)
    del wrong.positions["planner", "REQUESTS"]

    async def unnamed(_: NamedSnapshot) -> None:
        pass

    await place.snapshots.save(wrong, process.chain.head, process.chain.head, unnamed)
    await place.work.trigger("queued", "then")
    await place.save()
    end = process.chain.head
    newest = max(await place.snapshots._heads(), key=lambda entry: entry[1].log.number)[0]
    assert [loaded.head.number async for loaded in place.snapshots.candidates()][-1] == head.number
    await place.projections.remove(Bucket.SNAPSHOTS, f"fold.{newest}.0")
    assert len([loaded async for loaded in place.snapshots.candidates()]) == 2
    await installation.log.purge(0, upto=head.sequence)

    async def load(snapshots: Snapshots | None) -> Fold | None:
        fold = Fold()
        fold.stages = process.fold.stages
        return await load_fold(installation.log, 0, SEAL, LogHead("k1"), end, fold, snapshots)

    found = await load(place.snapshots)
    assert found is not None
    assert_same(found, process.fold)
    assert await load(None) is None


async def test_snapshots_execution_stays_for_stage_that_took_nothing() -> None:
    """Another process was to lead the stage, and none did."""
    work = Work()
    process = work.process
    process.loop.agenda.led -= {"dead_letter_sink"}
    process.loop._leadership._stages = [name for name in NAMES if name != "dead_letter_sink"]
    await work.define("nightly", dead_letter=True)
    await work.trigger("nightly", "t1")
    await work.finish("main")
    await work.runner.rest()
    [scope] = await work.states()
    assert scope in process.fold.events
    place = Place(work)
    await place.save()
    found = await place.loaded()
    assert found is not None
    assert scope in found[0].fold.events
    await found[0].run()
    assert any(scope.startswith("dead-letter.nightly.") for scope in await work.installation.by_scope())


async def test_snapshot_of_a_forged_place_is_refused() -> None:
    place = Place(await work_of_all_kinds())
    head = await place.save()
    await place.work.trigger("queued", "after")
    fold = Tail().loop.fold

    async def forge(named: NamedSnapshot) -> None:
        event = encode(named, by="snapshots", cause="@")
        forged = SEAL.write(
            msgspec.structs.replace(head, digest="0" * 64), writer="w", at=head.at, taken={}, events=[event]
        )
        await place.work.installation.log.receive(0, forged.body)

    forged = msgspec.structs.replace(head, digest="0" * 64, number=head.number + 1)
    await place.snapshots.save(FoldCopy.of(fold), forged, forged, forge)
    found = await place.loaded()
    assert found is not None
    assert found[1].head == head


async def test_unwritten_snapshot_is_not_named() -> None:
    """A process dies while it writes: the older snapshot is used, and the next is written in the same place."""
    place = Place(await work_of_all_kinds())
    head = await place.save()
    await place.work.trigger("queued", "after")

    async def dies(named: NamedSnapshot) -> None:
        raise ConnectionError(named.digest)

    for _ in range(3):
        reader = Tail()
        reader.read(*await bodies(place.work.installation))
        copy, at = FoldCopy.of(reader.loop.fold), reader.chain.head
        with pytest.raises(ConnectionError):
            await place.snapshots.save(copy, at, at, dies)
        await place.work.trigger("queued", f"then{at.number}")
        found = await place.loaded()
        assert found is not None
        assert found[1].head == head


async def test_lagging_stage_gets_events_from_before_the_snapshot() -> None:
    """A stage in a process of its own was down while others went on; its events lie before the snapshot's place."""
    work = Work(tuple(name for name in NAMES if name != "dead_letter_sink"), ("dead_letter_sink",))
    await work.define("nightly", dead_letter=True)
    await work.trigger("nightly", "t0")
    await work.finish()
    await work.runner.rest()
    first, sink = sorted(work.runner._processes, key=lambda process: "planner" not in process.fold.stages)
    work.runner._processes = [first]
    for number in range(5):
        await work.trigger("nightly", f"t{number + 1}")
        await work.finish(*(["main"] if number < 3 else []))
    await work.runner.rest()
    place = Place(work)
    head = await place.save(first)
    found = await place.loaded(["dead_letter_sink"])
    assert found is not None
    process, loaded = found
    assert loaded.start.number < head.number
    work.runner._processes = [first, process]
    await work.runner.run()
    letters = [scope for scope in await work.installation.by_scope() if scope.startswith("dead-letter.")]
    assert len(letters) == 3
    del sink


async def test_ids_of_requests_are_known_after_a_snapshot() -> None:
    work = Work()
    await work.define("nightly")
    await work.trigger("nightly", "m", idempotency_key="k")
    await work.finish()
    await work.runner.rest()
    place = Place(work)
    await place.save()
    found = await place.loaded()
    assert found is not None
    process, _ = found
    work.runner._processes = [process]
    before = len(await work.states())
    await work.trigger("nightly", "m2", idempotency_key="k")
    assert len(await work.states()) == before == 1


async def test_row_beyond_a_message_is_stored_in_parts() -> None:
    place = Place(await work_of_all_kinds())
    fold = place.work.process.fold
    for number in range(60_000):
        fold.departures.ids[0].add("program", f"m-{number}", place.work.process.chain.head.at)
    await place.save()
    stored = await place.projections.entries(Bucket.SNAPSHOTS, "fold.>")
    assert max(len(body) for body in stored.values()) <= snapshots.PIECE_BYTES
    found = await place.loaded()
    assert found is not None
    assert_same(found[0].fold, fold)


async def test_input_that_waits_is_decided_after_a_snapshot() -> None:
    work = Work()
    await work.define("nightly")
    id_ = ids.trigger_id("nightly", "x", work.installation.clock.now())
    await work.cancel("nightly", id_)
    place = Place(work)
    await place.save()
    found = await place.loaded()
    assert found is not None
    process, _ = found
    work.runner._processes = [process]
    await process.read_on()
    work.installation.publish(Stream.REQUESTS, Trigger(), subjects.trigger("nightly", id_), id_)
    await work.runner.run()
    assert (await work.states())[subjects.execution("nightly", id_)].status == "cancelled"
