"""W2: single-step executions a second, from the trigger to `completed` in the history, through every stage and a worker.

Stored messages per execution: trigger, admitted, dispatched, started, report, completed = 6. Reads per execution: none on
the usual road in one process (the planner reads a ledger once for all triggers that it takes at once).
"""

import asyncio
import time

from benchmarks.installation import FUNCTION, Bench
from tocsin import subjects
from tocsin.domain.definition import JobDefinition
from tocsin.domain.events import Trigger
from tocsin.listing import ExecutionQuery
from tocsin.ports import History

EXECUTIONS = 10_000
IN_FLIGHT = 256


async def throughput(bench: Bench) -> dict[str, float]:
    """Executions a second, and the CPU time of this process per execution."""
    job = JobDefinition(name="throughput", function=FUNCTION, overlap_policy="allow")
    await bench.define(job)
    async with bench.installation.history() as history:
        began, cpu = time.perf_counter(), time.process_time()
        for first in range(0, EXECUTIONS, IN_FLIGHT):
            await asyncio.gather(
                *(_trigger(bench, job.name, i) for i in range(first, min(first + IN_FLIGHT, EXECUTIONS)))
            )
        while await _completed(history, job.name) < EXECUTIONS:  # noqa: ASYNC110 - a database does not signal
            await asyncio.sleep(0.05)
        elapsed = time.perf_counter() - began
    return {
        "executions_per_second": EXECUTIONS / elapsed,
        "cpu_ms_per_execution": (time.process_time() - cpu) / EXECUTIONS * 1000,
    }


async def _trigger(bench: Bench, job: str, number: int) -> None:
    await bench.installation.log.publish(subjects.trigger(job), Trigger(), message_id=f"{job}-{number}")


async def _completed(history: History, job: str) -> int:
    return await history.count(ExecutionQuery(job=job, status="completed"))
