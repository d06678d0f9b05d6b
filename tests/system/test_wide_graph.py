"""A graph of many parallel steps costs events in proportion to its steps."""

from pathlib import Path
from typing import Final

from tests.system.running import Running, running
from tocsin import Context, Worker
from tocsin.domain.events import Advanced, Completed, Dispatched, Message, Started

STEPS: Final = 300
NAME: Final = "wide"


async def test_parallel_steps_cost_events_in_proportion(nats_url: str, tmp_path: Path) -> None:
    worker = Worker(concurrency=64)

    @worker.task("f")
    async def succeed(context: Context) -> str:
        return context.step

    names = [f"step-{number}" for number in range(STEPS)]
    dag = [{"name": name, "function": "f"} for name in names]
    join = {"name": "join", "function": "f", "depends_on": names}
    async with running(nats_url, tmp_path, worker=worker) as system:
        await system.apply({"name": NAME, "dag": [*dag, join]})
        await system.trigger(NAME)
        [end] = await system.ended(NAME, Completed)
        counts = await _counts(system)
    assert end.step == "join"
    assert counts == {Dispatched: STEPS + 1, Started: STEPS + 1, Advanced: STEPS}


async def _counts(system: Running) -> dict[type[Message], int]:
    return {kind: len(await system.of_executions(NAME, kind)) for kind in (Dispatched, Started, Advanced)}
