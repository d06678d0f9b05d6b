"""Daily quotas of namespaces: executions are counted before they begin, and one beyond a quota is skipped."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import NoReturn

import msgspec
import pytest

from tests.domain.given import NOON, recorded
from tests.stages.world import World
from tocsin import subjects
from tocsin.adapters.sql import open_history
from tocsin.domain import ids
from tocsin.domain.definition import JobDefinition
from tocsin.domain.events import (
    Admitted,
    Completed,
    CronAnswer,
    CronSkipped,
    Due,
    Enqueued,
    FannedOut,
    Namespace,
    Shard,
    ShardsDefined,
    Skipped,
    UniqueRule,
    validated,
)
from tocsin.ports import EntryWrite, NotAllowed, Written
from tocsin.services.explain.reader import ExplainReader
from tocsin.services.namespaces import Namespaces, use_of
from tocsin.stages.recorder.later_bytes import LaterBytesCounter
from tocsin.stages.recorder.stage import Recorder
from tocsin.subjects import Bucket, Stream
from tocsin.testing import InMemoryStoredLog

JOB = "payments.mail"


async def declare(world: World, **quotas: int) -> None:
    world.clock.advance(2)
    await Namespaces(world.log).apply([validated(Namespace, {"name": "payments", **quotas}), Namespace(name="billing")])


async def define(world: World, name: str = JOB, **more: object) -> int:
    fields = {"name": name, "function": "f", "queue": name.split(".", maxsplit=1)[0] + ".q", "overlap_policy": "allow"}
    return await world.define({**fields, **more})


async def trigger(world: World, *keys: str, job: str = JOB) -> None:
    for key in keys:
        await world.trigger(job, key, input={"text": "x" * 100})
    await world.run(world.planner)


async def used(world: World, namespace: str = "payments") -> tuple[int, int] | None:
    entry = await world.projections.get(Bucket.QUEUES, subjects.daily_use_key(namespace))
    if entry is None:
        return None
    stored = msgspec.json.decode(entry[0])
    return stored["executions"], stored["bytes"]


async def test_trigger_beyond_the_quota_is_skipped(world: World) -> None:
    await define(world)
    await define(world, "billing.mail")
    await declare(world, executions_per_day=2)
    await trigger(world, "a", "b", "c")
    await trigger(world, "d", job="billing.mail")
    started = await world.stored(Admitted)
    assert [event.job for event in started] == [JOB, JOB, "billing.mail"]
    [skipped] = await world.stored(Skipped)
    assert (skipped.reason, skipped.job) == ("namespace_quota", JOB)
    assert [event.data.reason for event in await world.stored(CronSkipped)] == ["namespace_quota"]
    assert await used(world) == (2, 0)
    assert await used(world, "billing") is None


async def test_skipped_trigger_stores_no_input(world: World) -> None:
    """Triggers beyond a quota count for none, so the input must not be copied into the log."""
    await define(world, overlap_policy="enqueue")
    await declare(world, executions_per_day=1)
    await trigger(world, "a")
    await world.trigger(JOB, "b", input={"text": "x" * 30_000})
    await world.run(world.planner)
    stored = [event for kind in (Skipped, CronSkipped, CronAnswer) for event in await world.stored(kind)]
    assert [type(event) for event in stored] == [Skipped, CronSkipped, CronAnswer]
    everything = await world.log.read("execution.>", limit=10_000)
    others = [each.message for each in everything if not isinstance(each.message, Admitted)]
    assert sum(len(event.encode()) for event in (*others, *stored[1:])) < 1_500


async def test_skipped_trigger_of_a_locked_job_is_answered(world: World) -> None:
    await define(world, overlap_policy="enqueue")
    await declare(world, executions_per_day=1)
    await trigger(world, "a", "b")
    answers = [event.data for event in await world.stored(CronAnswer)]
    assert [(data.trigger_id, data.answer, data.code) for data in answers] == [("api.b", "refused", "namespace_quota")]


async def test_instant_beyond_the_quota_is_skipped(world: World) -> None:
    world.clock.advance((NOON - world.clock.now()).total_seconds() - 60)
    sequence = await define(world, schedule="0 * * * *")
    await declare(world, executions_per_day=1)
    world.clock.advance(60)
    for hours in range(3):
        await world.given(Due(job=JOB, scheduled_time=NOON + timedelta(hours=hours), definition=sequence))
        world.clock.advance(3_600)
    await world.run(world.planner)
    assert len(await world.stored(Admitted)) == 1
    skips = await world.stored(Skipped)
    assert [(event.reason, event.definition, event.cron_expression) for event in skips] == [
        ("namespace_quota", sequence, "0 * * * *")
    ] * 2
    explained = ExplainReader(world.log, InMemoryStoredLog(world.log))
    for hours, status, reason in ((0, "pending", None), (1, "skipped", "namespace_quota")):
        [answer] = await explained.why(JOB, NOON + timedelta(hours=hours))
        assert answer.outcome is not None
        assert (answer.outcome.status, answer.outcome.reason) == (status, reason)


async def test_redelivery_counts_nothing_twice(world: World) -> None:
    await define(world)
    await declare(world, executions_per_day=3)
    await trigger(world, "a", "b", "c", "d")
    size, before = await world.size(), await used(world)
    await world.redeliver(world.planner)
    await world.redeliver(world.planner, is_fresh=True)
    assert (await world.size(), await used(world)) == (size, before) == (size, (3, 0))


async def test_next_day_begins_at_nothing(world: World) -> None:
    await define(world)
    await declare(world, executions_per_day=1)
    await trigger(world, "a", "b")
    world.clock.advance(86_400)
    await trigger(world, "c", "d")
    assert len(await world.stored(Admitted)) == 2
    assert await used(world) == (1, 0)


async def test_raised_quota_counts_from_then_on(world: World) -> None:
    await define(world)
    await declare(world, executions_per_day=1)
    await trigger(world, "a", "b")
    await declare(world, executions_per_day=2)
    await trigger(world, "c", "d")
    assert len(await world.stored(Admitted)) == 2
    await declare(world)
    await trigger(world, "e", "f")
    assert len(await world.stored(Admitted)) == 4


async def test_bytes_of_a_day_are_limited(world: World) -> None:
    await define(world)
    await declare(world, bytes_per_day=2_000)
    await trigger(world, "a", "b", "c", "d", "e", "f")
    started = await world.stored(Admitted)
    executions, size = await used(world) or (0, 0)
    assert 0 < len(started) == executions < 6
    assert size <= 2_000 < size * (executions + 1) / executions
    assert {event.reason for event in await world.stored(Skipped)} == {"namespace_quota"}


def result(job: str, size: int) -> Completed:
    given = {"execution_id": ids.trigger_id(job, "a", NOON), "scheduled_time": NOON, "trigger": "api"}
    return validated(Completed, {"job": job, **given, "step": "main", "attempt": 1, "result": "x" * size})


async def test_results_of_the_day_count_too(world: World) -> None:
    await define(world)
    await define(world, "billing.mail")
    await declare(world, bytes_per_day=5_000)
    await trigger(world, "a")
    events = recorded([result(JOB, 4_000), result("billing.mail", 9_000)], world.clock.now())
    recorder = LaterBytesCounter(world.log, world.projections)
    for _ in range(2):  # a recorder that starts over counts nothing twice
        await recorder.count(events)
    use = await use_of(world.projections, "payments", world.clock.now())
    _, first = await used(world) or (0, 0)
    assert (use.executions, use.bytes) == (1, first + len(events[0].message.encode()))
    assert (await use_of(world.projections, "billing", world.clock.now())).bytes == 0
    await trigger(world, "b")
    await trigger(world, "c", job="billing.mail")
    assert [event.job for event in await world.stored(Admitted)] == [JOB, "billing.mail"]
    assert [event.reason for event in await world.stored(Skipped)] == ["namespace_quota"]
    world.clock.advance(86_400)
    await trigger(world, "d")
    assert len(await world.stored(Admitted)) == 3


async def test_first_events_count_once(world: World) -> None:
    await define(world)
    await declare(world, bytes_per_day=1_000_000)
    await trigger(world, "a")
    recorder = LaterBytesCounter(world.log, world.projections)
    await recorder.count(await world.log.read("execution.>"))
    entry = await world.projections.get(Bucket.QUEUES, subjects.later_bytes_key("payments"))
    assert entry is None


@pytest.mark.parametrize("denied", ["get", "put"])
async def test_history_goes_on_without_rights(
    denied: str, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The permissions of an earlier version deny the recorder to read the entry, and to write it."""

    async def deny(*_: object, **__: object) -> NoReturn:
        denials.append(denied)
        raise NotAllowed("this NATS user may not publish there")

    denials = list[str]()
    await define(world)
    await declare(world, bytes_per_day=5_000)
    await trigger(world, "a")
    await world.given(result(JOB, 100))
    monkeypatch.setattr(world.projections, denied, deny)
    counter = LaterBytesCounter(world.log, world.projections)
    past = InMemoryStoredLog(world.log)
    async with open_history(f"sqlite:///{tmp_path}/history.db") as history, asyncio.timeout(60):
        recorder = Recorder(world.log, history, world.clock, Stream.LOG, gathering=0, past=past, later_bytes=counter)
        await recorder.catch_up()
        assert await history.offset(Stream.LOG) == (await past.extent(Stream.LOG)).last
    assert denials


async def test_each_shard_counts(world: World) -> None:
    shards = tuple(Shard(shard_id=f"s{number}") for number in range(4))
    await world.given(ShardsDefined(shards=shards))
    await define(world, partition="all_shards")
    await declare(world, executions_per_day=7)
    await trigger(world, "a", "b")
    assert len(await world.stored(FannedOut)) == 1
    assert len(await world.stored(Admitted)) == 4
    assert await used(world) == (4, 0)
    assert [event.reason for event in await world.stored(Skipped)] == ["namespace_quota"]


async def test_accepted_push_runs_beyond_the_quota(world: World) -> None:
    await declare(world, executions_per_day=1)
    definition = JobDefinition(name="payments.ojs.mail", function="mail", queue="payments.q", overlap_policy="allow")
    for number in range(3):
        wish = Enqueued(execution_id=ids.trigger_id("payments.ojs.mail", str(number), NOON), definition=definition)
        await world.log.publish(subjects.subject_of(wish), wish, message_id=str(number))
    await world.run(world.planner)
    assert len(await world.stored(Admitted)) == 3
    assert await used(world) == (3, 0)


async def test_jobs_that_replace_others_begin_and_are_counted(world: World) -> None:
    """Each begins a wave later than without a quota, while the next has its key already."""
    await declare(world, executions_per_day=100)
    definition = JobDefinition(name="payments.ojs.mail", function="f", queue="payments.q", overlap_policy="allow")
    rule = UniqueRule(key="a" * 64, on_conflict="replace")
    for number in range(20):
        wish = Enqueued(execution_id=f"r{number}", definition=definition, unique=rule)
        await world.log.publish(subjects.subject_of(wish), wish, message_id=str(number))
    await world.run(world.planner)
    assert [begun.execution_id for begun in await world.stored(Admitted)] == [f"r{number}" for number in range(20)]
    assert (await world.stored(Skipped), await used(world)) == ([], (20, 0))


async def test_both_entries_are_read_at_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await define(world)
    await declare(world, bytes_per_day=1_000_000)
    both = {subjects.daily_use_key("payments"), subjects.later_bytes_key("payments")}
    reads = list[set[str]]()
    get_each = world.projections.get_each

    async def noted(bucket: Bucket, keys: Sequence[str]) -> list[tuple[bytes, int] | None]:
        reads.append(both.intersection(keys))
        return await get_each(bucket, keys)

    monkeypatch.setattr(world.projections, "get_each", noted)
    await trigger(world, "a")
    assert len(await world.stored(Admitted)) == 1
    assert {frozenset(found) for found in reads if found} == {frozenset(both)}


async def test_many_are_counted_by_few_writes(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await define(world)
    await declare(world, executions_per_day=150)
    writes = 0
    write = world.projections.write

    async def counting(bucket: Bucket, entries: Sequence[EntryWrite]) -> list[Written]:
        nonlocal writes
        writes += bucket is Bucket.QUEUES
        return await write(bucket, entries)

    monkeypatch.setattr(world.projections, "write", counting)
    await trigger(world, *map(str, range(200)))
    assert len(await world.stored(Admitted)) == 150
    assert writes <= 8
