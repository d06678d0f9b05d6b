"""Runs workloads and prints what they measure, each beside the bare rate of NATS in the same run.

python -m benchmarks [W2 W3 ...] [--json FILE]
"""

import argparse
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import uvloop

from benchmarks.bare import bare_rate
from benchmarks.installation import Bench, bench
from benchmarks.latency import latency
from benchmarks.throughput import throughput
from tocsin import telemetry

WORKLOADS: dict[str, Callable[[Bench], Awaitable[dict[str, float]]]] = {"W3": latency, "W2": throughput}


async def measure(names: list[str]) -> dict[str, dict[str, float]]:
    """Each workload on an installation of its own."""
    results: dict[str, dict[str, float]] = {}
    for name in names:
        async with bench() as it:
            bare = await bare_rate(it.installation.connection.client)
            results[name] = {**await WORKLOADS[name](it), "bare_rate": bare}
    return results


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.splitlines()[0])
    parser.add_argument("workloads", nargs="*", metavar="W", help=f"which ones; by default all: {', '.join(WORKLOADS)}")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write {workload: {metric: value}} there as well")
    arguments = parser.parse_args()
    if unknown := set(arguments.workloads) - set(WORKLOADS):
        parser.error(f"no workload is called {', '.join(sorted(unknown))}: there are {', '.join(WORKLOADS)}")
    telemetry.configure(level="warning")
    results = uvloop.run(measure(arguments.workloads or list(WORKLOADS)))
    for name, metrics in results.items():
        print(name)
        for metric, value in metrics.items():
            print(f"  {metric:<24}{value:>12,.2f}")
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
