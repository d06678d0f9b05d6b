"""Statements while other writers change the same job."""

from typing_extensions import override

from tocsin.domain.definition import JobDefinition
from tocsin.domain.events import Defined
from tocsin.domain.statements import read_statements
from tocsin.services.jobs import Check, Job, Registry
from tocsin.services.statements import Rights, StatementRunner
from tocsin.settings import Settings
from tocsin.testing import InMemoryEventLog, InMemoryProjections, ManualClock

BEFORE = JobDefinition.model_validate({"name": "job", "function": "f"})


class Interrupted(Rights):
    """Lets another writer change the job between the decision and the change."""

    def __init__(self, registry: Registry, times: int) -> None:
        self.registry = registry
        self.left = times

    @override
    async def define(self, definition: JobDefinition, before: Job | None) -> Check:
        if self.left:
            self.left -= 1
            await self.registry.define(BEFORE.model_copy(update={"tags": (f"{self.left}",)}))
        return await super().define(definition, before)


async def test_alter_keeps_the_change_of_another_writer() -> None:
    clock = ManualClock()
    log = InMemoryEventLog(clock)
    registry = Registry(log, InMemoryProjections(clock), clock)
    await registry.define(BEFORE)
    runner = StatementRunner(registry, log, clock, Settings(), rights=Interrupted(registry, 2))
    [statement] = read_statements("ALTER JOB job SET TIMEOUT = 5")
    assert (await runner.run(statement)).changed
    facts = [fact.message for fact in await log.read("ledger.>")]
    assert all(isinstance(fact, Defined) for fact in facts)
    after = (await registry.job("job")).definition
    assert (after.tags, after.timeout) == (("0",), 5)


async def test_created_jobs_get_the_default_time_zone() -> None:
    clock = ManualClock()
    log = InMemoryEventLog(clock)
    registry = Registry(log, InMemoryProjections(clock), clock)
    settings = Settings.model_validate({"execution": {"default_timezone": "Europe/Prague"}})
    runner = StatementRunner(registry, log, clock, settings)
    text = "CREATE JOB a SCHEDULE = '0 3 * * *' FUNCTION 'f'; CREATE JOB b SCHEDULE = '0 3 * * *' TIMEZONE = 'UTC' FUNCTION 'f'"
    for statement in read_statements(text):
        await runner.run(statement)
    zones = [(await registry.job(name)).definition.timezone for name in ("a", "b")]
    assert zones == ["Europe/Prague", "UTC"]
