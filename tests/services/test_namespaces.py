"""Namespaces are versions in one scope, and a plan says what they take over."""

import pytest

from tocsin.domain.definition import DefinitionError, JobDefinition
from tocsin.domain.events import Actor, Namespace, NamespacesDefined
from tocsin.domain.namespaces import WrongNamespaces
from tocsin.services.jobs import Registry
from tocsin.services.namespaces import NamespaceMap, Namespaces, changes
from tocsin.testing import InMemoryEventLog, InMemoryProjections, ManualClock

A, B = Namespace(name="a"), Namespace(name="b", description="of B")


def job(name: str, queue: str) -> JobDefinition:
    return JobDefinition.model_validate({"name": name, "function": "f", "queue": queue})


async def test_declarations_are_versions_of_one_scope() -> None:
    known = Namespaces(log := InMemoryEventLog())
    assert await known.newest() == NamespaceMap(0, ())
    assert not await known.apply([])
    assert await known.apply([B, A], by=Actor(identity="ada"), reason="r")
    assert not await known.apply([A, B])
    newest = await known.newest()
    assert newest.namespaces == (A, B)
    assert await known.apply([A])
    stored = [r.message for r in await log.read("namespaces.>") if isinstance(r.message, NamespacesDefined)]
    assert [fact.previous for fact in stored] == [0, newest.version]


async def test_wrong_name_stores_nothing() -> None:
    known = Namespaces(log := InMemoryEventLog())
    with pytest.raises(WrongNamespaces):
        await known.apply([A, Namespace(name="B")])
    assert await log.read("namespaces.>") == []


def test_plan_counts_what_a_namespace_takes_over() -> None:
    jobs = [job("a.x", "a.q"), job("a.y", "default"), job("z", "a.r"), job("b.x", "b.q"), job("c", "default")]
    declared, changed = changes([B], [A, Namespace(name="b")], jobs)
    assert (declared.name, declared.action, declared.jobs, declared.queues) == ("a", "declare", 2, ("a.q", "a.r"))
    assert declared.crossing == ("a.y", "z")
    assert (changed.name, changed.action, changed.crossing) == ("b", "change", ())
    [removed] = changes([A], [], jobs)
    assert (removed.action, removed.jobs, removed.crossing) == ("remove", 2, ())


async def test_door_refuses_references_across_namespaces() -> None:
    clock = ManualClock()
    log = InMemoryEventLog(clock)
    registry = Registry(log, InMemoryProjections(clock), clock)
    await registry.define(job("a.y", "default"))
    await Namespaces(log).apply([A])
    for definition in (job("a.y", "default"), job("a.x", "default"), job("x", "a.q")):
        with pytest.raises(DefinitionError) as refused:
            await registry.define(definition)
        assert [problem.code for problem in refused.value.problems] == ["crosses-namespace"]
        with pytest.raises(DefinitionError):
            await registry.plan([definition])
    await registry.define(job("a.x", "a.q"))
    await registry.define(job("x", "default"))


async def test_jobs_beyond_the_quota_are_refused() -> None:
    clock = ManualClock()
    log = InMemoryEventLog(clock)
    registry = Registry(log, InMemoryProjections(clock), clock)
    await Namespaces(log).apply([Namespace(name="a", max_jobs=2), B])
    await registry.apply([job("a.one", "a.q"), job("a.two", "a.q")])
    for refused_by in (registry.define(job("a.three", "a.q")), registry.plan([job("a.three", "a.q")])):
        with pytest.raises(DefinitionError) as refused:
            await refused_by
        [problem] = refused.value.problems
        assert (problem.code, problem.job) == ("too-many-jobs", "job `a.three`")
        assert "may have 2 jobs (max_jobs); it has 2" in problem.reason
    assert await registry.define(job("a.one", "a.r")) == "update"
    await registry.define(job("b.x", "b.q"))
    await registry.define(job("c", "default"))
    await registry.delete("a.two")
    await registry.define(job("a.three", "a.q"))


async def test_quota_counts_what_a_plan_deletes() -> None:
    clock = ManualClock()
    log = InMemoryEventLog(clock)
    registry = Registry(log, InMemoryProjections(clock), clock)
    owned = [job(f"a.{name}", "a.q").model_copy(update={"owner": "token:ci"}) for name in ("one", "two", "three")]
    await registry.apply(owned[:2])
    await Namespaces(log).apply([Namespace(name="a", max_jobs=1)])  # less than it has
    assert (await registry.plan(owned[:2])).of("unchanged")
    with pytest.raises(DefinitionError):
        await registry.plan([owned[2]])
    await registry.apply([owned[2]], prune=["token:ci"])
    assert [each.name for each in await registry.jobs()] == ["a.three"]


async def test_schedules_beyond_the_quota_are_refused() -> None:
    clock = ManualClock()
    log = InMemoryEventLog(clock)
    registry = Registry(log, InMemoryProjections(clock), clock)
    often, hourly = (
        job(f"a.{name}", "a.q").model_copy(update={"schedule": schedule, "owner": "token:ci"})
        for name, schedule in (("often", "* * * * *"), ("hourly", "@hourly"))
    )
    await registry.apply([often])
    await Namespaces(log).apply([Namespace(name="a", executions_per_day=100), B])
    assert (await registry.plan([often])).of("unchanged")
    assert await registry.define(often) == "unchanged"
    assert await registry.define(often.model_copy(update={"function": "g"})) == "update"
    for refused_by in (registry.define(hourly), registry.plan([hourly, often])):
        with pytest.raises(DefinitionError) as refused:
            await refused_by
        [problem] = refused.value.problems
        assert (problem.code, problem.job, problem.field) == ("schedule-above-quota", "job `a.hourly`", "schedule")
        assert "may begin 100 executions a day" in problem.reason
    await registry.pause("a.often")
    with pytest.raises(DefinitionError):
        await registry.define(hourly)
    await registry.resume("a.often")
    await registry.define(job("b.x", "b.q").model_copy(update={"schedule": "@every 1s"}))
    await registry.define(job("x", "q").model_copy(update={"schedule": "@every 1s"}))
    await registry.apply([hourly], prune=["token:ci"])
    assert [each.name for each in await registry.jobs()] == ["a.hourly", "b.x", "x"]
