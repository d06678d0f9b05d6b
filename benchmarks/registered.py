"""W6: the cost of many registered jobs of which few are due.

`--jobs` sets their number. The workload measures the first start, memory and its peak, idle CPU, and the time from a restart to the first tick,
without and then with a snapshot of the log. All stages run in one process, beside a worker in
another. One job is due every second, so that the log shows when the restarted stages have ticked.
"""

import asyncio
import time
from collections.abc import Mapping
from typing import Final

from benchmarks.bare import bare_rate
from benchmarks.conditions import Conditions
from benchmarks.metrics import Metrics
from benchmarks.part import FUNCTION, WORKER
from benchmarks.servers import initialized, servers
from benchmarks.system import RECORDER, REGISTRAR, STAGES, System, running
from tocsin import subjects
from tocsin.bootstrap import Installation
from tocsin.domain.definition import JobDefinition
from tocsin.engine.snapshots import Snapshots
from tocsin.subjects import Bucket

IDLE: Final = 20.0
"""Seconds over which the idle CPU is measured."""
WITHIN: Final = 1_200.0
"""Seconds for the whole workload, beside the registration."""
NO_LESS: Final = 300
"""Jobs a second that are registered and projected; a slower workload is stuck."""
SETTLED_OVER: Final = 3.0
SETTLED_BELOW: Final = 0.08
"""Seconds, and the share of a core that settled processes use together during them."""
PARTS: Final = (f"{STAGES},{RECORDER}", WORKER)
ZONES: Final = ("UTC", "America/New_York", "Europe/Berlin", "Asia/Tokyo", "Australia/Sydney")
BEAT: Final = JobDefinition(name="beat", schedule="* * * * * *", function=FUNCTION)


async def registered(conditions: Conditions, *, jobs: int | None = None, idle: float = IDLE) -> Metrics:
    """Return seconds, megabytes, and per cent of one core.

    Args:
        conditions: of the server, and the number of jobs.
        jobs: another number of jobs.
        idle: seconds over which the idle CPU is measured.

    Raises:
        TimeoutError: the installation does not tick, or does not become idle.
    """
    jobs = conditions.jobs if jobs is None else jobs
    async with (
        servers(sync_always=conditions.sync_always) as nats,
        initialized(nats.settings) as installation,
        asyncio.timeout(WITHIN + jobs / NO_LESS),
    ):
        bare = await bare_rate(installation.connection.client)
        async with running(installation, (REGISTRAR,), nats=nats.pids) as system:
            began = time.perf_counter()
            await system.define(*(_job(number) for number in range(jobs)), BEAT)
            registering = time.perf_counter() - began
        began = time.perf_counter()
        async with running(installation, PARTS, nats=nats.pids) as system:
            await _beaten(system, after=0)
            first_tick = time.perf_counter() - began
            await _settled(system)  # a first start projects every definition, and a restart does not
            first_settled = time.perf_counter() - began
        for key in await installation.projections.entries(Bucket.SNAPSHOTS):
            await installation.projections.remove(Bucket.SNAPSHOTS, key)
        last = await _last_beat(installation)
        began = time.perf_counter()
        async with running(installation, PARTS, nats=nats.pids) as system:
            await _beaten(system, after=last)
            folded, folded_cpu = time.perf_counter() - began, _stages(system.cpu())
            await _snapshot(installation)
        last = await _last_beat(installation)
        began = time.perf_counter()
        async with running(installation, PARTS, nats=nats.pids) as system:
            await _beaten(system, after=last)
            restarted, restarted_cpu = time.perf_counter() - began, _stages(system.cpu())
            await _settled(system)
            cpu, since = system.cpu(), time.perf_counter()
            await asyncio.sleep(idle)
            elapsed = time.perf_counter() - since
            used = {name: (now - cpu[name]) / elapsed * 100 for name, now in system.cpu().items()}
            memory, peak = system.memory(), system.peak_memory()
    return {
        "registered_per_second": jobs / registering,
        "first_start_to_first_tick_s": first_tick,
        "first_start_to_idle_s": first_settled,
        "restart_without_snapshot_to_first_tick_s": folded,
        "restart_without_snapshot_cpu_s": folded_cpu,
        "restart_to_first_tick_s": restarted,
        "restart_cpu_s": restarted_cpu,
        "idle_cpu_percent": _stages(used),
        "memory_mb": _stages(memory),
        "peak_memory_mb": _stages(peak),
        "nats_idle_cpu_percent": used["nats"],
        "nats_memory_mb": memory["nats"],
        "bare_rate": bare,
    }


def _job(number: int) -> JobDefinition:
    """Return a job that is due once a day, at a given minute."""
    return JobDefinition(
        name=f"registered-{number}",
        schedule=f"{number % 60} {number // 60 % 24} * * *" if number % 24 else f"0 {number % 24} 1 1 *",
        timezone=ZONES[number % len(ZONES)],
        function=FUNCTION,
    )


def _stages(values: Mapping[str, float]) -> float:
    """Return the value of the process with the stages."""
    return next(value for name, value in values.items() if "stages" in name)


async def _last_beat(installation: Installation) -> int:
    last = await installation.log.last(subjects.filter_for("ledger.due"))
    return last.sequence if last else 0


async def _snapshot(installation: Installation) -> None:
    """Wait for a snapshot of the log."""
    snapshots = Snapshots(installation.projections, await installation.report_key())
    while not await snapshots.newest():  # noqa: ASYNC110 - a snapshot does not signal
        await asyncio.sleep(0.1)


async def _beaten(system: System, *, after: int) -> None:
    """Wait until the job of every second is due in the ledger."""
    beat = subjects.ledger(BEAT.name).removesuffix(">") + "due"
    while True:
        last = await system.installation.log.last(beat)
        if last is not None and last.sequence > after:
            return
        await asyncio.sleep(0.02)


async def _settled(system: System) -> None:
    """Wait until the processes use next to no CPU after a start."""
    before = sum(system.cpu().values())
    while True:
        await asyncio.sleep(SETTLED_OVER)
        now = sum(system.cpu().values())
        if now - before < SETTLED_BELOW * SETTLED_OVER:
            return
        before = now
