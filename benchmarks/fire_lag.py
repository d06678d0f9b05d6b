"""W1: many jobs due at one second, from that instant to each handler's start.

Everything is on: the ledger, the history, and the lock that a job has unless its runs may overlap. Many decisions share a commit, so few
messages are stored for an execution: its public event, and parts of a commit and of a list of reports.
"""

import asyncio
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Final

from benchmarks.metrics import Metrics, labelled, percentiles
from benchmarks.part import FUNCTION
from benchmarks.system import System
from tocsin.domain.definition import JobDefinition
from tocsin.domain.definition.partition import Partition

JOBS: Final = (1_000, 10_000)
NOTICE: Final = 8.0
"""Seconds between the registration of the last job and the instant."""
PATIENCE: Final = 120.0


async def fire_lag(system: System, numbers: tuple[int, ...] = JOBS) -> Metrics:
    """Return percentiles (ms), rates, and missing or doubled starts, for each number of jobs.

    Raises:
        ValueError: no handler started.
    """
    found: Metrics = {}
    for jobs in numbers:
        found |= labelled(await measure(system, jobs), f"{jobs:,}")
    return found


async def measure(system: System, jobs: int, *, shards: int = 0) -> Metrics:
    """Measure the starts of jobs that are due at one second.

    `shards`: the active shards of the map, on each of which every job runs; 0: the jobs run once.
    """
    partition, executions = (Partition(all_shards=True), jobs * shards) if shards else (None, jobs)
    registering = jobs / 2_000  # seconds, generously
    due = (datetime.now(UTC) + timedelta(seconds=registering + NOTICE)).replace(microsecond=0)
    schedule = f"{due.second} {due.minute} {due.hour} {due.day} {due.month} *"
    await system.define(
        *(
            JobDefinition(name=f"lag-{shards}-{jobs}-{i}", schedule=schedule, function=FUNCTION, partition=partition)
            for i in range(jobs)
        )
    )
    before, stored = len(system.started), await system.messages()
    with suppress(TimeoutError):  # what is missing is counted
        await system.until_started(before + executions, within=registering + NOTICE + PATIENCE)
    await asyncio.sleep(1)  # for what starts twice
    starts = [start for start in system.started[before:] if start.scheduled_time == due.timestamp()]
    with suppress(TimeoutError):
        async with asyncio.timeout(PATIENCE):
            await system.until_quiet()
    distinct = {start.execution_id for start in starts}
    return {
        **percentiles([start.lag for start in starts], unit="ms", scale=1000),
        "starts_per_second": len(distinct) / max(start.lag for start in starts),
        "missed": executions - len(distinct),
        "twice": len(starts) - len(distinct),
        "messages_per_execution": (await system.messages() - stored) / executions,
    }
