"""Jobs with a partition: one execution on each shard, begun once."""

from datetime import datetime, timedelta

import pytest

from tests.domain.given import NOON
from tests.stages.world import World
from tests.stored_events import StoredEvents
from tocsin import subjects
from tocsin.domain import execution_plan, ids
from tocsin.domain.definition import JobDefinition
from tocsin.domain.events import (
    Acquired,
    Admitted,
    Cancelled,
    Completed,
    CronAnswer,
    CronSkipped,
    CronTriggered,
    DeadLettered,
    Deleted,
    Dispatched,
    Due,
    Failure,
    FannedOut,
    PoisonMessage,
    Queued,
    Replayed,
    Shard,
    ShardsDefined,
    ShardState,
    Skipped,
    Terminal,
    Trigger,
)
from tocsin.domain.execution import Status
from tocsin.domain.fan_out import fanned_out, on_each_shard
from tocsin.services.operations.execution_requests import cancel
from tocsin.services.operations.lookup import ExecutionMatch, read_fan_out
from tocsin.stages.dag_advancer.stage import FIRST_WAIT, PATIENCE

IDS = tuple(f"s{number:02}" for number in range(16))
ROOT = ids.occurrence_id("nightly", NOON)


def job(**more: object) -> dict[str, object]:
    return {"name": "nightly", "schedule": "0 * * * *", "function": "f", "partition": "all_shards", **more}


async def shards(world: World, *shard_ids: str, drained: tuple[str, ...] = ()) -> int:
    """Store a shard map; return its version."""
    states = {shard_id: ShardState.DRAINING if shard_id in drained else ShardState.ACTIVE for shard_id in shard_ids}
    await world.given(ShardsDefined(shards=tuple(Shard(shard_id=name, state=state) for name, state in states.items())))
    return (await world.log.load(subjects.shard_map()))[-1].sequence


async def due(world: World, definition: int, version: int, at: datetime = NOON) -> None:
    await world.given(Due(job="nightly", scheduled_time=at, definition=definition, shards=version))
    await world.run(world.planner)


async def begun(world: World) -> dict[str, str]:
    """The execution of each shard."""
    admitted = await world.stored(Admitted)
    assert len({a.execution_id for a in admitted}) == len(admitted)
    return {a.plan.shard or "": a.execution_id for a in admitted}


@pytest.mark.parametrize("policy", ["skip", "allow"])
async def test_each_shard_has_an_execution(world: World, policy: str) -> None:
    version = await shards(world, *IDS)
    await due(world, await world.define(job(overlap_policy=policy)), version)
    [fanned] = await world.stored(FannedOut)
    assert (fanned.execution_id, fanned.shards, fanned.map) == (ROOT, IDS, version)
    assert await begun(world) == {shard: ids.shard_execution_id(ROOT, shard) for shard in IDS}
    tasks = await world.stored(Dispatched)
    assert sorted((task.shard, task.execution_id) for task in tasks) == sorted(
        (shard, ids.shard_execution_id(ROOT, shard)) for shard in IDS
    )
    locks = [event.shard for event in await world.stored(Acquired)]
    assert sorted(filter(None, locks)) == ([] if policy == "allow" else list(IDS))
    told = await world.stored(CronTriggered)
    assert sorted(event.data.shard or "" for event in told) == list(IDS)
    assert [event.data.run_count for event in told] == list(range(1, 17))
    assert {a.plan.occurrence for a in await world.stored(Admitted)} == {ROOT}


@pytest.mark.parametrize("policy", ["skip", "allow"])
async def test_redelivery_after_another_map_changes_nothing(world: World, policy: str) -> None:
    version = await shards(world, "a", "b")
    await due(world, await world.define(job(overlap_policy=policy)), version)
    await shards(world, "a", "b", "c")
    size = await world.size()
    await world.redeliver(world.planner)
    assert await world.size() == size
    assert (await begun(world)).keys() == {"a", "b"}


async def test_due_goes_by_the_map_that_it_names(world: World) -> None:
    old = await shards(world, "a", "b")
    await shards(world, "c")
    await due(world, await world.define(job()), old)
    assert (await begun(world)).keys() == {"a", "b"}


async def test_inactive_shards_do_not_run(world: World) -> None:
    version = await shards(world, "a", "b", "c", drained=("b",))
    await due(world, await world.define(job(partition={"shard_set": ["a", "b"]})), version)
    assert (await begun(world)).keys() == {"a"}


@pytest.mark.parametrize(
    "partition", ["all_shards", {"single_shard": "b"}, {"shard_set": ["b"]}, {"shard_key": "input.customer"}]
)
async def test_occurrence_without_an_active_shard_is_skipped(world: World, partition: object) -> None:
    version = await shards(world, "b", drained=("b",))
    await due(world, await world.define(job(partition=partition, input={"customer": 7})), version)
    [skipped] = await world.stored(Skipped)
    assert (skipped.execution_id, skipped.reason) == (ROOT, "no_shard")
    assert [event.data.reason for event in await world.stored(CronSkipped)] == ["no_shard"]
    assert await begun(world) == {}
    await shards(world, "b")
    await world.redeliver(world.planner)
    assert await begun(world) == {}


async def test_trigger_without_an_active_shard_is_answered(world: World) -> None:
    await world.define(job(schedule=None, overlap_policy="skip"))
    await world.trigger("nightly")
    await world.run(world.planner)
    assert [event.data.code for event in await world.stored(CronAnswer)] == ["no_shard"]


@pytest.mark.parametrize("partition", [{"single_shard": "b"}, {"shard_key": "input.customer"}])
async def test_single_execution_keeps_its_id(world: World, partition: object) -> None:
    version = await shards(world, "a", "b")
    await due(world, await world.define(job(partition=partition, input={"customer": 7})), version)
    [admitted] = await world.stored(Admitted)
    assert admitted.execution_id == ROOT
    assert admitted.plan.shard in {"a", "b"}
    assert await world.stored(FannedOut) == []


@pytest.mark.parametrize("partition", ["all_shards", {"shard_key": "input.customer"}])
@pytest.mark.parametrize("policy", ["enqueue", "allow"])
async def test_trigger_keeps_its_first_shards(world: World, partition: object, policy: str) -> None:
    await shards(world, "a", "b")
    await world.define(job(schedule=None, partition=partition, overlap_policy=policy))
    await world.trigger("nightly", input={"customer": 7})
    await world.run(world.planner, world.lock_keeper)
    before = await begun(world)
    await shards(world, "c", "d")
    await world.redeliver(world.planner, world.lock_keeper)
    assert await begun(world) == before
    assert before.keys() <= {"a", "b"}


async def test_interrupted_fan_out_outlives_its_job(world: World) -> None:
    await shards(world, "a", "b")
    definition = await world.define(job(schedule=None, overlap_policy="allow"))
    await world.trigger("nightly")
    [stored] = await world.recorded(Trigger)
    root = execution_plan.execution_id_of(stored, "nightly")
    fact = FannedOut(
        job="nightly",
        execution_id=root,
        scheduled_time=stored.time,
        trigger="manual",
        definition=definition,
        map=1,
        shards=("a", "b"),
    )
    await world.given(fact)
    await world.given(Deleted(job="nightly", previous=definition))
    await world.run(world.planner)
    assert (await begun(world)).keys() == {"a", "b"}


async def test_trigger_without_the_key_is_refused(world: World) -> None:
    await shards(world, "a", "b")
    await world.define(job(schedule=None, partition={"shard_key": "input.customer"}))
    await world.trigger("nightly", input={"other": 1})
    await world.run(world.planner)
    [letter] = await world.stored(PoisonMessage)
    assert letter.code == "invalid-definition"
    assert await begun(world) == {}


async def test_shards_have_locks_of_their_own(world: World) -> None:
    """A shard that is still at work makes its next execution wait, and no other."""
    version = await shards(world, "a", "b")
    definition = await world.define(job(overlap_policy="enqueue"))
    await due(world, definition, version)
    first = {a.plan.shard: a for a in await world.stored(Admitted)}
    await world.given(ended(first["a"]))
    await due(world, definition, version, NOON + timedelta(hours=1))
    await world.run(world.lock_keeper)
    later = [a for a in await world.stored(Admitted) if a.scheduled_time > NOON]
    assert [a.plan.shard for a in later] == ["a"]
    assert [q.shard for q in await world.stored(Queued)] == ["b"]
    await world.given(ended(first["b"]))
    await world.run(world.lock_keeper)
    later = [a for a in await world.stored(Admitted) if a.scheduled_time > NOON]
    assert [a.plan.shard for a in later] == ["a", "b"]
    assert len(await world.stored(CronTriggered)) == 4


async def test_skips_of_shards_are_announced_apart(world: World) -> None:
    version = await shards(world, "a", "b")
    definition = await world.define(job(overlap_policy="skip"))
    await due(world, definition, version)
    await due(world, definition, version, NOON + timedelta(hours=1))
    await world.run(world.lock_keeper)
    await world.redeliver(world.planner, world.lock_keeper)
    assert sorted(event.data.shard or "" for event in await world.stored(CronSkipped)) == ["a", "b"]


async def test_cancel_previous_cancels_on_the_same_shard(world: World) -> None:
    version = await shards(world, "a", "b")
    definition = await world.define(job(overlap_policy="cancel_previous"))
    await due(world, definition, version)
    await due(world, definition, version, NOON + timedelta(hours=1))
    await world.run(world.lock_keeper)
    assert sorted((end.shard or "", end.scheduled_time) for end in await world.stored(Terminal)) == [
        ("a", NOON),
        ("b", NOON),
    ]
    assert len(await world.stored(Admitted)) == 4


async def test_cancel_request_names_an_occurrence(world: World) -> None:
    """Cancel the open executions, in as many writes as they need."""
    names = tuple(f"s{number:03}" for number in range(100))
    version = await shards(world, *names)
    await due(world, await world.define(job()), version)
    [first, *rest] = await world.stored(Admitted)
    await world.given(ended(first))
    await world.ask_to_cancel("nightly", ROOT, reason="wrong day")
    await world.run(world.dag_advancer)
    cancelled = await world.stored(Cancelled)
    assert {(end.execution_id, end.shard, end.reason) for end in cancelled} == {
        (execution.execution_id, execution.plan.shard, "wrong day") for execution in rest
    }
    size = await world.size()
    await world.redeliver(world.dag_advancer)
    assert (await world.size(), await world.stored(PoisonMessage)) == (size, [])


async def interrupted(world: World, begun: int) -> None:
    """An occurrence fans out over 100 shards, of which some have begun; the planner has not taken it yet."""
    names = tuple(f"s{number:03}" for number in range(100))
    version = await shards(world, *names)
    definition = JobDefinition.model_validate(job(overlap_policy="allow"))
    number = await world.define(job(overlap_policy="allow"))
    await world.run(world.planner)
    world.clock.advance(2)
    await world.run(world.planner)  # now the log says how far it is
    due = Due(job="nightly", scheduled_time=NOON, definition=number, shards=version)
    first = execution_plan.from_due(due, definition)
    executions = (on_each_shard(first, name) for name in names[:begun])
    await world.given(due, fanned_out(first, version, names), *executions)


@pytest.mark.parametrize("is_direct", [False, True])
@pytest.mark.parametrize("before", [0, 64])
async def test_cancel_during_a_fan_out_cancels_every_shard(world: World, before: int, *, is_direct: bool) -> None:
    """Of a hundred shards, none or some have begun when the request comes; nothing is left to run."""
    await interrupted(world, before)
    begun_before = await begun(world)
    assert len(await world.stored(FannedOut)) == 1
    if is_direct:
        cancellation = await cancel(world.log, ROOT, job="nightly", reason="wrong day")
        assert (cancellation.status, cancellation.changed) == (Status.CANCELLED, True)
        again = await cancel(world.log, ROOT, job="nightly", reason="wrong day")
        assert (again.status, again.changed) == (Status.FANNED_OUT, False)
    else:
        await world.ask_to_cancel("nightly", ROOT, reason="wrong day")
    await world.run(world.dag_advancer)
    assert len(await world.stored(Cancelled)) == len(begun_before)
    await world.run(world.planner)
    world.clock.advance(FIRST_WAIT.total_seconds())
    await world.run(world.dag_advancer)
    ends = {end.execution_id: end.reason for end in await world.stored(Cancelled)}
    assert ends == dict.fromkeys((await begun(world)).values(), "wrong day")
    assert len(ends) == 100
    everything = ExecutionMatch("nightly", ROOT, tuple(await world.log.load(subjects.execution("nightly", ROOT))))
    parent = await read_fan_out(world.log, everything)
    assert parent is not None
    assert (parent.status, parent.counts) == ("cancelled", {"cancelled": 100})
    assert await world.stored(PoisonMessage) == []
    report = (await StoredEvents.of(world.log)).audited()
    assert [wrong for wrong in report.violations if wrong.entity.endswith(" of nightly")] == []


@pytest.mark.parametrize("is_public", [False, True])
async def test_cancel_of_a_stuck_fan_out_is_refused(world: World, *, is_public: bool) -> None:
    """The planner never begins the shards that are left."""
    await interrupted(world, 64)
    if is_public:
        world.log.receive(f"public.cancel.nightly.{ROOT}", b"", message_id="cancel")
    else:
        await world.ask_to_cancel("nightly", ROOT)
    await world.run(world.dag_advancer)
    assert len(await world.stored(Cancelled)) == len(await begun(world)) > 0
    world.clock.advance(PATIENCE.total_seconds() - 1)
    await world.run(world.dag_advancer)
    assert await world.stored(PoisonMessage) == []
    world.clock.advance(1)
    await world.run(world.dag_advancer)
    [letter] = await world.stored(PoisonMessage)
    assert (letter.job, letter.code) == ("nightly", "not-found")


async def test_public_cancel_names_an_occurrence(world: World) -> None:
    await due(world, await world.define(job()), await shards(world, "a", "b"))
    world.log.receive(f"public.cancel.nightly.{ROOT}", b"", message_id="cancel")
    await world.run(world.dag_advancer)
    assert {end.shard for end in await world.stored(Cancelled)} == {"a", "b"}


async def test_replay_runs_on_the_shard_of_the_failure(world: World) -> None:
    await shards(world, "a", "b")
    definition = await world.define(job())
    letter = DeadLettered(
        job="nightly",
        id="old",
        execution_id="old",
        scheduled_time=NOON,
        trigger="cron",
        attempts=(),
        last_error=Failure(type="E"),
        first_attempt=NOON,
        last_attempt=NOON,
        definition=definition,
        shard="b",
    )
    await world.given(letter, Replayed(job="nightly", id="old", number=1, ledger=definition))
    await world.run(world.planner)
    assert (await begun(world)).keys() == {"b"}
    assert await world.stored(FannedOut) == []


async def test_thousand_shards_begin_once_each(world: World) -> None:
    names = tuple(f"s{number:04}" for number in range(1_000))
    version = await shards(world, *names)
    await due(world, await world.define(job()), version)
    assert len(await begun(world)) == len(await world.stored(CronTriggered)) == 1_000


def ended(admitted: Admitted) -> Completed:
    return Completed(
        job=admitted.job,
        execution_id=admitted.execution_id,
        scheduled_time=admitted.scheduled_time,
        trigger=admitted.trigger,
        fence=admitted.fence,
        shard=admitted.plan.shard,
    )
