"""The definitions in force now, also where a replica lags."""

from typing import Any

import pytest

from tests.engine.test_kept_ledgers import definition
from tocsin.engine.ledger_reader import LedgerReader
from tocsin.ports import Loaded
from tocsin.services.jobs import Registry
from tocsin.testing import InMemoryEventLog, InMemoryProjections, ManualClock


class LaggingLog(InMemoryEventLog):
    """A log whose first answer to each read is as old as the test says."""

    def __init__(self) -> None:
        super().__init__(ManualClock())
        self.old_answers: list[Loaded] = []
        self.reads = 0

    async def load_each(self, *scopes: str, **options: Any) -> Loaded:  # noqa: ANN401 - passed on
        self.reads += 1
        return self.old_answers.pop() if self.old_answers else await super().load_each(*scopes, **options)


@pytest.fixture
def log() -> LaggingLog:
    return LaggingLog()


@pytest.fixture
def registry(log: LaggingLog) -> Registry:
    return Registry(log, InMemoryProjections(log.clock), log.clock)


async def test_jobs_are_read_together(log: LaggingLog, registry: Registry) -> None:
    await registry.apply([definition("a"), definition("b")])
    log.reads = 0
    in_force = await LedgerReader(log).in_force_now(["a", "b", "absent", "*"])
    assert {job: found and found[0].name for job, found in in_force.items()} == {
        "a": "a",
        "b": "b",
        "absent": None,
        "*": None,
    }
    assert log.reads == 1


async def test_definition_that_a_replica_lacks_counts(log: LaggingLog, registry: Registry) -> None:
    await registry.apply([definition("a"), definition("b")])
    old = await log.load_each("ledger.a.>", "ledger.b.>")
    await registry.define(definition("b", schedule="0 4 * * *"))
    log.old_answers = [old]
    in_force = await LedgerReader(log).in_force_now(["a", "b"])
    assert [found and found[0].schedule for found in in_force.values()] == ["0 3 * * *", "0 4 * * *"]


async def test_earlier_and_later_positions_have_their_definitions(log: LaggingLog, registry: Registry) -> None:
    await registry.apply([definition("a")])
    await registry.define(definition("a", schedule="0 4 * * *"))
    in_force = await LedgerReader(log).in_force_each([("a", 1), ("a", 2), ("a", None)])
    assert [found and found[0].schedule for found in in_force.values()] == ["0 3 * * *", "0 4 * * *", "0 4 * * *"]


async def test_job_that_a_replica_lacks_counts(log: LaggingLog, registry: Registry) -> None:
    await registry.apply([definition("a")])
    log.old_answers = [Loaded([[]], 0)]
    [found] = (await LedgerReader(log).in_force_now(["a"])).values()
    assert found is not None


async def test_same_definition_is_the_same_object(log: LaggingLog, registry: Registry) -> None:
    await registry.apply([definition("a")])
    reader = LedgerReader(log)
    first, second = [(await reader.in_force_now(["a"]))["a"] for _ in range(2)]
    assert first is not None
    assert second is not None
    assert first[0] is second[0]
    await registry.define(definition("a", schedule="0 4 * * *"))
    third = (await reader.in_force_now(["a"]))["a"]
    assert third is not None
    assert third[0].schedule == "0 4 * * *"
