"""W2 and W2d: executions and steps a second, from the trigger to `completed` in the history.

Stored messages per execution of one step: trigger, admitted, dispatched, started, report, completed = 6. Reads per
execution: none on the usual road (the planner reads a job's ledger once for all triggers that it takes at once). A step of
a graph costs 4 (dispatched, started, report, advanced), and its execution 2 more at the beginning.
"""

import asyncio
import time
from typing import Final

from benchmarks.part import FUNCTION
from benchmarks.system import System
from tocsin import subjects
from tocsin.domain.definition import JobDefinition, Step
from tocsin.domain.events import Trigger
from tocsin.listing import ExecutionQuery

EXECUTIONS: Final = 20_000
GRAPHS: Final = 5_000
IN_FLIGHT: Final = 256

GRAPH: Final = (
    Step(name="extract", function=FUNCTION),
    *(Step(name=f"transform-{i}", function=FUNCTION, depends_on=("extract",)) for i in range(3)),
    Step(name="load", function=FUNCTION, depends_on=tuple(f"transform-{i}" for i in range(3))),
    Step(name="notify", function=FUNCTION, depends_on=("load",)),
)


async def throughput(system: System, executions: int = EXECUTIONS, *, job: str = "throughput") -> dict[str, float]:
    """W2: executions a second, and the CPU time of every process for each."""
    await system.define(JobDefinition(name=job, function=FUNCTION, overlap_policy="allow"))
    return await drive(system, job, executions)


async def graphs(system: System, executions: int = GRAPHS) -> dict[str, float]:
    """W2d: the same for a graph of six steps with fan-out and fan-in; a second's steps beside its executions."""
    await system.define(JobDefinition(name="graph", dag=GRAPH, overlap_policy="allow"))
    measured = await drive(system, "graph", executions)
    return {"steps_per_second": measured["executions_per_second"] * len(GRAPH), **measured}


async def drive(system: System, job: str, executions: int) -> dict[str, float]:
    """Trigger a job so often, and wait until the history has seen each of its executions complete."""
    stored, cpu = await system.messages(), system.cpu()
    done = ExecutionQuery(job=job, status="completed")
    async with system.installation.history() as history:
        began = time.perf_counter()
        for first in range(0, executions, IN_FLIGHT):
            numbers = range(first, min(first + IN_FLIGHT, executions))
            await asyncio.gather(*(_trigger(system, job, number) for number in numbers))
        while await history.count(done) < executions:  # noqa: ASYNC110 - a database does not signal
            await asyncio.sleep(0.1)
        elapsed = time.perf_counter() - began
    used = {name: (now - cpu[name]) / executions * 1000 for name, now in system.cpu().items()}
    return {
        "executions_per_second": executions / elapsed,
        "messages_per_execution": (await system.messages() - stored) / executions,
        "cpu_ms_per_execution": sum(used.values()),
        **{f"cpu_ms_per_execution ({name})": milliseconds for name, milliseconds in used.items()},
    }


async def _trigger(system: System, job: str, number: int) -> None:
    await system.installation.log.publish(subjects.trigger(job), Trigger(), message_id=f"{job}-{number}")
