"""neighbors: a lone execution beside a burst of one job, or of many.

A burst is triggered as fast as the log takes it. The waits of one more job, from its trigger to its handler's start, are measured without a
burst (`idle`), beside a burst of one job (`one job`), and beside as many executions of many jobs (`many jobs`). The last are the waits in a
busy installation: the ratio to them is the part of the wait that a burst of a single job adds.
"""

import asyncio
import time
from collections.abc import Sequence
from typing import Final

from benchmarks.metrics import Metrics, labelled, percentiles
from benchmarks.part import FUNCTION
from benchmarks.system import System
from benchmarks.throughput import GRACE, IN_FLIGHT, NO_LESS, trigger
from tocsin.domain.definition import JobDefinition
from tocsin.services.jobs import Registry

EXECUTIONS: Final = 12_000
JOBS: Final = 256
PAUSE: Final = 0.02
"""Seconds between two executions of the measured job."""
IDLE: Final = 300
"""Executions of the measured job without a burst."""


async def neighbors(
    system: System, executions: int = EXECUTIONS, *, jobs: int = JOBS, idle_runs: int = IDLE
) -> Metrics:
    """Return percentiles in milliseconds, and ratios.

    Raises:
        TimeoutError: an execution did not start, or a burst did not end.
    """
    names = [f"one-of-{number}" for number in range(jobs)]
    await system.define(
        *(JobDefinition(name=name, function=FUNCTION, overlap_policy="allow") for name in ("measured", "alone", *names))
    )
    idle = await _waits(system, [], idle_runs)
    alone = await _waits(system, ["alone"], executions)
    among = await _waits(system, names, executions)
    return {
        **labelled(idle, "idle"),
        **labelled(alone, "one job"),
        **labelled(among, "many jobs"),
        "p99_ratio (one job, many jobs)": alone["p99_ms"] / among["p99_ms"],
        "p99_ratio (one job, idle)": alone["p99_ms"] / idle["p99_ms"],
    }


async def _waits(system: System, jobs: Sequence[str], executions: int) -> Metrics:
    """Return the waits of the measured job beside a burst.

    Without jobs, `executions` are those of the measured job.
    """
    it, before = system.installation, len(system.started)
    registry = Registry(it.log, it.projections, it.clock)
    burst = asyncio.create_task(_burst(system, jobs, executions)) if jobs else None
    triggered = dict[str, float]()
    while len(triggered) < executions if burst is None else not burst.done():
        began = time.perf_counter()
        triggered[await registry.trigger("measured")] = began
        await asyncio.sleep(PAUSE)
    if burst is not None:
        await burst
        executions += len(triggered)
    await system.until_started(before + executions, within=GRACE)
    starts = system.started[before:]
    waits = [each.monotonic - triggered[each.execution_id] for each in starts if each.execution_id in triggered]
    return {"runs": len(waits), **percentiles(waits, unit="ms", scale=1000)}


async def _burst(system: System, jobs: Sequence[str], executions: int) -> None:
    """Trigger jobs in turn, and wait until as many executions have started."""
    before, patience = len(system.started), GRACE + executions / NO_LESS
    for first in range(0, executions, IN_FLIGHT):
        await trigger(system, tuple(jobs), range(first, min(first + IN_FLIGHT, executions)))
    await system.until_started(before + executions, within=patience)
