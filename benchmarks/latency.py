"""W3: one execution on an idle installation, from the trigger to its handler's start.

Stored messages per execution: the trigger, the commit that dispatches and claims, the report, the commit that completes, and the public event.
"""

import asyncio
import time
from typing import Final

from benchmarks.metrics import Metrics, percentiles
from benchmarks.part import FUNCTION
from benchmarks.system import System
from benchmarks.throughput import trigger
from tocsin.domain.definition import JobDefinition

EXECUTIONS: Final = 300
PAUSE: Final = 0.01
"""Seconds between two executions, so that the system is idle again."""
PATIENCE: Final = 30.0
"""Seconds for each execution; a slower execution is stuck."""


async def latency(system: System, executions: int = EXECUTIONS, *, job: str = "latency") -> Metrics:
    """Return percentiles in milliseconds.

    Raises:
        TimeoutError: an execution did not start.
    """
    await system.define(JobDefinition(name=job, function=FUNCTION, overlap_policy="allow"))
    before, waits = len(system.started), list[float]()
    for number in range(executions):
        began = time.perf_counter()
        await trigger(system, job, range(number, number + 1))
        await system.until_started(before + number + 1, within=PATIENCE)
        waits.append(system.started[-1].monotonic - began)
        await asyncio.sleep(PAUSE)
    return percentiles(waits, unit="ms", scale=1000)
