"""A graph of many parallel steps costs messages and reads in proportion to its steps."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

from tests.system.running import Running, running
from tocsin import Context, Worker
from tocsin.adapters.nats.log.event_log import NatsEventLog
from tocsin.domain.events import Advanced, Completed, Dispatched, Message, Recorded, Report, Started
from tocsin.ports import Loaded

STEPS: Final = 300
NAME: Final = "wide"


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the reads of executions by stages and workers, and the events that they received."""
    counted: Counter[str] = Counter()
    load, load_each = NatsEventLog.load, NatsEventLog.load_each

    async def counted_load(log: NatsEventLog, scope: str, *, after: int = 0) -> list[Recorded[Message]]:
        events = await load(log, scope, after=after)
        counted.update(reads=1, events=len(events))
        return events

    async def counted_load_each(log: NatsEventLog, *scopes: str, after: Mapping[str, int] | None = None) -> Loaded:
        loaded = await load_each(log, *scopes, after=after)
        counted.update(reads=1, events=sum(map(len, loaded.facts)))
        return loaded

    monkeypatch.setattr(NatsEventLog, "load", counted_load)
    monkeypatch.setattr(NatsEventLog, "load_each", counted_load_each)
    return counted


async def test_parallel_steps_cost_reads_in_proportion(nats_url: str, tmp_path: Path, reads: Counter[str]) -> None:
    worker = Worker(concurrency=64)

    @worker.task("f")
    async def succeed(context: Context) -> str:
        return context.step

    names = [f"step-{number}" for number in range(STEPS)]
    dag = [{"name": name, "function": "f"} for name in names]
    join = {"name": "join", "function": "f", "depends_on": names}
    async with running(nats_url, tmp_path, worker=worker) as system:
        await system.apply({"name": NAME, "dag": [*dag, join]})
        reads.clear()
        await system.trigger(NAME)
        [end] = await system.ended(NAME, Completed)
        asked = dict(reads)
        counts = await _counts(system)
    assert end.step == "join"
    assert counts == {Dispatched: STEPS + 1, Started: STEPS + 1, Advanced: STEPS, Report: STEPS + 1}
    # The worker and the DAG advancer append in turns, and each reads what the other appended.
    assert asked["reads"] < 4 * STEPS
    assert asked["events"] < 10 * STEPS


async def _counts(system: Running) -> dict[type[Message], int]:
    counts: dict[type[Message], int] = {
        kind: len(await system.of_executions(NAME, kind)) for kind in (Dispatched, Started, Advanced)
    }
    return {**counts, Report: len(await system.facts(f"report.{NAME}.>", Report))}
