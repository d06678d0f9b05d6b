"""neighbors and waiting: a lone execution beside a burst, and beside a long waiting list.

A burst is triggered as fast as the log takes it. The waits of one more job, from its trigger to its handler's start, are measured without a
burst (`idle`), beside a burst of one job (`one job`), and beside as many executions of many jobs (`many jobs`). The last are the waits in a
busy installation: the ratio to them is the part of the wait that a burst of a single job adds.

In `waiting`, one execution of the other job has its lock, and all others wait for it. The waits are measured while the list grows
(`filling`), while it stands (`standing`), and while its executions begin to run, one after the other (`draining`).
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any, Final

from benchmarks.metrics import Metrics, labelled, percentiles
from benchmarks.part import FUNCTION
from benchmarks.system import System
from benchmarks.throughput import GRACE, IN_FLIGHT, NO_LESS, trigger
from tocsin import subjects
from tocsin.domain.definition import JobDefinition
from tocsin.domain.events import CancelRequest, Queued
from tocsin.services.jobs import Registry
from tocsin.subjects import Stream

EXECUTIONS: Final = 12_000
JOBS: Final = 256
PAUSE: Final = 0.02
"""Seconds between two executions of the measured job."""
IDLE: Final = 300
"""Executions of the measured job without a burst."""
WAITING: Final = 10_000
"""The usual limit of a waiting list."""
QUEUED_NO_LESS: Final = 5
"""Executions a second that begin to wait; a slower list is stuck. Each is a decision that needs the decision before."""
MEASURED: Final = "measured"
LISTED: Final = "listed"
POLL: Final = 0.1


async def neighbors(
    system: System, executions: int = EXECUTIONS, *, jobs: int = JOBS, idle_runs: int = IDLE
) -> Metrics:
    """Return percentiles in milliseconds, and ratios.

    Raises:
        TimeoutError: an execution did not start, or a burst did not end.
    """
    names = [f"one-of-{number}" for number in range(jobs)]
    await system.define(
        *(JobDefinition(name=name, function=FUNCTION, overlap_policy="allow") for name in (MEASURED, "alone", *names))
    )
    idle = await _waits(system, idle_runs)
    alone = await _waits(system, beside=_burst(system, ["alone"], executions), others=executions)
    among = await _waits(system, beside=_burst(system, names, executions), others=executions)
    return {
        **labelled(idle, "idle"),
        **labelled(alone, "one job"),
        **labelled(among, "many jobs"),
        "p99_ratio (one job, many jobs)": alone["p99_ms"] / among["p99_ms"],
        "p99_ratio (one job, idle)": alone["p99_ms"] / idle["p99_ms"],
    }


async def waiting_list(system: System, waiting: int = WAITING, *, idle_runs: int = IDLE) -> Metrics:
    """Return percentiles in milliseconds, and their ratios to those without the waiting list.

    Raises:
        TimeoutError: an execution did not start, or the waiting list did not fill or end.
    """
    listed = {"name": LISTED, "overlap_policy": "enqueue", "max_waiting": waiting}
    first = JobDefinition.model_validate({**listed, "function": "no-worker-has-this"})
    others = JobDefinition.model_validate({**listed, "function": FUNCTION})
    await system.define(JobDefinition(name=MEASURED, function=FUNCTION, overlap_policy="allow"), first)
    idle = await _waits(system, idle_runs)

    async def is_planned() -> bool:
        return bool(await system.installation.log.read(subjects.execution(LISTED, "*")))

    holder = await _registry(system).trigger(LISTED)
    await _until(is_planned, within=GRACE)
    await _registry(system).define(others)
    filling = await _waits(system, beside=_fill(system, waiting))
    standing = await _waits(system, idle_runs)
    await system.installation.log.publish(subjects.cancel(LISTED, holder), CancelRequest(), message_id="end")
    await system.until_started(len(system.started) + 1, within=GRACE)
    draining = await _waits(system, idle_runs)
    found = {"filling": filling, "standing": standing, "draining": draining}
    return {
        **labelled(idle, "idle"),
        **{name: value for label, waits in found.items() for name, value in labelled(waits, label).items()},
        **{f"p99_ratio ({label}, idle)": waits["p99_ms"] / idle["p99_ms"] for label, waits in found.items()},
    }


async def _waits(
    system: System, runs: int = 0, *, beside: Coroutine[Any, Any, None] | None = None, others: int = 0
) -> Metrics:
    """Return the waits of the measured job.

    Args:
        system: the running system.
        runs: number of executions to measure, at least.
        beside: work during which executions are measured.
        others: number of executions of other jobs that the work starts.
    """
    registry, before = _registry(system), len(system.started)
    work = None if beside is None else asyncio.create_task(beside)
    triggered = dict[str, float]()
    while len(triggered) < runs or (work is not None and not work.done()):
        began = time.perf_counter()
        triggered[await registry.trigger(MEASURED)] = began
        await asyncio.sleep(PAUSE)
    if work is not None:
        await work
    await system.until_started(before + others + len(triggered), within=GRACE)
    waits = dict[str, float]()
    async with asyncio.timeout(GRACE):
        while len(waits) < len(triggered):  # others may have started before these
            for start in system.started[before:]:
                if start.execution_id in triggered:
                    waits[start.execution_id] = start.monotonic - triggered[start.execution_id]
            await asyncio.sleep(PAUSE)
    return {"runs": len(waits), **percentiles(waits.values(), unit="ms", scale=1000)}


async def _burst(system: System, jobs: Sequence[str], executions: int) -> None:
    """Trigger jobs in turn, and wait until as many executions have started."""
    before, patience = len(system.started), GRACE + executions / NO_LESS
    for first in range(0, executions, IN_FLIGHT):
        await trigger(system, tuple(jobs), range(first, min(first + IN_FLIGHT, executions)))
    await system.until_started(before + executions, within=patience)


async def _fill(system: System, waiting: int) -> None:
    """Trigger executions, and wait until so many wait for the lock."""
    for first in range(0, waiting, IN_FLIGHT):
        await trigger(system, LISTED, range(first, min(first + IN_FLIGHT, waiting)))

    async with asyncio.timeout(GRACE + waiting / QUEUED_NO_LESS):
        await _until_queued(system, waiting)


async def _until_queued(system: System, number: int) -> None:
    """Wait until a number of executions had to wait for the lock."""
    example, queued = Queued(job=LISTED, execution_id="any", scheduled_time=datetime.now(UTC)), 0
    events = system.installation.log.follow(Stream.LOG, subjects.subject_of(example), after=0)
    async with aclosing(events) as batches:
        async for batch in batches:
            queued += len(batch.messages)
            if queued >= number:
                return


async def _until(condition: Callable[[], Awaitable[bool]], *, within: float) -> None:
    """Wait for a condition.

    Raises:
        TimeoutError: it did not come true in time.
    """
    async with asyncio.timeout(within):
        while True:
            if await condition():
                return
            await asyncio.sleep(POLL)


def _registry(system: System) -> Registry:
    it = system.installation
    return Registry(it.log, it.projections, it.clock)
