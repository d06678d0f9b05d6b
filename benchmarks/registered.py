"""What registered jobs cost a ticker: loading them, holding them, and a tick in which few of them are due.

    python -m benchmarks.registered

A tick must cost in proportion to what is due, not to what is registered; loading is decoding the facts of the ledger,
folding them, and knowing when each job is to be looked at next.
"""

import asyncio
import gc
import resource
import time
from datetime import UTC, datetime, timedelta

from tocsin import subjects, telemetry
from tocsin.domain.definition import JobDefinition
from tocsin.domain.events import Defined, Recorded
from tocsin.stages.leadership import Leadership
from tocsin.stages.ticker import Ticker
from tocsin.testing import InMemoryEventLog, InMemoryProjections, ManualClock

REGISTERED = (1_000, 10_000, 100_000)
DUE = 100
MIDNIGHT = datetime(2026, 11, 20, tzinfo=UTC)
TICKS = 20
ZONES = ("UTC", "America/New_York", "Europe/Berlin", "Asia/Tokyo", "Australia/Sydney")


def facts(number: int) -> list[tuple[str, bytes]]:
    """So many jobs: `DUE` of every minute, the others once a day at some minute of the afternoon."""
    stored = []
    for i in range(number):
        schedule = "* * * * *" if i < DUE else f"{i % 60} {12 + i % 10} {1 + i % 28} * *"
        zone = "UTC" if i < DUE else ZONES[i % len(ZONES)]
        job = JobDefinition(name=f"job-{i}", schedule=schedule, timezone=zone, function="f", overlap_policy="allow")
        fact = Defined(job=job.name, definition=job)
        stored.append((subjects.subject_of(fact), fact.encode()))
    return stored


async def measure(number: int) -> dict[str, float]:
    """Load so many jobs, then tick."""
    stored = facts(number)
    clock = ManualClock()
    log = InMemoryEventLog(clock)
    for subject, body in stored[:DUE]:
        log.receive(subject, body)
    leadership = Leadership(InMemoryProjections(clock), clock, key="ticker", holder="benchmark", ttl=1e9)
    await leadership.run_once()
    ticker = Ticker(log, leadership, clock)
    gc.collect()
    before, began = _memory(), time.perf_counter()
    start = clock.now()
    for sequence, (subject, body) in enumerate(stored, start=1):
        ticker.learn(Recorded(subjects.decode(subject, body), subject, sequence, start))
    await ticker.run_once(start)
    loaded = time.perf_counter() - began
    memory = _memory() - before
    ticks = []
    for minute in range(1, TICKS + 1):
        began = time.perf_counter()
        await ticker.run_once(start + timedelta(minutes=minute))
        ticks.append(time.perf_counter() - began)
    return {"load_s": loaded, "memory_mb": memory, "tick_ms": sorted(ticks)[TICKS // 2] * 1000}


def _memory() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


async def main() -> None:
    """Print a line for each number of jobs."""
    telemetry.configure(level="warning")
    print(f"{'registered':>10}  {'load s':>8}  {'memory MB':>9}  {f'tick ms ({DUE} due)':>18}")
    for number in REGISTERED:
        found = await measure(number)
        print(f"{number:>10,}  {found['load_s']:>8.2f}  {found['memory_mb']:>9.0f}  {found['tick_ms']:>18.2f}")


if __name__ == "__main__":
    asyncio.run(main())
