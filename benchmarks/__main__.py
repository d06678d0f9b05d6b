"""Runs workloads and prints what they measure, each beside the bare rate of NATS in the same run.

    python -m benchmarks [W1 W2 ...] [--profile default|durable|both] [--json FILE] [--peers [NAMES]] [--plots FOLDER]

`durable` is the same with a server that flushes every write to the disk before it acknowledges it (`sync_interval: always`).
`--peers` has what a user would pick instead do W1, W2 and W3 in the same run. Their libraries may live in an environment of
their own, which `--peers-python` names; what is not there is told, and the run goes on.
"""

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

import uvloop

from benchmarks import comparison, plots
from benchmarks.bare import bare_rate
from benchmarks.comparison import HEADLINES, Results
from benchmarks.fire_lag import fire_lag
from benchmarks.growth import growth
from benchmarks.latency import latency
from benchmarks.ojs import ojs
from benchmarks.peers import PEERS, measuring
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
    "OJS": OnSystem(ojs),
    "W5": growth,
    "W6": registered,
    "W7": replay,
}


async def measure(name: str, *, sync_always: bool) -> Metrics:
    """One workload; what it found is printed."""
    metrics = await WORKLOADS[name](sync_always)
    return _told(_title(name, sync_always=sync_always), metrics)


def compare(workload: str, results: Results, *, names: Sequence[str], python: str, plot: Path | None) -> None:
    """Have each peer do a workload, print all figures in one table, and add those of the peers to the results."""
    versions, reasons = dict[str, str](), dict[str, str]()
    for name in names:
        try:
            measured = asyncio.run(measuring.measure(name, workload, python=python))
        except measuring.NotMeasuredError as error:
            reasons[name] = str(error)
            print(f"{workload} {name}\n  not measured: {error}", flush=True)
        else:
            versions[name] = measured.version
            results[f"{workload} {name}"] = _told(f"{workload} {name} {measured.version}", measured.metrics)
    rows = comparison.rows(workload, results, versions, reasons)
    print(f"\n{comparison.table(workload, rows)}\n", flush=True)
    if plot:
        print(f"drawn in {plots.write(plot, workload, rows)}", flush=True)


def arguments(line: Sequence[str] | None = None) -> argparse.Namespace:
    """What the command line asks for, checked."""
    description = (__doc__ or "").partition("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=description)
    parser.add_argument("workloads", nargs="*", metavar="W", help=f"which ones; by default all: {', '.join(WORKLOADS)}")
    parser.add_argument("--profile", choices=PROFILES, default="both", help="how the server keeps what it acknowledges")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write {workload: {metric: value}} there as well")
    parser.add_argument(
        "--peers",
        type=_peers,
        nargs="?",
        const=PEERS,
        default=(),
        metavar="NAMES",
        help=f"measure these beside Tocsin in {', '.join(HEADLINES)}; by default all: {','.join(PEERS)}",
    )
    parser.add_argument(
        "--peers-python",
        default=sys.executable,
        metavar="PROGRAM",
        help="the interpreter that has the libraries of the peers; by default this one",
    )
    parser.add_argument("--plots", type=Path, metavar="FOLDER", help="draw each comparison there, as SVG")
    asked = parser.parse_args(line)
    if unknown := set(asked.workloads) - set(WORKLOADS):
        parser.error(f"no workload is called {', '.join(sorted(unknown))}: there are {', '.join(WORKLOADS)}")
    asked.workloads = asked.workloads or list(WORKLOADS)
    if asked.peers and not set(asked.workloads) & set(HEADLINES):
        parser.error(f"peers are measured in {', '.join(HEADLINES)}, and none of these was asked for")
    if asked.plots and not asked.peers:
        parser.error("--plots draws comparisons with peers: add --peers")
    return asked


def main() -> None:
    """Measure, print, write."""
    asked = arguments()
    telemetry.configure(level="warning")
    collect_patiently()
    results: Results = {}
    for name in asked.workloads:
        for sync in PROFILES[asked.profile]:
            results[_title(name, sync_always=sync)] = uvloop.run(measure(name, sync_always=sync))
        if asked.peers and name in HEADLINES:
            compare(name, results, names=asked.peers, python=asked.peers_python, plot=asked.plots)
    if asked.json:
        asked.json.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


def _peers(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    if unknown := set(names) - set(PEERS):
        raise argparse.ArgumentTypeError(
            f"no peer is called {', '.join(sorted(unknown))}: there are {', '.join(PEERS)}"
        )
    return names


def _told(title: str, metrics: Metrics) -> Metrics:
    told = {**metrics, "load_average": os.getloadavg()[0]}
    print(title, flush=True)
    for metric, value in told.items():
        print(f"  {metric:<46}{value:>12,.2f}", flush=True)
    return told


def _title(name: str, *, sync_always: bool) -> str:
    return f"{name} durable" if sync_always else name


if __name__ == "__main__":
    main()
