"""graph: one execution with many parallel steps, and a job of one step beside it.

The job of one step runs alone first, one execution after the other, and then again while the graph runs. The figures are the
seconds of the graph, from its trigger to `completed` in the history, and the percentiles of the other job alone and beside it.

Stored messages per step: parts of commits and of report lists. The workload uses only what `benchmarks.system` and
`benchmarks.throughput` offer, so that it also runs on the benchmarks of an earlier commit (`benchmarks.against`).
"""

import asyncio
import time
from typing import Final

from benchmarks.metrics import Metrics, labelled, percentiles
from benchmarks.part import FUNCTION
from benchmarks.system import System
from benchmarks.throughput import drive, trigger
from tocsin.domain.definition import JobDefinition, Step

STEPS: Final = 1_000
ALONE: Final = 300
"""Executions of the other job without the graph."""
PAUSE: Final = 0.01
"""Seconds between two executions of the other job."""
PATIENCE: Final = 60.0
"""Seconds for the start of each handler of the other job; a slower execution is stuck."""
GRAPH: Final = "wide-graph"
LONE: Final = "lone"


async def wide_graph(system: System, steps: int = STEPS, *, alone: int = ALONE) -> Metrics:
    """Return the seconds of the graph, and the percentiles (ms) of the other job.

    Raises:
        TimeoutError: the graph did not complete, or an execution of the other job did not start.
    """
    parallel = tuple(Step(name=f"step-{number}", function=FUNCTION) for number in range(steps))
    await system.define(
        JobDefinition(name=GRAPH, dag=parallel, overlap_policy="allow"),
        JobDefinition(name=LONE, function=FUNCTION, overlap_policy="allow"),
    )
    usual = [await _wait(system, number, without="") for number in range(alone)]
    started = len(system.started)
    graph = asyncio.create_task(drive(system, GRAPH, 1))
    beside = list[float]()
    try:
        await system.until_started(started + 1, within=PATIENCE)
        of_graph = system.started[started].execution_id
        while not graph.done():
            beside.append(await _wait(system, alone + len(beside), without=of_graph))
        measured = await graph
    finally:
        graph.cancel()
    of_usual, of_beside = (percentiles(waits, unit="ms", scale=1000) for waits in (usual, beside))
    return {
        "graph_s": 1 / measured["executions_per_second"],
        "messages_per_step": measured["messages_per_execution"] / steps,
        **labelled(of_usual, "alone"),
        **labelled(of_beside, "beside"),
        "p99_ratio": of_beside["p99_ms"] / of_usual["p99_ms"],
        "executions_beside": len(beside),
    }


async def _wait(system: System, number: int, *, without: str) -> float:
    """Return the seconds from a trigger of the other job to its handler's start.

    Args:
        system: the running system.
        number: of the trigger, unique among all triggers of the job.
        without: the execution id of the graph, whose starts do not count.

    Raises:
        TimeoutError: the handler did not start.
    """
    position, began = len(system.started), time.perf_counter()
    await trigger(system, LONE, range(number, number + 1))
    while True:
        await system.until_started(position + 1, within=PATIENCE)
        start = system.started[position]
        position += 1
        if start.execution_id != without:
            break
    await asyncio.sleep(PAUSE)
    return start.monotonic - began
