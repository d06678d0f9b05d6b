"""A registration reads other jobs only if its namespace grows, and lets other tasks run."""

import asyncio
from collections.abc import Sequence

import pytest

from tocsin.domain import ledger
from tocsin.domain.definition import JobDefinition
from tocsin.domain.events import Namespace
from tocsin.services.jobs import Registry
from tocsin.services.jobs.job import Change, Job
from tocsin.services.jobs.quotas import YIELD_EVERY, check_quotas
from tocsin.services.namespaces import Namespaces
from tocsin.testing import InMemoryEventLog, InMemoryProjections, ManualClock

CLOCK = ManualClock()


def job(name: str, schedule: str | None = "@daily", **fields: object) -> JobDefinition:
    given = {"name": name, "function": "f", "queue": f"{name[0]}.q", "schedule": schedule, **fields}
    return JobDefinition.model_validate(given)


@pytest.mark.parametrize(
    ("definition", "is_listed"),
    [
        (job("a.x", "@hourly"), False),
        (job("a.x", "@hourly", timeout="5s"), False),
        (job("a.x", "@daily"), False),
        (job("a.new", None), False),
        (job("a.x", "* * * * *"), True),
        (job("a.new", "@daily"), True),
        (job("b.x", "* * * * *"), False),
        (job("b.new", None), True),
        (job("c.new", "* * * * *"), False),
    ],
)
async def test_registration_that_adds_nothing_reads_nothing(definition: JobDefinition, *, is_listed: bool) -> None:
    log, projections = InMemoryEventLog(CLOCK), InMemoryProjections(CLOCK)
    await Registry(log, projections, CLOCK).apply([job("a.x", "@hourly"), job("a.y"), job("b.x")])
    quotas = [Namespace(name="a", executions_per_day=2_000), Namespace(name="b", max_jobs=5), Namespace(name="c")]
    await Namespaces(log).apply(quotas)
    planning, defining = (Registry(log, projections, CLOCK) for _ in range(2))
    await planning.plan([definition])
    await defining.define(definition)
    assert [registry.last_listed("a.y") is not None for registry in (planning, defining)] == [is_listed, is_listed]


@pytest.mark.parametrize(("growing", "turns"), [("few", 0), ("many", 5)])
async def test_count_lets_other_tasks_run(growing: str, turns: int) -> None:
    names = [*(f"few.{number}" for number in range(9)), *(f"many.{number}" for number in range(5 * YIELD_EVERY))]
    jobs = [Job(job(name), CLOCK.now(), 1, ledger.initial) for name in sorted(names)]
    counted = 0

    async def listed() -> Sequence[Job]:
        return jobs

    async def count_turns() -> None:
        nonlocal counted
        while True:
            await asyncio.sleep(0)
            counted += 1

    declared = [Namespace(name=name, executions_per_day=2_000) for name in ("few", "many")]
    changes = [Change("create", job(f"{growing}.new"))]
    async with asyncio.TaskGroup() as tasks:
        other = tasks.create_task(count_turns())
        await asyncio.sleep(0)  # the other task begins
        await check_quotas(declared, changes, listed, CLOCK.now())
        other.cancel()
    assert counted == turns
