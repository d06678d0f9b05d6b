"""Tickers that start from a snapshot of the ledgers: they decide as tickers that folded every event."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final
from unittest.mock import AsyncMock

import pytest
from structlog.testing import capture_logs

from tests.stages.test_ticker import candidate
from tests.stages.world import World
from tocsin import subjects
from tocsin.adapters.system_clock import SystemClock
from tocsin.domain.events import Deleted, Due, Message, Shard, ShardsDefined
from tocsin.engine import ledger_snapshot
from tocsin.engine.ledger_reader import FACTS
from tocsin.engine.ledger_snapshot import HEAD, LedgerSnapshots, Policy
from tocsin.ports import Batch, LogUnavailable, SequenceConflict
from tocsin.stages.ticker import Ticker
from tocsin.subjects import Bucket, Stream
from tocsin.testing import settle

SMALL: Final = Policy(min_jobs=1, min_tail=2, max_tail=100, interval_s=0.0, part_bytes=200, pause_s=0.0)
"""Snapshots of a few jobs, with one or two in each part."""
JOBS: Final = 12
VERSION: Final = "1.0"


def job(number: int, **more: object) -> dict[str, Any]:
    return {"name": f"job-{number}", "schedule": "* * * * *", "function": "f", **more}


@asynccontextmanager
async def ticker(world: World, policy: Policy = SMALL) -> AsyncIterator[tuple[Ticker, LedgerSnapshots]]:
    """A ticker that leads and has the ledgers, and its snapshots."""
    leadership = candidate(world)
    await leadership.run_once()
    leadership._until = float("inf")
    snapshots = LedgerSnapshots(world.log, world.projections, SystemClock(), version=VERSION, policy=policy)
    started = Ticker(world.log, leadership, world.clock, None, snapshots)
    following = asyncio.create_task(started.follow())
    while not started._caught_up:
        assert not following.done() or following.result()
        await asyncio.sleep(0)
    yield started, snapshots
    following.cancel()


async def saved(ticker: Ticker, snapshots: LedgerSnapshots) -> bool:
    return await snapshots.save_if_due(ticker._ledgers, lambda: True)


async def tick(world: World, ticker: Ticker, seconds: float = 60) -> None:
    world.clock.advance(seconds)
    await settle()
    await ticker.run_once(world.clock.now())
    await settle()


async def entries(world: World) -> dict[str, bytes]:
    return await world.projections.entries(Bucket.SNAPSHOTS)


def kept(ticker: Ticker) -> dict[str, object]:
    return {name: ticker._ledgers[name] for name in ticker._ledgers}


async def registered(world: World, jobs: int = JOBS) -> None:
    for number in range(jobs):
        await world.define(job(number, timezone="Europe/Berlin" if number % 2 else "UTC"))


@pytest.fixture
async def snapshot(world: World) -> Any:  # noqa: ANN401 - the ledgers that the first ticker had
    """A stored snapshot of jobs that fired."""
    await registered(world)
    async with ticker(world) as (first, snapshots):
        await tick(world, first)
        assert await saved(first, snapshots)
        return kept(first)


@pytest.fixture
def followed(world: World, monkeypatch: pytest.MonkeyPatch) -> list[int | None]:
    """The sequences after which the ledgers were followed."""
    starts: list[int | None] = []
    follow = world.log.follow

    def counting(stream: Stream, *filters: str, after: int | None, **options: Any) -> AsyncIterator[Batch]:  # noqa: ANN401
        if FACTS[0] in filters:
            starts.append(after)
        return follow(stream, *filters, after=after, **options)

    monkeypatch.setattr(world.log, "follow", counting)
    return starts


async def test_doubtful_ledger_is_in_no_snapshot(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A foreign message may hide an event, and the ledger cannot be read."""
    await registered(world, 2)
    async with ticker(world) as (first, _):
        assert first._may_write_snapshot()
        with monkeypatch.context() as patch:
            patch.setattr(world.log, "load_each", AsyncMock(side_effect=LogUnavailable("away")))
            world.log.receive("ledger.job-0.defined", b"junk")
            await settle()
            assert not first._may_write_snapshot()
        await tick(world, first)
        assert first._may_write_snapshot()


async def test_restart_follows_only_later_events(
    world: World, snapshot: dict[str, object], followed: list[int | None]
) -> None:
    await world.define(job(0, schedule="*/5 * * * *"))
    await world.define(job(JOBS))
    async with ticker(world) as (second, _), ticker(world, Policy(min_jobs=1, max_tail=-100)) as (whole, _):
        assert followed == [2 * JOBS, None]
        assert kept(second) == kept(whole)
        assert {name: state for name, state in kept(second).items() if name in snapshot and name != "job-0"} == {
            name: state for name, state in snapshot.items() if name != "job-0"
        }
        before = len(await world.stored(Due))
        await tick(world, second)
    assert len(await world.stored(Due)) - before == JOBS


async def test_few_jobs_have_no_snapshot(world: World) -> None:
    await registered(world, 3)
    async with ticker(world, Policy(min_jobs=4)) as (first, snapshots):
        assert not await saved(first, snapshots)
    assert await entries(world) == {}


async def test_snapshot_is_written_again_after_enough_events(world: World) -> None:
    policy = Policy(min_jobs=1, min_tail=JOBS, interval_s=0.0, part_bytes=200, pause_s=0.0)
    await registered(world)
    async with ticker(world, policy) as (first, snapshots):
        assert await saved(first, snapshots)
        assert not await saved(first, snapshots)
        await world.define(job(0, schedule="1 * * * *"))
        await settle()
        assert not await saved(first, snapshots)
        await tick(world, first)
        assert await saved(first, snapshots)


async def test_snapshots_are_apart_by_the_interval(world: World) -> None:
    await registered(world)
    async with ticker(world, Policy(min_jobs=1, min_tail=1)) as (first, snapshots):
        assert await saved(first, snapshots)
        await tick(world, first)
        assert not await saved(first, snapshots)


async def test_bucket_holds_two_snapshots_at_most(world: World) -> None:
    await registered(world)
    async with ticker(world) as (first, snapshots):
        sizes = []
        for _ in range(5):
            await tick(world, first)
            assert await saved(first, snapshots)
            sizes.append(len(await entries(world)))
    parts = len(json.loads((await entries(world))[HEAD])["digests"])
    assert parts > 2
    assert sizes == [parts + 1, *[2 * parts + 1] * 4]


async def test_parts_of_a_larger_snapshot_are_removed(world: World, snapshot: dict[str, object]) -> None:
    del snapshot
    parts = len(json.loads((await entries(world))[HEAD])["digests"])
    for number in range(parts + 5):
        await world.projections.put(Bucket.SNAPSHOTS, f"b.{number}", b"left by a killed writer")
    async with ticker(world) as (second, snapshots):
        await tick(world, second)
        assert await saved(second, snapshots)
    assert len(await entries(world)) == 2 * parts + 1


async def test_ticker_that_does_not_lead_writes_nothing(world: World) -> None:
    await registered(world)
    async with ticker(world) as (first, snapshots):
        assert not await snapshots.save_if_due(first._ledgers, lambda: False)
        answers = iter([True, True])
        assert not await snapshots.save_if_due(first._ledgers, lambda: next(answers, False))
    assert HEAD not in await entries(world)


async def test_ledgers_may_change_while_they_are_written(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that are written later include more events than rows that are written earlier."""
    await registered(world)
    async with ticker(world) as (first, snapshots):
        await tick(world, first)
        put = world.projections.put

        async def changing(bucket: Bucket, key: str, value: bytes, **options: Any) -> int:  # noqa: ANN401
            if bucket is Bucket.SNAPSHOTS and key.endswith(".2"):
                await world.define(job(0, schedule="*/3 * * * *"))
                await world.define(job(JOBS))
                await tick(world, first)
            return await put(bucket, key, value, **options)

        monkeypatch.setattr(world.projections, "put", changing)
        assert await saved(first, snapshots)
        async with ticker(world) as (second, _):
            assert kept(second) == kept(first)
        await tick(world, first)
    fired = [(due.job, due.scheduled_time) for due in await world.stored(Due)]
    assert len(fired) == len(set(fired))


# --- snapshots that are not used ---------------------------------------------------------------------------------------


def changed(body: bytes, **fields: object) -> bytes:
    return json.dumps(json.loads(body) | fields).encode()


def newest(body: bytes, **fields: object) -> bytes:
    return changed(body, newest=json.loads(body)["newest"] | fields)


DAMAGED: Final[dict[str, tuple[str, Callable[[bytes], bytes]]]] = {
    "head is empty": (HEAD, lambda _: b""),
    "head is no JSON": (HEAD, lambda body: body[:-9]),
    "head nests deeply": (HEAD, lambda _: b"[" * 100_000),
    "head lacks fields": (HEAD, lambda _: b"{}"),
    "other format": (HEAD, lambda body: changed(body, format=json.loads(body)["format"] + "0")),
    "other version": (HEAD, lambda body: body.replace(VERSION.encode(), b"1.1")),
    "other number of jobs": (HEAD, lambda body: changed(body, jobs=JOBS + 1)),
    "fewer parts": (HEAD, lambda body: changed(body, digests=json.loads(body)["digests"][:-1])),
    "other side": (HEAD, lambda body: changed(body, side="b")),
    "ends beyond the ledger": (HEAD, lambda body: newest(body, sequence=1_000)),
    "ends before its ledgers": (HEAD, lambda body: newest(body, sequence=3, subject="ledger.job-2.defined")),
    "other newest event": (HEAD, lambda body: newest(body, subject="ledger.job-1.passed")),
    "other time": (HEAD, lambda body: newest(body, time="2020-01-01T00:00:00Z")),
    "part is truncated": ("a.1", lambda body: body[:-1]),
    "part is forged": ("a.1", lambda body: body.replace(b"job-", b"jab-")),
    "part is empty": ("a.0", lambda _: b""),
}


@pytest.mark.parametrize("damage", DAMAGED.values(), ids=DAMAGED)
async def test_damaged_snapshot_is_ignored(
    world: World,
    snapshot: dict[str, object],
    followed: list[int | None],
    damage: tuple[str, Callable[[bytes], bytes]],
) -> None:
    key, change = damage
    await world.projections.put(Bucket.SNAPSHOTS, key, change((await entries(world))[key]))
    with capture_logs() as lines:
        async with ticker(world) as (second, snapshots):
            assert kept(second) == snapshot
            assert await saved(second, snapshots)  # at once, and not after many events
    assert next(line["action"] for line in lines if line["action"].startswith("snapshot")) == "snapshot-ignored"
    assert followed == [None]
    async with ticker(world) as (third, _):
        assert kept(third) == snapshot
    assert followed[-1] is not None


async def test_missing_part_is_noticed(world: World, snapshot: dict[str, object], followed: list[int | None]) -> None:
    await world.projections.remove(Bucket.SNAPSHOTS, "a.1")
    async with ticker(world) as (second, _):
        assert kept(second) == snapshot
    assert followed == [None]


async def test_snapshot_of_another_stream_is_ignored(world: World, snapshot: dict[str, object]) -> None:
    """The streams were created again, and have the same sequences with other events."""
    del snapshot
    other = World()
    other.projections = world.projections
    other.clock.advance(1)
    for number in range(3 * JOBS):
        await other.define(job(number))
    async with ticker(other) as (second, _):
        assert set(kept(second)) == {f"job-{number}" for number in range(3 * JOBS)}
        assert all(second._ledgers[name][0].watermark is None for name in second._ledgers)


async def test_old_snapshot_is_ignored(world: World, snapshot: dict[str, object], followed: list[int | None]) -> None:
    del snapshot
    for minute in range(1, 20):
        await world.define(job(0, schedule=f"{minute} * * * *"))
    policy = Policy(min_jobs=1, max_tail=5)
    async with ticker(world, policy) as (second, _):
        assert len(kept(second)) == JOBS
    assert followed == [None]


async def test_unreachable_bucket_does_not_stop_a_ticker(
    world: World, snapshot: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unavailable(*_: object, **__: object) -> None:
        raise LogUnavailable("no bucket")

    monkeypatch.setattr(world.projections, "get", unavailable)
    leadership = candidate(world)
    snapshots = LedgerSnapshots(world.log, world.projections, SystemClock(), version=VERSION, policy=SMALL)
    second = Ticker(world.log, leadership, world.clock, None, snapshots)
    following = asyncio.create_task(second.follow())
    await settle()
    assert kept(second) == snapshot
    with pytest.raises(LogUnavailable):
        await saved(second, snapshots)
    following.cancel()


async def test_failed_write_is_logged_and_repeated(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await registered(world)
    monkeypatch.setattr(ledger_snapshot, "CHECK_INTERVAL_S", 0.0)
    put, failures = world.projections.put, iter([LogUnavailable("down")])

    async def failing(bucket: Bucket, key: str, value: bytes, **options: Any) -> int:  # noqa: ANN401
        if bucket is Bucket.SNAPSHOTS and (error := next(failures, None)):
            raise error
        return await put(bucket, key, value, **options)

    monkeypatch.setattr(world.projections, "put", failing)
    with capture_logs() as lines:
        async with ticker(world) as (first, _):
            keeping = asyncio.create_task(first.keep_snapshots())
            while HEAD not in await entries(world):
                assert not keeping.done()
                await asyncio.sleep(0)
            keeping.cancel()
    assert [line["action"] for line in lines if "snapshot" in line["action"]] == ["snapshot-failed", "snapshot-written"]


# --- writers that die or meet ------------------------------------------------------------------------------------------


class Death(BaseException):
    """The process dies."""


async def test_writer_may_die_at_every_point(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between any two changes of the bucket a ticker dies; the next ticker has every ledger, and writes a snapshot."""
    await registered(world)
    put, remove = world.projections.put, world.projections.remove
    left: int | None = None

    def count() -> None:
        nonlocal left
        if left is not None:
            left -= 1
            if left < 0:
                raise Death

    async def mortal_put(bucket: Bucket, key: str, value: bytes, **options: Any) -> int:  # noqa: ANN401
        if bucket is Bucket.SNAPSHOTS:
            count()
        return await put(bucket, key, value, **options)

    async def mortal_remove(bucket: Bucket, key: str, **options: Any) -> None:  # noqa: ANN401
        count()
        await remove(bucket, key, **options)

    monkeypatch.setattr(world.projections, "put", mortal_put)
    monkeypatch.setattr(world.projections, "remove", mortal_remove)
    survived = False
    for point in range(100):
        await put(Bucket.SNAPSHOTS, "a.90", b"left over") if point % 2 else None
        left = point
        async with ticker(world) as (dying, snapshots):
            await tick(world, dying)
            try:
                survived = await saved(dying, snapshots)
            except Death:
                survived = False
            expected = kept(dying)
        left = None
        async with ticker(world) as (next_one, _):
            assert kept(next_one) == expected
        if survived:
            break
    assert survived
    assert point > 3
    fired = [(due.job, due.scheduled_time) for due in await world.stored(Due)]
    assert len(fired) == len(set(fired)) == JOBS * (point + 1)


async def test_second_writer_is_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ticker that still believes to lead cannot make its parts count."""
    await registered(world)
    async with ticker(world) as (old, old_snapshots), ticker(world) as (new, new_snapshots):
        put = world.projections.put
        has_met = False

        async def meeting(bucket: Bucket, key: str, value: bytes, **options: Any) -> int:  # noqa: ANN401
            nonlocal has_met
            if bucket is Bucket.SNAPSHOTS and key == HEAD and not has_met:
                has_met = True
                assert await saved(new, new_snapshots)
            return await put(bucket, key, value, **options)

        monkeypatch.setattr(world.projections, "put", meeting)
        with pytest.raises(SequenceConflict):
            await saved(old, old_snapshots)
    assert has_met
    async with ticker(world) as (third, _):
        assert kept(third) == kept(new)


async def test_deleted_job_stays_deleted(world: World, followed: list[int | None]) -> None:
    await registered(world)
    facts: list[Message] = [Deleted(job="job-3", previous=4)]
    await world.given(*facts)
    async with ticker(world) as (first, snapshots):
        assert await saved(first, snapshots)
    async with ticker(world) as (second, _):
        assert second._ledgers["job-3"][0].timetable is None
        await tick(world, second)
    assert followed[-1] == JOBS + 1
    assert "job-3" not in {due.job for due in await world.stored(Due)}


async def test_due_names_the_map_before_a_snapshot(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await world.given(ShardsDefined(shards=(Shard(shard_id="a"),)))
    version = (await world.log.load(subjects.shard_map()))[-1].sequence
    for number in range(JOBS):
        await world.define(job(number, partition="all_shards"))
    async with ticker(world) as (first, snapshots):
        await tick(world, first)
        assert await saved(first, snapshots)
    with monkeypatch.context() as patch:
        patch.setattr(world.log, "load", AsyncMock(side_effect=LogUnavailable("away")))
        async with ticker(world) as (second, _):
            await tick(world, second)
    assert [due.shards for due in await world.stored(Due)] == [version] * 2 * JOBS
