"""W3: a lone execution on an idle installation, from the trigger to the start of its handler."""

import asyncio
import time
from typing import Final

from benchmarks.part import FUNCTION
from benchmarks.system import System, percentiles
from tocsin import subjects
from tocsin.domain.definition import JobDefinition
from tocsin.domain.events import Trigger

EXECUTIONS: Final = 300
PAUSE: Final = 0.01
"""Seconds between two, so that the system is idle again."""


async def latency(system: System) -> dict[str, float]:
    """Percentiles in milliseconds."""
    await system.define(JobDefinition(name="latency", function=FUNCTION, overlap_policy="allow"))
    waits: list[float] = []
    for number in range(EXECUTIONS):
        began = time.perf_counter()
        await system.installation.log.publish(subjects.trigger("latency"), Trigger(), message_id=f"latency-{number}")
        await system.until_started(number + 1)
        waits.append(system.started[-1].monotonic - began)
        await asyncio.sleep(PAUSE)
    return percentiles(waits, unit="ms", scale=1000)
