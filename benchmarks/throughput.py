"""W2 and W2d: executions and steps a second, from trigger to `completed` in the history.

Many decisions share a commit: an execution stores its trigger, its public event, and parts of commits and of lists of reports.
"""

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import Final

from benchmarks.metrics import Metrics
from benchmarks.part import FUNCTION, functions
from benchmarks.system import System
from tocsin import subjects
from tocsin.domain.definition import JobDefinition, Step
from tocsin.domain.events import Trigger
from tocsin.ports.queries import ExecutionQuery

EXECUTIONS: Final = 20_000
GRAPHS: Final = 5_000
IN_FLIGHT: Final = 256
NO_LESS: Final = 20
"""Executions a second; a slower workload is stuck."""
GRACE: Final = 60.0
"""Seconds that a workload of any size may take."""

GRAPH: Final = (
    Step(name="extract", function=FUNCTION),
    *(Step(name=f"transform-{i}", function=FUNCTION, depends_on=("extract",)) for i in range(3)),
    Step(name="load", function=FUNCTION, depends_on=tuple(f"transform-{i}" for i in range(3))),
    Step(name="notify", function=FUNCTION, depends_on=("load",)),
)


async def throughput(system: System, executions: int = EXECUTIONS, *, job: str = "throughput") -> Metrics:
    """W2: return executions a second, and the CPU time of every process per execution.

    With several functions there is a job for each, and these are triggered in turn.
    """
    jobs = {job if number == 0 else f"{job}-{number}": function for number, function in enumerate(functions())}
    for name, function in jobs.items():
        await system.define(JobDefinition(name=name, function=function, overlap_policy="allow"))
    return await drive(system, tuple(jobs), executions)


async def graphs(system: System, executions: int = GRAPHS) -> Metrics:
    """W2d: return executions and steps a second for a graph of six steps."""
    await system.define(JobDefinition(name="graph", dag=GRAPH, overlap_policy="allow"))
    measured = await drive(system, "graph", executions)
    return {"steps_per_second": measured["executions_per_second"] * len(GRAPH), **measured}


async def drive(system: System, job: str | tuple[str, ...], executions: int) -> Metrics:
    """Trigger jobs in turn, and wait until the history shows each execution completed.

    With several jobs, no other may run.

    Raises:
        TimeoutError: some did not complete; the message has the number.
    """
    jobs = (job,) if isinstance(job, str) else job
    stored = await system.messages()
    async with system.installation.history() as history:
        cpu, began = system.cpu(), time.perf_counter()
        # Without `since` it would be counted among all executions that ever completed.
        only = jobs[0] if len(jobs) == 1 else None
        done = ExecutionQuery(job=only, status="completed", since=datetime.now(UTC) - timedelta(seconds=1))
        for first in range(0, executions, IN_FLIGHT):
            await trigger(system, jobs, range(first, min(first + IN_FLIGHT, executions)))
        deadline = began + GRACE + executions / NO_LESS
        while (completed := await history.count(done)) < executions:
            if time.perf_counter() > deadline:
                msg = f"{completed:,} of {executions:,} executions completed within {deadline - began:,.0f} s"
                raise TimeoutError(msg)
            await asyncio.sleep(0.1)
        elapsed = time.perf_counter() - began
        used = {name: now - cpu[name] for name, now in system.cpu().items()}
    each = {name: seconds / executions * 1000 for name, seconds in used.items()}
    return {
        "executions_per_second": executions / elapsed,
        "messages_per_execution": (await system.messages() - stored) / executions,
        "cores_busy": sum(used.values()) / elapsed,
        "cpu_ms_per_execution": sum(each.values()),
        **{f"cpu_ms_per_execution ({name})": milliseconds for name, milliseconds in each.items()},
    }


async def trigger(system: System, job: str | tuple[str, ...], numbers: range) -> None:
    """Request a run for each number, of several jobs in turn, all concurrently."""
    log, jobs = system.installation.log, (job,) if isinstance(job, str) else job
    await asyncio.gather(
        *(
            log.publish(subjects.trigger(name), Trigger(), message_id=f"{name}-{number}")
            for number in numbers
            for name in (jobs[number % len(jobs)],)
        )
    )
