"""The ledgers of all jobs, kept between reads, are those of a new reader."""

import asyncio
from typing import Any

import pytest

from tocsin.domain import ledger
from tocsin.domain.definition import JobDefinition
from tocsin.engine import ledger_reader
from tocsin.engine.ledger_reader import LedgerReader, complete
from tocsin.services.jobs import Registry
from tocsin.testing import InMemoryEventLog, InMemoryProjections, ManualClock


def definition(name: str, **fields: Any) -> JobDefinition:  # noqa: ANN401 - the fields of a definition
    return JobDefinition.model_validate({"name": name, "schedule": "0 3 * * *", "function": "f", **fields})


async def changes(registry: Registry) -> None:
    """Change jobs in each way, and give other tasks a turn after each."""
    for _ in range(2):
        await registry.apply([definition("a"), definition("b"), definition("c")])
        await registry.pause("a")
        await registry.resume("a")
        await registry.define(definition("b", schedule="0 4 * * *"))
        await registry.delete("c")
        await registry.pause("b")


@pytest.mark.parametrize("max_behind", [0, 1, 10_000])
async def test_kept_ledgers_equal_fresh_ledgers(max_behind: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_reader, "MAX_BEHIND", max_behind)
    clock = ManualClock()
    log = InMemoryEventLog(clock)
    registry = Registry(log, InMemoryProjections(clock), clock)
    kept = LedgerReader(log)
    assert await kept.load_all() == {}
    append = log.append
    compared = 0

    async def compare_after(*args: Any, **kwargs: Any) -> int:  # noqa: ANN401 - those of `append`
        nonlocal compared
        sequence = await append(*args, **kwargs)
        if compared % 2 == 0:  # sometimes several events are new
            assert await kept.load_all() == await LedgerReader(log).load_all()
        compared += 1
        return sequence

    monkeypatch.setattr(log, "append", compare_after)
    await changes(registry)
    assert compared > 10
    assert await kept.load_all() == await LedgerReader(log).load_all()


async def test_concurrent_calls_share_a_read(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    log = InMemoryEventLog(clock)
    await Registry(log, InMemoryProjections(clock), clock).apply([definition("a")])
    follow, reads = log.follow, 0

    def counted_follow(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - those of `follow`
        nonlocal reads
        reads += 1
        return follow(*args, **kwargs)

    monkeypatch.setattr(log, "follow", counted_follow)
    kept = LedgerReader(log)
    results = await asyncio.gather(*(kept.load_all() for _ in range(20)))
    assert all(result == results[0] for result in results)
    assert reads == 1


async def test_ledger_whose_events_are_gone_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    log = InMemoryEventLog(clock)
    registry, reads = Registry(log, InMemoryProjections(clock), clock), 0
    await registry.apply([definition("a")])
    await registry.pause("a")

    async def gone(_: str, __: int) -> None:
        nonlocal reads
        reads += 1
        assert reads == 1

    monkeypatch.setattr(log, "get", gone)
    [paused] = await log.read("ledger.a.paused")
    state = await complete(log, "a", {paused.sequence: paused})
    assert (ledger.missing_fact(state), reads) == (1, 1)


async def test_ledgers_of_a_deleted_log_are_forgotten() -> None:
    clock = ManualClock()
    logs = [InMemoryEventLog(clock), InMemoryEventLog(clock)]
    registries = [Registry(log, InMemoryProjections(clock), clock) for log in logs]
    await registries[0].apply([definition("a"), definition("b")])
    kept = LedgerReader(logs[0])
    await kept.load_all()
    kept._log = logs[1]  # everything was deleted, and as much or more was written after that
    await registries[1].apply([definition("c"), definition("d")])
    assert set(await kept.load_all()) == {"c", "d"}
    kept = LedgerReader(logs[0])
    await kept.load_all()
    kept._log = logs[1]
    await registries[1].apply([definition("e")])
    assert set(await kept.load_all()) == {"c", "d", "e"}
