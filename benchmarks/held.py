"""held: many executions that wait for a run of another job.

The other job has a function that no worker has, so that its run stays open until it is cancelled; the executions wait for any end. The
figures are the seconds until all of them wait, the seconds from the cancellation to the first start and to the last completion, the CPU time
of every process per execution, and the peak of memory.

Stored messages per execution: its trigger, the answer to it, its public event, and parts of commits and of lists of reports.
"""

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import Final, cast

from benchmarks.metrics import Metrics
from benchmarks.part import FUNCTION
from benchmarks.system import System
from benchmarks.throughput import GRACE, IN_FLIGHT, NO_LESS, trigger
from tocsin import subjects
from tocsin.domain.definition import JobDefinition
from tocsin.domain.events import CancelRequest, ExecutionFact
from tocsin.ports.queries import ExecutionQuery

EXECUTIONS: Final = 10_000
UPSTREAM: Final = "waited-for"
DEPENDENT: Final = "held"
POLL: Final = 0.1


async def held(system: System, executions: int = EXECUTIONS) -> Metrics:
    """Return the seconds until all executions wait, and until all are over.

    Raises:
        TimeoutError: some did not wait, or did not complete; the message has the number.
    """
    dependency = {"job": UPSTREAM, "within": "1h", "on": "finished"}
    dependent = {"name": DEPENDENT, "function": FUNCTION, "overlap_policy": "allow", "max_waiting": executions}
    await system.define(
        JobDefinition(name=UPSTREAM, function="no-worker-has-this"),
        JobDefinition.model_validate({**dependent, "depends_on": [dependency]}),
    )
    patience = GRACE + executions / NO_LESS
    await trigger(system, UPSTREAM, range(1))
    upstream = await _opened(system, within=patience)

    cpu, stored, began = system.cpu(), await system.messages(), time.perf_counter()
    for first in range(0, executions, IN_FLIGHT):
        await trigger(system, DEPENDENT, range(first, min(first + IN_FLIGHT, executions)))
    async with system.installation.history() as history:
        opened = ExecutionQuery(job=DEPENDENT, since=datetime.now(UTC) - timedelta(hours=1))
        done = ExecutionQuery(job=DEPENDENT, status="completed", since=opened.since)

        async def until(query: ExecutionQuery) -> float:
            deadline = time.perf_counter() + patience
            while (found := await history.count(query)) < executions:
                if time.perf_counter() > deadline:
                    msg = (
                        f"{found:,} of {executions:,} executions are {query.status or 'known'} after {patience:,.0f} s"
                    )
                    raise TimeoutError(msg)
                await asyncio.sleep(POLL)
            return time.perf_counter()

        waiting = await until(opened) - began
        begun, position = time.perf_counter(), len(system.started)
        await system.installation.log.publish(subjects.cancel(UPSTREAM, upstream), CancelRequest(), message_id="end")
        await system.until_started(position + 1, within=patience)
        first_start = system.started[position].monotonic - begun
        ended = await until(done) - begun
    used = {name: now - cpu[name] for name, now in system.cpu().items()}
    each = {name: seconds / executions * 1000 for name, seconds in used.items()}
    return {
        "until_all_wait_s": waiting,
        "first_start_s": first_start,
        "until_all_completed_s": ended,
        "messages_per_execution": (await system.messages() - stored) / executions,
        "cpu_ms_per_execution": sum(each.values()),
        **{f"cpu_ms_per_execution ({name})": milliseconds for name, milliseconds in each.items()},
        **{f"peak_mb ({name})": megabytes for name, megabytes in system.peak_memory().items()},
    }


async def _opened(system: System, *, within: float) -> str:
    """Wait for the run of the other job, and return its id."""
    async with asyncio.timeout(within):
        while True:
            if events := await system.installation.log.read(subjects.execution(UPSTREAM, "*")):
                return cast("ExecutionFact", events[0].message).execution_id
            await asyncio.sleep(POLL)
