"""W1: many jobs that are all due at one wall-clock second, from that instant to the start of each handler.

Everything is on: the ledger, the guards, the history.
"""

import asyncio
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Final

from benchmarks.part import FUNCTION
from benchmarks.system import System, percentiles
from tocsin.domain.definition import JobDefinition

JOBS: Final = (1_000, 10_000)
NOTICE: Final = 8.0
"""Seconds between the registration of the last job and the instant."""
PATIENCE: Final = 120.0


async def fire_lag(system: System) -> dict[str, float]:
    """For each number of jobs: percentiles in milliseconds, and how many never started or started twice."""
    found: dict[str, float] = {}
    for jobs in JOBS:
        found |= {f"{metric} ({jobs:,})": value for metric, value in (await _measure(system, jobs)).items()}
    return found


async def _measure(system: System, jobs: int) -> dict[str, float]:
    registering = jobs / 2_000  # seconds, generously
    due = (datetime.now(UTC) + timedelta(seconds=registering + NOTICE)).replace(microsecond=0)
    schedule = f"{due.second} {due.minute} {due.hour} {due.day} {due.month} *"
    await system.define(
        *(JobDefinition(name=f"lag-{jobs}-{i}", schedule=schedule, function=FUNCTION) for i in range(jobs))
    )
    before = len(system.started)
    with suppress(TimeoutError):  # what is missing is counted
        async with asyncio.timeout(registering + NOTICE + PATIENCE):
            await system.until_started(before + jobs)
    await asyncio.sleep(1)  # for what starts twice
    starts = system.started[before:]
    distinct = {start.execution_id for start in starts}
    return {
        **percentiles([start.lag for start in starts], unit="ms", scale=1000),
        "missed": jobs - len(distinct),
        "twice": len(starts) - len(distinct),
    }
