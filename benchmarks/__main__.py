"""Runs workloads and prints what they measure, each beside the bare rate of NATS in the same run.

    python -m benchmarks [W1 W2 ...] [--profile default|durable|both] [--json FILE]

`durable` is the same with a server that flushes every write to the disk before it acknowledges it (`sync_interval: always`).
"""

import argparse
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

import uvloop

from benchmarks.bare import bare_rate
from benchmarks.fire_lag import fire_lag
from benchmarks.growth import growth
from benchmarks.latency import latency
from benchmarks.registered import registered
from benchmarks.replay import replay
from benchmarks.system import ONE_PROCESS, USUAL, copies, system
from benchmarks.throughput import graphs, throughput
from tocsin import telemetry
from tocsin.garbage import collect_patiently

Metrics: TypeAlias = dict[str, float]
Workload: TypeAlias = Callable[[bool], Awaitable[Metrics]]
"""Measures on a system of its own, whose server flushes every write or does not."""
PROFILES: Final = {"default": (False,), "durable": (True,), "both": (False, True)}


@dataclass(frozen=True, slots=True)
class OnSystem:
    """A workload on a running system, with the bare rate of the same server beside it."""

    measure: Callable[..., Awaitable[Metrics]]
    parts: tuple[str, ...] = USUAL

    async def __call__(self, sync_always: bool) -> Metrics:  # noqa: FBT001 - as every workload
        """Start the system, and measure."""
        async with system(self.parts, sync_always=sync_always) as it:
            bare = await bare_rate(it.installation.connection.client)
            return {**await self.measure(it), "bare_rate": bare}


WORKLOADS: Final[dict[str, Workload]] = {
    "W1": OnSystem(fire_lag),
    "W2": OnSystem(throughput),
    "W2-one-process": OnSystem(throughput, ONE_PROCESS),
    "W2d": OnSystem(graphs),
    "W3": OnSystem(latency),
    "W4-two": OnSystem(throughput, copies(2)),
    "W4-four": OnSystem(throughput, copies(4)),
    "W5": growth,
    "W6": registered,
    "W7": replay,
}


async def measure(name: str, *, sync_always: bool) -> Metrics:
    """One workload; what it found is printed."""
    metrics = await WORKLOADS[name](sync_always)
    print(_title(name, sync_always=sync_always), flush=True)
    for metric, value in metrics.items():
        print(f"  {metric:<46}{value:>12,.2f}", flush=True)
    return metrics


def main() -> None:
    """Measure, print, write."""
    description = (__doc__ or "").partition("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=description)
    parser.add_argument("workloads", nargs="*", metavar="W", help=f"which ones; by default all: {', '.join(WORKLOADS)}")
    parser.add_argument("--profile", choices=PROFILES, default="both", help="how the server keeps what it acknowledges")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write {workload: {metric: value}} there as well")
    arguments = parser.parse_args()
    if unknown := set(arguments.workloads) - set(WORKLOADS):
        parser.error(f"no workload is called {', '.join(sorted(unknown))}: there are {', '.join(WORKLOADS)}")
    telemetry.configure(level="warning")
    collect_patiently()
    results = {
        _title(name, sync_always=sync): uvloop.run(measure(name, sync_always=sync))
        for name in arguments.workloads or WORKLOADS
        for sync in PROFILES[arguments.profile]
    }
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


def _title(name: str, *, sync_always: bool) -> str:
    return f"{name} durable" if sync_always else name


if __name__ == "__main__":
    main()
