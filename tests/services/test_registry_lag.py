"""Requests to the registry while a lagging replica answers."""

from collections.abc import Awaitable, Callable
from typing import Any, Final

import pytest

from tocsin import subjects
from tocsin.domain.definition import JobDefinition
from tocsin.domain.events import Defined, Message, Namespace, Paused, Resumed, Trigger
from tocsin.domain.ledger import JobNotFound
from tocsin.engine.ledger_reader import READ_AT_ONCE
from tocsin.ports import LaggingReplica, Loaded, LogUnavailable
from tocsin.services.jobs import Registry, registry
from tocsin.services.namespaces import Namespaces
from tocsin.testing import InMemoryEventLog, InMemoryProjections, ManualClock

HELLO: Final = JobDefinition(name="hello", function="greet")
SCOPE: Final = subjects.ledger("hello")


class LaggingLog(InMemoryEventLog):
    """A log whose replicas lack the newest event of a scope for some reads."""

    def __init__(self) -> None:
        super().__init__(ManualClock())
        self.lagging = SCOPE
        self.stale_reads = 0
        self.leader_reads = 0
        self.reads = 0
        self.has_short_pages = False

    async def load_each(self, *scopes: str, **options: Any) -> Loaded:  # noqa: ANN401 - passed on
        self.reads += 1
        if self.has_short_pages and len(scopes) > 1:
            raise LaggingReplica("a later page came from a replica that is behind")
        loaded = await super().load_each(*scopes, **options)
        if not self.stale_reads or self.lagging not in scopes:
            return loaded
        self.stale_reads -= 1
        facts = [(await self.read(scope))[:-1] for scope in scopes]
        return Loaded(facts, max((event.sequence for of_scope in facts for event in of_scope), default=0))

    async def tail(self, scope: str) -> int:
        self.leader_reads += 1
        return await super().tail(scope)


@pytest.fixture
def log() -> LaggingLog:
    return LaggingLog()


@pytest.fixture
def jobs(log: LaggingLog) -> Registry:
    return Registry(log, InMemoryProjections(log.clock), log.clock)


async def newest(log: LaggingLog) -> Message:
    return (await log.read(SCOPE))[-1].message


async def test_trigger_finds_a_job_that_replicas_lack(log: LaggingLog, jobs: Registry) -> None:
    await jobs.define(HELLO)
    log.stale_reads = 2
    await jobs.trigger("hello")
    assert [type(event.message) for event in await log.read(subjects.trigger("hello", subjects.ANY))] == [Trigger]


@pytest.mark.parametrize(
    ("change", "after"), [(Registry.pause, Paused), (Registry.delete, None)], ids=["pause", "delete"]
)
async def test_change_finds_a_job_that_replicas_lack(
    log: LaggingLog, jobs: Registry, change: Callable[[Registry, str], Awaitable[object]], after: type[Message] | None
) -> None:
    await jobs.define(HELLO)
    log.stale_reads = 2
    await change(jobs, "hello")
    if after is None:
        with pytest.raises(JobNotFound):
            await jobs.job("hello")
    else:
        assert isinstance(await newest(log), after)


async def test_lagging_replica_drops_no_switch(log: LaggingLog, jobs: Registry) -> None:
    await jobs.define(HELLO)
    await jobs.pause("hello")
    log.stale_reads = 1
    assert await jobs.resume("hello")
    assert isinstance(await newest(log), Resumed)


async def test_lagging_replica_drops_no_definition(log: LaggingLog, jobs: Registry) -> None:
    await jobs.define(HELLO)
    await jobs.define(HELLO.model_copy(update={"priority": 7}))
    log.stale_reads = 1
    assert await jobs.define(HELLO) == "update"
    fact = await newest(log)
    assert isinstance(fact, Defined)
    assert fact.definition == HELLO


async def test_lagging_replica_drops_no_applied_change(log: LaggingLog, jobs: Registry) -> None:
    other = HELLO.model_copy(update={"name": "other"})
    await jobs.apply([HELLO, other])
    await jobs.define(HELLO.model_copy(update={"priority": 7}))
    log.stale_reads = 1
    plan = await jobs.apply([other, HELLO])
    assert [(change.job, change.verb) for change in plan.changes] == [("other", "unchanged"), ("hello", "update")]
    fact = await newest(log)
    assert isinstance(fact, Defined)
    assert fact.definition == HELLO


async def test_plan_needs_no_long_reply_of_replicas(log: LaggingLog, jobs: Registry) -> None:
    other = HELLO.model_copy(update={"name": "other"})
    await jobs.apply([HELLO, other])
    log.has_short_pages = True
    plan = await jobs.plan([other.model_copy(update={"priority": 7}), HELLO])
    assert [(change.job, change.verb) for change in plan.changes] == [("other", "update"), ("hello", "unchanged")]


async def test_long_plan_ends_at_a_lagging_answer(log: LaggingLog, jobs: Registry) -> None:
    definitions = [HELLO.model_copy(update={"name": f"job-{number}"}) for number in range(READ_AT_ONCE + 1)]
    log.has_short_pages = True
    with pytest.raises(LaggingReplica):
        await jobs.plan(definitions)
    assert log.reads == 1


async def test_plan_knows_a_dependency_that_replicas_lack(log: LaggingLog, jobs: Registry) -> None:
    await jobs.define(HELLO)
    log.stale_reads = 1
    source = [{"job": "hello", "within": "6h"}]
    dependent = JobDefinition.model_validate({"name": "later", "function": "greet", "depends_on": source})
    assert (await jobs.plan([dependent])).unknown == ()


async def test_plan_of_unchanged_jobs_costs_few_reads(log: LaggingLog, jobs: Registry) -> None:
    definitions = [HELLO.model_copy(update={"name": f"job-{number}"}) for number in range(1_000)]
    await jobs.apply(definitions)
    log.reads = log.leader_reads = 0
    plan = await jobs.plan(definitions)
    assert len(plan.of("unchanged")) == len(definitions)
    assert log.reads < 10
    assert log.leader_reads < 10


async def test_quota_of_a_plan_knows_lagging_jobs(log: LaggingLog, jobs: Registry) -> None:
    job = HELLO.model_copy(update={"name": "team.hello", "queue": "team.q"})
    await Namespaces(log).apply([Namespace(name="team", max_jobs=1)])
    await jobs.define(job)
    log.lagging, log.stale_reads = subjects.ledger("team.hello"), 1
    assert (await jobs.plan([job.model_copy(update={"priority": 7})])).of("update")


async def test_quota_knows_a_job_that_replicas_lack(log: LaggingLog, jobs: Registry) -> None:
    job = HELLO.model_copy(update={"name": "team.hello", "queue": "team.q"})
    await Namespaces(log).apply([Namespace(name="team", max_jobs=1)])
    await jobs.define(job)
    log.lagging, log.stale_reads = subjects.ledger("team.hello"), 1
    assert await jobs.define(job.model_copy(update={"priority": 7})) == "update"


async def test_only_absence_costs_a_trigger_the_leader(log: LaggingLog, jobs: Registry) -> None:
    await jobs.define(HELLO)
    log.leader_reads = 0
    await jobs.job("hello")
    assert log.leader_reads == 0
    with pytest.raises(JobNotFound):
        await jobs.job("absent")
    assert log.leader_reads == 1


async def test_unreadable_job_is_not_called_absent(
    log: LaggingLog, jobs: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "ANSWER_PAUSES", (0.0, 0.0))
    await jobs.define(HELLO)
    log.stale_reads = 2
    with pytest.raises(LogUnavailable, match="cannot be read yet"):
        await jobs.trigger("hello")
