"""The registry: applying, repeating a request, and concurrent changes by others."""

import asyncio
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from typing_extensions import override

from tocsin import subjects
from tocsin.domain import execution_plan
from tocsin.domain.definition import DefinitionError, JobDefinition
from tocsin.domain.definition_changes import DefinitionDiff
from tocsin.domain.events import Actor, Defined, Deleted, Due, Message, Paused, Recorded, Shard, ShardState, Trigger
from tocsin.domain.ledger import JobNotFound
from tocsin.ports import SequenceConflict
from tocsin.services.jobs import TRIES, Registry, quotas
from tocsin.services.shards import ShardMaps
from tocsin.testing import START, InMemoryEventLog, InMemoryProjections, ManualClock

ME = Actor(identity="me@here", source="test")


class World:
    def __init__(self, log: InMemoryEventLog | None = None) -> None:
        self.clock = ManualClock()
        self.log = log or InMemoryEventLog(self.clock)
        self.projections = InMemoryProjections(self.log.clock)
        self.registry = Registry(self.log, self.projections, self.log.clock)

    async def facts(self, job: str) -> list[Message]:
        return [recorded.message for recorded in await self.log.read(subjects.ledger(job))]


@pytest.fixture
def world() -> World:
    return World()


def job(name: str = "nightly", **fields: object) -> JobDefinition:
    return JobDefinition.model_validate({"name": name, "schedule": "0 3 * * *", "function": "f", **fields})


def dag(**timeouts: float) -> JobDefinition:
    steps = [{"name": name, "function": name, "timeout": timeout} for name, timeout in timeouts.items()]
    return JobDefinition.model_validate({"name": "nightly", "dag": steps})


async def test_new_job_is_created_with_its_actor(world: World) -> None:
    plan = await world.registry.apply([job("a"), job("b")], by=ME)
    assert [(change.verb, change.job) for change in plan.changes] == [("create", "a"), ("create", "b")]
    assert await world.facts("a") == [Defined(job="a", definition=job("a"), by=ME)]


async def test_applying_again_changes_nothing(world: World) -> None:
    await world.registry.apply([job()])
    plan = await world.registry.apply([job()])
    assert not plan.has_differences
    assert len(await world.facts("nightly")) == 1


@pytest.mark.parametrize(
    ("before", "after", "differences"),
    [
        (job(), job(schedule="0 4 * * *"), [DefinitionDiff("schedule", "0 3 * * *", "0 4 * * *")]),
        (job(), job(retry={"max_attempts": 5}), [DefinitionDiff("retry.max_attempts", 3, 5)]),
        (job(input={"a": {"b": 1}}), job(input={"a": {"b": 2}}), [DefinitionDiff("input.a.b", 1, 2)]),
        (job(input={"a": 1}), job(), [DefinitionDiff("input.a", 1, None)]),
        (job(tags=["x"]), job(tags=["x", "y"]), [DefinitionDiff("tags", ["x"], ["x", "y"])]),
        (dag(one=1, two=2), dag(zero=0.5, one=1, two=3), None),
    ],
)
async def test_update_lists_each_changed_field(
    before: JobDefinition, after: JobDefinition, differences: list[DefinitionDiff] | None, world: World
) -> None:
    await world.registry.apply([before])
    (change,) = (await world.registry.apply([after])).changes
    assert change.verb == "update"
    if differences is None:  # steps are compared by name, wherever they stand
        assert [one.field for one in change.differences] == ["dag.two.timeout", "dag.zero"]
    else:
        assert list(change.differences) == differences
    assert (await world.registry.job("nightly")).definition == after


async def test_an_update_leaves_a_paused_job_paused(world: World) -> None:
    await world.registry.apply([job()])
    await world.registry.pause("nightly")
    await world.registry.apply([job(schedule="0 4 * * *")])
    assert (await world.registry.job("nightly")).ledger.is_paused


async def test_a_dry_run_stores_nothing(world: World) -> None:
    plan = await world.registry.apply([job()], dry_run=True)
    assert plan.has_differences
    assert await world.facts("nightly") == []


async def test_pruning_deletes_only_missing_jobs_of_the_owner(world: World) -> None:
    await world.registry.apply(
        [job("kept", owner="us"), job("gone", owner="us"), job("theirs", owner="them"), job("free")]
    )
    plan = await world.registry.apply([job("kept", owner="us")], prune={"us"})
    assert [(change.verb, change.job) for change in plan.changes] == [("unchanged", "kept"), ("delete", "gone")]
    assert [one.name for one in await world.registry.jobs()] == ["free", "kept", "theirs"]


async def test_job_moved_to_another_owner_is_not_deleted(world: World) -> None:
    await world.registry.apply([job("moved", owner="us")])
    plan = await world.registry.plan([job("kept", owner="us")], prune={"us"})
    await world.registry.apply([job("moved", owner="them")])
    await world.registry.carry_out(plan)
    assert (await world.registry.job("moved")).definition.owner == "them"


async def test_a_deleted_job_can_be_registered_again(world: World) -> None:
    await world.registry.apply([job()])
    await world.registry.delete("nightly")
    plan = await world.registry.apply([job()])
    assert [change.verb for change in plan.changes] == ["create"]
    assert (await world.registry.job("nightly")).sequence == 3


async def test_pausing_is_recorded_once_with_who_and_why(world: World) -> None:
    await world.registry.apply([job()])
    assert await world.registry.pause("nightly", by=ME, reason="maintenance")
    assert not await world.registry.pause("nightly")
    assert (await world.facts("nightly"))[1:] == [
        Paused(job="nightly", definition=1, previous=1, by=ME, reason="maintenance")
    ]
    assert await world.registry.resume("nightly")
    assert not await world.registry.resume("nightly")


async def test_a_deleted_job_is_not_there_any_more(world: World) -> None:
    await world.registry.apply([job()])
    await world.registry.delete("nightly", by=ME)
    assert isinstance((await world.facts("nightly"))[-1], Deleted)
    assert await world.registry.jobs() == ()
    with pytest.raises(JobNotFound):
        await world.registry.job("nightly")


@pytest.mark.parametrize("verb", ["job", "pause", "resume", "delete", "trigger"])
async def test_a_job_that_does_not_exist_is_refused(verb: str, world: World) -> None:
    with pytest.raises(JobNotFound) as refused:
        await getattr(world.registry, verb)("nope")
    assert refused.value.job == "nope"


class Contested(InMemoryEventLog):
    """A log in which another writer wins a number of times."""

    others = 0

    @override
    async def append(self, fact: Message, *, expect: int) -> int:
        if self.others:
            self.others -= 1
            raise SequenceConflict
        return await super().append(fact, expect=expect)


async def test_change_is_decided_again_after_a_conflict() -> None:
    log = Contested(ManualClock())
    world = World(log)
    log.others = TRIES - 1
    await world.registry.apply([job()])
    assert len(await world.facts("nightly")) == 1


async def test_constantly_changing_ledger_ends_in_a_conflict() -> None:
    log = Contested(ManualClock())
    log.others = TRIES
    with pytest.raises(SequenceConflict, match=r"'nightly'.* 5 tries"):
        await World(log).registry.apply([job()])


async def test_changes_at_once_are_all_stored(world: World) -> None:
    await world.registry.apply([job()])
    await asyncio.gather(
        world.registry.pause("nightly"), world.registry.apply([job(timeout=60)]), world.registry.pause("nightly")
    )
    assert len(await world.facts("nightly")) == 3
    assert (await world.registry.job("nightly")).ledger.is_paused


async def stored_trigger(world: World) -> Recorded[Trigger]:
    stored = await world.log.get("trigger.>", 1)
    assert stored is not None
    assert isinstance(stored.message, Trigger)
    return Recorded(stored.message, stored.subject, stored.sequence, stored.time, stored.message_id)


async def test_trigger_returns_the_planners_execution_id(world: World) -> None:
    await world.registry.apply([job(input={"a": 1})])
    execution_id = await world.registry.trigger("nightly", {"b": 2}, by=ME, reason="now")
    trigger = await stored_trigger(world)
    assert trigger.message == Trigger(trigger="manual", input={"b": 2}, by=ME, reason="now")
    assert execution_plan.execution_id_of(trigger, "nightly") == execution_id
    assert trigger.message_id


@pytest.mark.parametrize(
    ("kind", "right", "wrong"),
    [
        ("date", "2026-11-26", "2026-02-30"),
        ("date-time", "2026-11-26T10:00:00+01:00", "nope"),
        ("date-time", "2026-11-26T10:00", "2026-11-26T25:00"),
        ("time", "10:00:00", "25:00:00"),
        ("duration", "PT5S", "soon"),
        ("uuid", "0198f2d0-6c3a-7c3a-8c3a-6c3a6c3a6c3a", "0198"),
        ("email", "no address", None),
    ],
)
async def test_formats_are_checked_at_the_door(world: World, kind: str, right: str, wrong: str | None) -> None:
    schema = {"properties": {"value": {"anyOf": [{"type": "string", "format": kind}, {"type": "null"}]}}}
    await world.registry.apply([job(input_schema=schema)])
    assert await world.registry.trigger("nightly", {"value": right})
    if wrong is not None:
        with pytest.raises(DefinitionError, match=r"input\.value"):
            await world.registry.trigger("nightly", {"value": wrong})


async def test_reference_to_a_secret_is_of_every_format(world: World) -> None:
    schema = {"properties": {"tenant": {"type": "string", "format": "uuid"}}}
    await world.registry.apply([job(input={"tenant": "${env:TENANT_ID}"}, input_schema=schema)])
    assert await world.registry.trigger("nightly")
    assert await world.registry.trigger("nightly", {"tenant": "0198f2d0-6c3a-7c3a-8c3a-6c3a6c3a6c3a"})
    for text, reason in (
        ("${env:OTHER}", "only a definition may refer to a secret"),
        ("${env:}", "malformed reference"),
        ("$${env:TENANT_ID}", r"input\.tenant"),
    ):
        with pytest.raises(DefinitionError, match=reason):
            await world.registry.trigger("nightly", {"tenant": text})


async def test_invalid_input_is_refused_at_the_door(world: World) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    await world.registry.apply([job(input={"n": 1}, input_schema=schema)])
    with pytest.raises(DefinitionError, match=r"input\.n"):
        await world.registry.trigger("nightly", {"n": "many"})
    assert await world.log.last(subjects.trigger("nightly", subjects.ANY)) is None
    await world.registry.trigger("nightly")  # its own input fits


@pytest.mark.parametrize(
    ("fields", "status"),
    [({}, "active"), ({"enabled": False}, "disabled"), ({"schedule": None}, "on demand")],
)
async def test_job_reports_whether_it_fires(fields: dict[str, Any], status: str, world: World) -> None:
    await world.registry.apply([job(**fields)])
    found = await world.registry.job("nightly")
    assert found.status == status
    assert (found.next_fire_time(START) is not None) == (status == "active")
    await world.registry.pause("nightly")
    assert (await world.registry.job("nightly")).status == "paused"


async def test_no_jobs_are_no_jobs(world: World) -> None:
    assert await world.registry.jobs() == ()


async def test_past_single_instant_is_refused() -> None:
    world = World()
    now = world.log.clock.now()
    past = JobDefinition(name="once", function="f", schedule=f"at {now:%Y-%m-%dT%H:%M:%SZ}")
    daily = JobDefinition(name="daily", function="f", schedule="@daily")
    for register in (world.registry.define(past), world.registry.apply([daily, past])):
        with pytest.raises(DefinitionError) as refused:
            await register
        [problem] = refused.value.problems
        assert (problem.code, problem.field, problem.job) == ("in-the-past", "schedule", "job `once`")
    assert await world.facts("daily") == []


async def test_past_job_may_be_registered_again() -> None:
    world = World()
    at = world.clock.now() + timedelta(minutes=1)
    once = JobDefinition(name="once", function="f", schedule=f"@at {at:%Y-%m-%dT%H:%M:%SZ}")
    assert await world.registry.define(once) == "create"
    world.clock.advance(120)
    assert await world.registry.define(once) == "unchanged"
    assert await world.registry.define(once.model_copy(update={"description": "kept"})) == "update"
    assert (await world.registry.job("once")).status == "disabled"


async def fire_and_drop(world: World, job: str, at: datetime) -> None:
    """Append what the ticker appends at the last instant of a job that is dropped then."""
    sequence = await world.log.tail(subjects.ledger(job))
    await world.log.append(Due(job=job, scheduled_time=at, definition=sequence), expect=sequence)
    await world.registry.delete(job)


async def test_dropped_job_may_stay_in_its_file(world: World) -> None:
    at = world.clock.now() + timedelta(minutes=1)
    schedules = [f"@at {at:%Y-%m-%dT%H:%M:%SZ}", f"* * * * * until {at:%Y-%m-%dT%H:%M:%SZ}"]
    ending = [job(f"once-{n}", schedule=text, on_completion="drop") for n, text in enumerate(schedules)]
    await world.registry.apply(ending)
    world.clock.advance(61)
    for definition in ending:
        await fire_and_drop(world, definition.name, at)

    plan = await world.registry.apply([*ending, job("other")])

    assert [(change.verb, change.is_done) for change in plan.changes] == [
        ("unchanged", True),
        ("unchanged", True),
        ("create", False),
    ]
    assert not plan.changes[0].effects(world.clock.now(), timedelta(days=1)).added
    with pytest.raises(JobNotFound):
        await world.registry.job("once-0")
    for other in (ending[0].model_copy(update={"on_completion": "preserve"}), job("new", schedule=schedules[0])):
        with pytest.raises(DefinitionError, match="it is past"):
            await world.registry.apply([other])


async def test_dropped_job_returns_with_a_later_time(world: World) -> None:
    at = world.clock.now() + timedelta(minutes=1)
    once = job("once", schedule=f"@at {at:%Y-%m-%dT%H:%M:%SZ}", on_completion="drop")
    await world.registry.apply([once])
    world.clock.advance(61)
    await fire_and_drop(world, "once", at)
    later = once.model_copy(update={"schedule": "@at 2090-01-01T00:00:00Z"})
    plan = await world.registry.apply([later])
    assert [change.verb for change in plan.changes] == ["create"]
    assert (await world.registry.job("once")).definition == later


async def test_circle_of_jobs_is_refused_with_its_path(world: World) -> None:
    await world.registry.apply([job("a"), job("b", depends_on=["a"]), job("c", depends_on=["b"])])
    with pytest.raises(DefinitionError, match="in a circle: ") as caught:
        await world.registry.define(job("a", depends_on=["c"]))
    path = str(caught.value).rpartition("circle: ")[2].split(" → ")
    assert (path[0], set(path), len(path)) == (path[-1], {"`a`", "`b`", "`c`"}, 4)
    after = {"`a`": "`b`", "`b`": "`c`", "`c`": "`a`"}  # each before the job that depends on it
    assert all(after[one] == other for one, other in pairwise(path))
    assert [problem.code for problem in caught.value.problems] == ["dependency-cycle"]
    with pytest.raises(DefinitionError):
        await world.registry.apply([job("x", depends_on=["y"]), job("y", depends_on=["x"])])
    assert await world.facts("x") == []
    assert len(await world.facts("a")) == 1


async def test_definitions_of_one_plan_replace_the_stored(world: World) -> None:
    await world.registry.apply([job("a"), job("b", depends_on=["a"])])
    plan = await world.registry.apply([job("a", depends_on=["b"]), job("b")])
    assert [change.verb for change in plan.changes] == ["update", "update"]


async def test_plan_names_unknown_dependencies(world: World) -> None:
    await world.registry.apply([job("gone")])
    await world.registry.delete("gone")
    plan = await world.registry.apply([job("a", depends_on=["gone", "b"]), job("b")])
    [unknown] = plan.unknown
    assert str(unknown) == (
        "job `a` depends on job `gone`, which is not registered: its executions wait until it is and has run"
    )


@pytest.mark.parametrize("replicas", [1, 2])
async def test_quorum_needs_three_replicas(replicas: int) -> None:
    world = World(InMemoryEventLog(ManualClock(), replicas=replicas))
    needy = job(job_class="quorum-required")
    for register in (world.registry.define(needy), world.registry.apply([job("other"), needy])):
        with pytest.raises(DefinitionError) as caught:
            await register
        [problem] = caught.value.problems
        assert (problem.job, problem.field, problem.value, problem.code) == (
            "job `nightly`",
            "job_class",
            '"QUORUM_REQUIRED"',
            "too-few-replicas",
        )
        assert f"it has {replicas}" in problem.reason
    assert await world.registry.jobs() == ()


async def test_quorum_is_registered_on_three_replicas() -> None:
    world = World(InMemoryEventLog(ManualClock(), replicas=3))
    await world.registry.apply([job(job_class="QUORUM_REQUIRED")])
    assert await world.registry.define(job(job_class="quorum required")) == "unchanged"


COMMAND = ["df", "-k"]


SECRET = {"database": {"passwords": ["x", "${env:PASSWORD}"]}}
STEPS = [{"name": "a", "function": "f"}, {"name": "b", "function": "f", "queue": "mail"}]


@pytest.mark.parametrize(
    ("fields", "code", "where"),
    [
        ({"command": COMMAND, "queue": "mail"}, "no-builtin-worker", ("queue", None)),
        ({"queue": "mail", "dag": [{"name": "size", "command": COMMAND}]}, "no-builtin-worker", ("queue", "size")),
        (
            {"dag": [{"name": "a", "function": "f"}, {"name": "b", "command": COMMAND, "queue": "mail"}]},
            "no-builtin-worker",
            ("queue", "b"),
        ),
        ({"function": "f", "queue": "mail", "input": SECRET}, "secret-reference-not-allowed", ("input", None)),
        (
            {"function": "f", "queue": "mail", "input": {"key": "a ${file:/run/key} b"}},
            "secret-reference-not-allowed",
            ("input", None),
        ),
        (
            {"function": "f", "queue": "mail", "args": [1, "${env:PASSWORD}"]},
            "secret-reference-not-allowed",
            ("args", None),
        ),
        ({"input": SECRET, "dag": STEPS}, "secret-reference-not-allowed", ("input", "b")),
        ({"dag": [STEPS[0], {**STEPS[1], "input": SECRET}]}, "secret-reference-not-allowed", ("input", "b")),
        ({"dag": [STEPS[0], {**STEPS[1], "args": ["${env:PASSWORD}"]}]}, "secret-reference-not-allowed", ("args", "b")),
    ],
)
async def test_work_for_executors_outside_is_refused(
    world: World, fields: dict[str, Any], code: str, where: tuple[str, str | None]
) -> None:
    wanted = JobDefinition.model_validate({"name": "disk", **fields})
    registry = Registry(world.log, world.projections, world.log.clock, bridged=["mail"])
    with pytest.raises(DefinitionError, match="mail") as planned:
        await registry.plan([wanted])
    with pytest.raises(DefinitionError) as defined:
        await registry.define(wanted)
    [problem] = planned.value.problems
    assert (problem.code, problem.field, problem.step, problem.job) == (code, *where, "job `disk`")
    assert defined.value.problems == planned.value.problems
    assert await world.facts("disk") == []
    assert await world.registry.define(wanted) == "create"  # without such queues


async def test_input_of_executors_outside_may_have_a_literal(world: World) -> None:
    steps = [{**STEPS[0], "input": SECRET}, {**STEPS[1], "input": {"text": "$${env:PASSWORD}"}}]
    registry = Registry(world.log, world.projections, world.log.clock, bridged=["mail"])
    assert await registry.define(JobDefinition.model_validate({"name": "disk", "dag": steps})) == "create"


async def test_other_work_for_executors_outside_is_accepted(world: World) -> None:
    registry = Registry(world.log, world.projections, world.log.clock, bridged=["mail"])
    steps = [{"name": "a", "function": "f", "queue": "mail"}, {"name": "b", "command": COMMAND}]
    assert await registry.define(JobDefinition.model_validate({"name": "both", "dag": steps})) == "create"


@pytest.mark.parametrize(
    "fields", [{"queue": "mq"}, {"function": None, "dag": [{"name": "s", "function": "f", "queue": "mq"}]}]
)
async def test_leader_takes_no_tasks_of_executors_outside(fields: dict[str, Any]) -> None:
    log = InMemoryEventLog(ManualClock())
    registry = Registry(log, InMemoryProjections(log.clock), log.clock, bridged=("mq",))
    with pytest.raises(DefinitionError) as caught:
        await registry.apply([job(job_class="LEADER_ONLY", **fields)])
    [problem] = caught.value.problems
    assert (problem.job, problem.field, problem.code) == ("job `nightly`", "job_class", "exclusive-fields")
    assert await registry.define(job(job_class="LEADER_ONLY")) == "create"
    assert await registry.define(job("other", **fields)) == "create"


@pytest.mark.parametrize(
    ("shards", "partition", "reason"),
    [
        ({}, "all_shards", "no shard is active"),
        ({"a": "DISABLED"}, "all_shards", "no shard is active"),
        ({"a": "ACTIVE"}, {"single_shard": "b"}, "no shard b in the shard map (a)"),
        ({"a": "ACTIVE"}, {"shard_set": ["a", "c"]}, "no shard c in the shard map (a)"),
    ],
)
async def test_job_on_an_unknown_shard_is_refused(
    world: World, shards: dict[str, str], partition: object, reason: str
) -> None:
    await ShardMaps(world.log).apply(Shard(shard_id=name, state=ShardState(state)) for name, state in shards.items())
    with pytest.raises(DefinitionError) as refused:
        await world.registry.define(job(partition=partition))
    [problem] = refused.value.problems
    assert (problem.code, problem.field) == ("unknown-shard", "partition")
    assert reason in problem.reason


async def test_dependency_on_several_runs_is_refused(world: World) -> None:
    await ShardMaps(world.log).apply([Shard(shard_id="a"), Shard(shard_id="b")])
    await world.registry.define(job("divided", partition="all_shards"))
    await world.registry.define(job("single", partition={"single_shard": "a"}))
    await world.registry.define(job("after-single", depends_on=["single"]))
    for definition in (job("after", depends_on=["divided"]), job("single", partition="all_shards")):
        with pytest.raises(DefinitionError) as refused:
            await world.registry.define(definition)
        assert [problem.code for problem in refused.value.problems] == ["not-supported"]
        with pytest.raises(DefinitionError):
            await world.registry.plan([definition])


async def test_divided_job_may_depend_on_others(world: World) -> None:
    await ShardMaps(world.log).apply([Shard(shard_id="a")])
    await world.registry.apply([job("load"), job("divided", partition="all_shards", depends_on=["load"])])


@pytest.mark.parametrize(
    "fields",
    [
        {"partition": "all_shards", "job_class": "LEADER_ONLY"},
        {"partition": {"shard_key": "input.customer"}},
        {"partition": {"shard_key": "customer"}, "schedule": None},
    ],
)
def test_wrong_partition_is_no_definition(fields: dict[str, Any]) -> None:
    with pytest.raises((DefinitionError, ValueError)):
        job(**fields)


@pytest.mark.parametrize("most", [0, 1_000])
async def test_list_follows_every_change(world: World, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr(quotas, "MAX_CHANGED", most)
    registry = world.registry
    await registry.apply([job("b"), job("d")])
    before = {known.name: known for known in await registry.jobs()}
    await registry.apply([job("a"), job("c"), job("e")])
    await registry.pause("d")
    await registry.delete("b")
    listed = await registry.jobs()
    assert [(known.name, known.status) for known in listed] == [
        *(("a", "active"), ("c", "active"), ("d", "paused"), ("e", "active")),
    ]
    assert [registry.last_listed(name) for name in "abcde"] == [listed[0], None, *listed[1:]]
    await registry.define(job("b"))
    again = await registry.jobs()
    assert [known.name for known in again] == ["a", "b", "c", "d", "e"]
    assert all(new is old for new, old in zip([again[0], *again[2:]], listed, strict=True))
    assert again[1] is not before["b"]
    assert await registry.jobs() is again


async def test_calls_at_once_share_a_list(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quotas, "MAX_CHANGED", 0)
    monkeypatch.setattr(quotas, "YIELD_EVERY", 1)
    await world.registry.apply([job("a"), job("b")])
    first, second = await asyncio.gather(world.registry.jobs(), world.registry.jobs())
    assert first is second
