"""W3: a lone execution on an idle installation, from the trigger to the start of its handler."""

import asyncio
import time

from benchmarks.installation import FUNCTION, Bench
from tocsin import subjects
from tocsin.domain.definition import JobDefinition
from tocsin.domain.events import Trigger

EXECUTIONS = 200


async def latency(bench: Bench) -> dict[str, float]:
    """Percentiles in milliseconds."""
    await bench.define(JobDefinition(name="latency", function=FUNCTION, overlap_policy="allow"))
    clock = time.perf_counter  # a loop's clock may count in whole milliseconds
    waits: list[float] = []
    for i in range(EXECUTIONS):
        before, began = len(bench.started), clock()
        await bench.installation.log.publish(subjects.trigger("latency"), Trigger(), message_id=f"latency-{i}")
        while len(bench.started) == before:  # noqa: ASYNC110 - the handler is not ours to signal
            await asyncio.sleep(0.0002)
        waits.append((bench.started[-1] - began) * 1000)
        await asyncio.sleep(0.01)
    waits.sort()
    return {"p50_ms": waits[len(waits) // 2], "p99_ms": waits[int(len(waits) * 0.99)]}
