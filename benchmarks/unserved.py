"""unserved and restart: the cost of unserved tasks, and of completed claims.

unserved: a lone execution and a restart, beside tasks that no worker can do.

Their function is one that no worker has, and their queue is that of the other executions. The figures are the latency of a lone execution (as in
W3), and the seconds and the CPU from the start of all processes to the first start of a handler: without these tasks, and with them.
The memory is that with them.

Stored messages for each of these tasks: trigger, dispatched = 2. The matcher reads them all when it starts.

restart: the seconds and the CPU from the start of the stages to the first start of a handler, beside one task that no worker can do and
many executions that were stored and completed after it. The worker runs on. The stages ended by kill -9 as soon as the executions were completed, and then in order.
"""

import asyncio
import os
import signal
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from benchmarks.bare import bare_rate
from benchmarks.conditions import Conditions
from benchmarks.latency import EXECUTIONS, latency
from benchmarks.metrics import Metrics, labelled
from benchmarks.part import FUNCTION, WORKER
from benchmarks.servers import Servers, initialized, servers
from benchmarks.system import REGISTRAR, USUAL, System, running
from benchmarks.throughput import GRACE, IN_FLIGHT, NO_LESS, drive, trigger
from tocsin.bootstrap import Installation
from tocsin.domain.definition import JobDefinition
from tocsin.ports.queries import ExecutionQuery

JOB: Final = "unserved"
POLL: Final = 0.1
PARTS: Final = tuple(part for part in USUAL if part != WORKER)


async def unserved(conditions: Conditions, *, executions: int = EXECUTIONS) -> Metrics:
    """Return milliseconds, seconds and megabytes.

    Args:
        conditions: of the server, and the number of tasks.
        executions: lone executions of each measurement.

    Raises:
        TimeoutError: a task was not stored, or an execution did not start.
    """
    tasks = conditions.tasks
    async with servers(sync_always=conditions.sync_always) as nats, initialized(nats.settings) as installation:
        bare = await bare_rate(installation.connection.client)
        async with running(installation, USUAL, nats=nats.pids) as system:
            without = await latency(system, executions, job="without")
        first = await _restart(installation, nats, job="first")
        async with running(installation, USUAL, nats=nats.pids) as system:
            await _fill(system, tasks)
            beside = await latency(system, executions, job="beside")
            memory = system.memory()
        again = await _restart(installation, nats, job="again")
    return {
        **labelled(without, "0 tasks"),
        **labelled(beside, f"{tasks:,} tasks"),
        "p99_ratio": beside["p99_ms"] / without["p99_ms"],
        **labelled(first, "0 tasks"),
        **labelled(again, f"{tasks:,} tasks"),
        **{f"memory_mb ({name})": megabytes for name, megabytes in memory.items()},
        "bare_rate": bare,
    }


async def restart(conditions: Conditions) -> Metrics:
    """Return seconds, and executions a second.

    Raises:
        TimeoutError: an execution did not start, or did not complete.
    """
    executions = conditions.tasks
    async with (
        servers(sync_always=conditions.sync_always) as nats,
        initialized(nats.settings) as installation,
        running(installation, (WORKER,), nats=nats.pids),
    ):
        bare = await bare_rate(installation.connection.client)
        first = await _restart(installation, nats, job="first", parts=PARTS)
        async with running(installation, PARTS, nats=nats.pids) as system:
            await _fill(system, 1)
            await system.define(JobDefinition(name="completed", function=FUNCTION, overlap_policy="allow"))
            filled = await drive(system, "completed", executions)
            for name in system.processes.keys() - {*nats.pids, "client"}:
                os.kill(system.processes[name], signal.SIGKILL)
        killed = await _restart(installation, nats, job="killed", parts=PARTS)
        again = await _restart(installation, nats, job="again", parts=PARTS)
    return {
        **labelled(first, "0 claims"),
        **labelled(killed, f"{executions:,} claims, killed"),
        **labelled(again, f"{executions:,} claims"),
        "executions_per_second": filled["executions_per_second"],
        "bare_rate": bare,
    }


async def _restart(installation: Installation, nats: Servers, *, job: str, parts: Sequence[str] = USUAL) -> Metrics:
    """Start the processes; return the seconds and the CPU until a handler starts."""
    async with running(installation, (REGISTRAR,), nats=nats.pids) as system:
        await system.define(JobDefinition(name=job, function=FUNCTION))
    began = time.perf_counter()
    async with running(installation, parts, nats=nats.pids) as system:
        await trigger(system, job, range(1))
        await system.until_started(1, within=GRACE)
        used = sum(seconds for name, seconds in system.cpu().items() if name not in {*nats.pids, "client"})
        return {"restart_to_first_start_s": system.started[0].monotonic - began, "restart_cpu_s": used}


async def _fill(system: System, tasks: int) -> None:
    """Store tasks that no worker can do, and wait until the history shows them."""
    await system.define(JobDefinition(name=JOB, function="no-worker-has-this", overlap_policy="allow"))
    for number in range(0, tasks, IN_FLIGHT):
        await trigger(system, JOB, range(number, min(number + IN_FLIGHT, tasks)))
    opened = ExecutionQuery(job=JOB, since=datetime.now(UTC) - timedelta(hours=1))
    async with system.installation.history() as history, asyncio.timeout(GRACE + tasks / NO_LESS):
        while True:
            if await history.count(opened) >= tasks:
                return
            await asyncio.sleep(POLL)
